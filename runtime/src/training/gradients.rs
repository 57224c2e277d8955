//! The gradients of a replica: accumulated over passes, and reduced while they are computed.

use crate::{
    Axes, Buckets, Error, Nest, PendingNest, ReduceOp, ReplicaContext, Result,
    replica::grain_sum::{Counted, GrainSum, Place},
    value::nest::{self, Leaf, NestSignature, Path},
};
use consonance_spec::Kind;
use std::{
    fmt,
    ops::AddAssign,
    time::{Duration, Instant},
};

/// Sums or averages gradients over the replicas.
///
/// A backward pass [pushes](Pass::push) the gradients of each layer as soon as they are computed,
/// in the same order on every replica. [`all_reduce`](Gradients::all_reduce) reduces them meanwhile
/// ([`ReplicaContext::overlap`]). [`accumulate`](Gradients::accumulate) keeps the gradients of a
/// pass for the next reduction, without communication. The value belongs to one replica. Keep it
/// outside of the loop over steps, so that its memory is used again.
///
/// Each pass is a contribution of its own, which is rounded with no other one. With
/// [grains](crate::Builder::grains) a step has a pass for each
/// [grain of the replica](ReplicaContext::grains), in their order. The result has the bits of as
/// many replicas with one pass each. Otherwise each replica makes one pass, or the number of
/// [`with_passes`](Gradients::with_passes).
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, training::Gradients};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let averages = strategy.run(|replica| {
///     let id = replica.replica_id_in_sync_group() as f32;
///     let mut gradients = Gradients::mean().with_passes(2)?;
///     gradients.accumulate(replica, |pass| pass.push(Tensor::from([id, 1.0])))?;
///     let reduced = gradients.all_reduce(replica, |pass| pass.push(Tensor::from([id, 3.0])))?;
///     Ok(reduced.gradients)
/// })?;
/// // The mean of two passes on each of two replicas.
/// assert_eq!(averages[1], [Tensor::from([0.5f32, 2.0])]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct Gradients {
    op: ReduceOp,
    /// The number of passes of a step, if that is not the number of the replica's grains.
    wanted: Option<usize>,
    /// The passes of a step; made by the first one, and kept for the next step.
    sum: Option<GrainSum>,
    /// The signature of each push of the passes so far.
    pushes: Vec<NestSignature>,
}

/// A backward pass, to which gradients are pushed. All passes of a reduction push gradients of the
/// same structures, dtypes and shapes, in the same order.
pub struct Pass<'p, N> {
    /// The signature of each push of the passes before, if there were some.
    known: Option<&'p [NestSignature]>,
    /// The number of pushes so far.
    pushes: usize,
    target: Target<'p, N>,
    waited: Duration,
}

/// The destination of a pass's gradients.
enum Target<'p, N> {
    /// To those of the other passes, at the end of the pass.
    Passes(Pushed<N>),
    /// To the other replicas.
    Replicas { op: ReduceOp, buckets: &'p Buckets<'p>, pending: Vec<PendingNest<'p, N>> },
}

/// The gradients of a pass.
struct Pushed<N> {
    leaves: Vec<Leaf>,
    /// For each push the nest without its leaves, and its signature.
    nests: Vec<(N, NestSignature)>,
    /// For each push the end of its leaves.
    ends: Vec<usize>,
}

/// The result of [`Gradients::all_reduce`].
#[derive(Clone, Debug)]
pub struct Reduced<N, R> {
    /// The result of the backward pass.
    pub value: R,
    /// The gradients over all replicas, in the order in which they were pushed: the same bits on
    /// every replica.
    pub gradients: Vec<N>,
    /// The time that the reduction took.
    pub communication: Communication,
}

/// The time that communication took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Communication {
    /// The time in collectives, including waits for other replicas, on the replica's own thread or
    /// on another.
    pub total: Duration,
    /// The time that the replica's own thread handed gradients over or waited. It exceeds
    /// `total` if this thread, or the one that makes the collectives, waits for a core.
    pub waited: Duration,
}

const PUSH: &str = "Pass::push";
const ACCUMULATE: &str = "Gradients::accumulate";
const ALL_REDUCE: &str = "Gradients::all_reduce";

impl Gradients {
    /// Makes a value that returns the mean over all passes of all replicas.
    pub fn mean() -> Gradients {
        Gradients::new(ReduceOp::Mean)
    }

    /// Makes a value that returns the sum over all passes of all replicas. Divide it by the number
    /// of samples in all of them, if passes have different numbers.
    pub fn sum() -> Gradients {
        Gradients::new(ReduceOp::Sum)
    }

    fn new(op: ReduceOp) -> Gradients {
        Gradients { op, wanted: None, sum: None, pushes: Vec::new() }
    }

    /// Sets the number of passes of a step on each replica, of which all but the last are
    /// [accumulated](Gradients::accumulate). It is the same on all replicas. The result has the
    /// bits of as many replicas as there are passes in all. By default it is 1, or with
    /// [grains](crate::Builder::grains) the number of the replica's grains, which this cannot
    /// change.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for 0.
    pub fn with_passes(mut self, passes: usize) -> Result<Gradients> {
        if passes == 0 {
            return Err(Error::invalid("Gradients::with_passes", "passes", "at least one", "0"));
        }
        self.wanted = Some(passes);
        Ok(self)
    }

    /// Runs a backward pass whose gradients are added to those of the passes before: each pass of a
    /// step but the last. The other replicas are not waited for, except that the first call in a
    /// step may wait for the reductions of an [overlap](ReplicaContext::overlap) that is open.
    /// Returns what `backward` returns.
    ///
    /// # Errors
    /// The error of `backward`; [`Error::InvalidCall`] for a pass more than those before the last,
    /// for gradients that have no sum, differ from those of the passes before, or lie in the memory
    /// of a device, and for [`with_passes`](Gradients::with_passes) beside grains. The passes are
    /// then as before the call.
    ///
    /// ```
    /// use consonance::{OneDeviceStrategy, training::Gradients};
    /// let strategy = OneDeviceStrategy::new("cpu:0")?;
    /// strategy.run(|replica| {
    ///     let mut gradients = Gradients::sum().with_passes(3)?;
    ///     gradients.accumulate(replica, |pass| pass.push([1.0f32, 2.0]))?;
    ///     let error = gradients.accumulate(replica, |pass| pass.push([1.0f64, 2.0])).unwrap_err();
    ///     assert_eq!(error.to_string(), "Pass::push: value/0: expected f32[2], found f64[2]");
    ///     assert_eq!(gradients.passes(), 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn accumulate<N: Nest, R>(
        &mut self,
        replica: &ReplicaContext<'_>,
        backward: impl FnOnce(&mut Pass<'_, N>) -> Result<R>,
    ) -> Result<R> {
        let place = self.place(ACCUMULATE, replica)?;
        let Gradients { op, sum, pushes, .. } = self;
        let sum = sum.get_or_insert_with(|| GrainSum::new(*op, place));
        sum.require_more(ACCUMULATE)?;
        let (value, pushed) = passed(Some(&pushes[..]).filter(|_| sum.added() > 0), backward)?;
        sum.add(ACCUMULATE, replica, &pushed.leaves)?;
        *pushes = pushed.nests.into_iter().map(|(_, signature)| signature).collect();
        Ok(value)
    }

    /// Runs the last backward pass of a step, and reduces its gradients with those of the passes
    /// before. Returns what `backward` returned, and the reduced gradients. The next step begins
    /// anew.
    ///
    /// If each replica makes one pass, gradients are reduced while the pass goes on: small ones in
    /// buckets, large ones alone. Otherwise they are reduced after the last pass, without overlap.
    ///
    /// Every replica makes the call. The result has the same bits for every size of buckets, and
    /// with and without threads that reduce meanwhile.
    ///
    /// # Errors
    /// The error of `backward`; [`Error::InvalidCall`] as in [`accumulate`](Gradients::accumulate),
    /// which aborts the group, and if a pass is missing; otherwise as [`ReplicaContext::overlap`].
    /// The passes before are lost then. If the numbers of passes differ, all replicas get an
    /// [`Error::Mismatch`]: it names the passes as `leaves`, or the first gradient that the other
    /// call does not have.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor, training::Gradients};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// strategy.run(|replica| {
    ///     let reduced = Gradients::sum().all_reduce(replica, |pass| {
    ///         // The last layer's gradients are reduced while those of the layer before are computed.
    ///         for layer in (0..3).rev() {
    ///             pass.push(Tensor::from(vec![layer as f32; 100_000]))?;
    ///         }
    ///         Ok("the loss")
    ///     })?;
    ///     assert_eq!((reduced.value, reduced.gradients.len()), ("the loss", 3));
    ///     println!("{:.0} % hidden", 100.0 * reduced.communication.hidden());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce<N: Nest, R>(
        &mut self,
        replica: &ReplicaContext<'_>,
        backward: impl FnOnce(&mut Pass<'_, N>) -> Result<R>,
    ) -> Result<Reduced<N, R>> {
        let place = self.place(ALL_REDUCE, replica);
        let place = replica.or_refuse(Kind::AllReduce, place).inspect_err(|_| self.reset())?;
        let reduced = match place.is_of_one_each(replica.num_replicas_in_sync()) {
            true => self.overlapped(replica, backward),
            false => self.accumulated(replica, place, backward),
        };
        self.reset();
        reduced
    }

    /// Reduces the gradients of one pass on each replica, while it goes on.
    fn overlapped<N: Nest, R>(
        &self,
        replica: &ReplicaContext<'_>,
        backward: impl FnOnce(&mut Pass<'_, N>) -> Result<R>,
    ) -> Result<Reduced<N, R>> {
        replica.overlap(|buckets| {
            let target = Target::Replicas { op: self.op, buckets, pending: Vec::new() };
            let mut pass = Pass { known: None, pushes: 0, target, waited: Duration::ZERO };
            let value = backward(&mut pass)?;
            let Target::Replicas { pending, .. } = pass.target else { unreachable!("made above") };
            let start = Instant::now();
            let gradients = pending.into_iter().map(|nest| nest.wait()).collect::<Result<Vec<_>>>()?;
            let waited = pass.waited + start.elapsed();
            Ok(Reduced { value, gradients, communication: Communication { total: buckets.in_collectives(), waited } })
        })
    }

    /// Reduces the gradients of several passes on a replica, after the last one.
    fn accumulated<N: Nest, R>(
        &mut self,
        replica: &ReplicaContext<'_>,
        place: Place,
        backward: impl FnOnce(&mut Pass<'_, N>) -> Result<R>,
    ) -> Result<Reduced<N, R>> {
        let Gradients { op, sum, pushes, .. } = self;
        let sum = sum.get_or_insert_with(|| GrainSum::new(*op, place));
        let known = Some(&pushes[..]).filter(|_| sum.added() > 0);
        // A failure in an overlap aborts the group: the other replicas wait for this one.
        let (value, Pushed { mut leaves, nests, ends }) = replica.overlap(|_| passed(known, backward))?;
        let start = Instant::now();
        sum.all_reduce(ALL_REDUCE, replica, &mut leaves)?;
        let total = start.elapsed();
        let (mut leaves, mut begin) = (leaves.into_iter(), 0);
        let put = |((nest, _), end): ((N, NestSignature), usize)| {
            let own = leaves.by_ref().take(end - std::mem::replace(&mut begin, end)).collect();
            replica.put(PUSH, nest, own)
        };
        let gradients = nests.into_iter().zip(ends).map(put).collect::<Result<_>>()?;
        Ok(Reduced { value, gradients, communication: Communication { total, waited: total } })
    }

    /// Returns the place of this replica's contributions. Drops room for others.
    fn place(&mut self, call: &'static str, replica: &ReplicaContext<'_>) -> Result<Place> {
        let (strategy, id) = (replica.strategy(), replica.replica_id_in_sync_group());
        let (run, of) = match self.wanted {
            None => (replica.grains(), strategy.grains()),
            Some(passes) if strategy.has_grains() => {
                let expected = format!("no number beside the {} grains of the strategy", strategy.grains());
                return Err(Error::invalid(call, "passes", expected, passes.to_string()));
            }
            Some(passes) => {
                let of = replica.num_replicas_in_sync().checked_mul(passes);
                let many = || Error::invalid(call, "passes", "a number that can be counted", passes.to_string());
                (id * passes..(id + 1) * passes, of.ok_or_else(many)?)
            }
        };
        let counted = if strategy.has_grains() { Counted::Grains } else { Counted::Passes };
        let place = Place::new(counted, replica, run, of);
        match &self.sum {
            Some(sum) if *sum.place() != place && sum.added() > 0 => {
                let expected = format!("{}, as in the passes before (Gradients::reset drops them)", sum.place());
                return Err(Error::invalid(
                    call,
                    counted.argument(),
                    expected,
                    format!("{place} of another strategy, or after a reform"),
                ));
            }
            Some(sum) if *sum.place() != place => self.sum = None,
            _ => {}
        }
        Ok(place)
    }

    /// Returns the number of passes since the last reduction.
    pub fn passes(&self) -> usize {
        self.sum.as_ref().map_or(0, GrainSum::added)
    }

    /// Forgets the passes since the last reduction.
    pub fn reset(&mut self) {
        self.sum.iter_mut().for_each(GrainSum::clear);
    }
}

/// Runs a pass whose gradients are kept.
fn passed<N: Nest, R>(
    known: Option<&[NestSignature]>,
    backward: impl FnOnce(&mut Pass<'_, N>) -> Result<R>,
) -> Result<(R, Pushed<N>)> {
    let target = Target::Passes(Pushed { leaves: Vec::new(), nests: Vec::new(), ends: Vec::new() });
    let mut pass = Pass { known, pushes: 0, target, waited: Duration::ZERO };
    let value = backward(&mut pass)?;
    pass.is_whole()?;
    let Target::Passes(pushed) = pass.target else { unreachable!("made above") };
    Ok((value, pushed))
}

impl<N: Nest> Pass<'_, N> {
    /// Passes gradients on.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for gradients that have no sum, or differ from those of the passes
    /// before; otherwise as [`Buckets::all_reduce`].
    ///
    /// ```
    /// use consonance::{OneDeviceStrategy, Tensor, training::Gradients};
    /// OneDeviceStrategy::new("cpu:0")?.run(|replica| {
    ///     Gradients::sum().all_reduce(replica, |pass| {
    ///         pass.push((Tensor::from([[1.0f32, 2.0]]), Tensor::from([3.0f32])))?;
    ///         pass.push((Tensor::from([[4.0f32, 5.0]]), Tensor::from([6.0f32])))
    ///     })
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn push(&mut self, mut gradients: N) -> Result<()> {
        let start = Instant::now();
        let mut leaves = Vec::new();
        gradients.take_leaves(&Path::default().join(self.pushes), &mut leaves);
        leaves.iter().try_for_each(|leaf| leaf.check_op(PUSH, ReduceOp::Sum))?;
        match &mut self.target {
            Target::Passes(pushed) => {
                leaves.iter().try_for_each(|leaf| leaf.require_host(PUSH))?;
                let signature = NestSignature::new(&leaves, &Axes::default());
                if let Some(known) = self.known {
                    let nothing = NestSignature::new(&[], &Axes::default());
                    let expected = known.get(self.pushes).unwrap_or(&nothing);
                    if let Some((path, expected, found)) = expected.difference(&signature) {
                        return Err(Error::invalid(PUSH, path, expected, found));
                    }
                }
                pushed.leaves.append(&mut leaves);
                pushed.ends.push(pushed.leaves.len());
                pushed.nests.push((gradients, signature));
            }
            Target::Replicas { op, buckets, pending } => {
                let nest = nest::put(gradients, leaves).map_err(|error| error.of_call(PUSH))?;
                pending.push(buckets.all_reduce(*op, nest)?);
            }
        }
        self.pushes += 1;
        self.waited += start.elapsed();
        Ok(())
    }

    /// Checks that everything of the passes before was pushed.
    fn is_whole(&self) -> Result<()> {
        let expected = self.known.map_or(self.pushes, <[_]>::len);
        if self.pushes == expected {
            return Ok(());
        }
        let words = |pushes: usize| format!("{pushes} pushes");
        Err(Error::invalid(PUSH, "the pass", format!("{} as before", words(expected)), words(self.pushes)))
    }
}

impl Communication {
    /// Returns the fraction of the communication that was hidden behind computation. It is 0 if the
    /// replica waited longer than the communication took.
    pub fn hidden(self) -> f64 {
        if self.total.is_zero() { 0.0 } else { 1.0 - self.waited.div_duration_f64(self.total).min(1.0) }
    }
}

impl AddAssign for Communication {
    fn add_assign(&mut self, other: Communication) {
        self.total += other.total;
        self.waited += other.waited;
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gradients({}, passes: {})", self.op, self.passes())
    }
}

impl<N> fmt::Debug for Pass<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass(pushes: {})", self.pushes)
    }
}
