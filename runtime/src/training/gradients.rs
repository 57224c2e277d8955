//! The gradients of a replica: accumulated over passes, and reduced while they are computed.

use crate::{
    Axes, Buckets, CommunicationOptions, Error, Nest, PendingNest, ReduceOp, ReplicaContext, Result,
    replica::{
        earlier_contributions::Earlier,
        grain_sum::{Contributions, Counted},
        host_copies::{Origin, on_host},
    },
    value::nest::{self, Leaf, NestSignature, Path},
};
use consonance_spec::Kind;
use std::{
    fmt, mem,
    ops::AddAssign,
    time::{Duration, Instant},
    vec,
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
    /// The passes of this replica among those of all; known since the first one.
    place: Option<Contributions>,
    /// The number of passes before the last.
    added: usize,
    /// The signature of each push of the passes so far.
    pushes: Vec<NestSignature>,
    /// The gradients of the passes so far, for each leaf. The room for them is kept for the next
    /// step.
    earlier: Vec<Earlier>,
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
    /// To those of the passes before, at the end of the pass.
    Passes(Pushed),
    /// To the other replicas, after those of the passes before.
    Replicas {
        op: ReduceOp,
        buckets: &'p Buckets<'p>,
        pending: Vec<PendingNest<'p, N>>,
        earlier: vec::IntoIter<Earlier>,
        /// The memories in which the gradients lay; `None` if no pass was before, so that they are
        /// reduced where they lie.
        origins: Option<Vec<Origin>>,
    },
}

/// The gradients of a pass.
#[derive(Default)]
struct Pushed {
    leaves: Vec<Leaf>,
    /// The signature of each push.
    signatures: Vec<NestSignature>,
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
        Gradients { op, wanted: None, place: None, added: 0, pushes: Vec::new(), earlier: Vec::new() }
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
    /// for gradients that have no sum, or differ from those of the passes before, and for
    /// [`with_passes`](Gradients::with_passes) beside grains; [`Error::System`] if a device cannot
    /// be read. The passes are then as before the call.
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
        place.require_more(ACCUMULATE, self.added)?;
        let target = Target::Passes(Pushed::default());
        let mut pass = Pass { known: self.known(), pushes: 0, target, waited: Duration::ZERO };
        let value = backward(&mut pass)?;
        pass.is_whole()?;
        let Target::Passes(Pushed { leaves, signatures }) = pass.target else { unreachable!("made above") };
        let run = place.run_of(self.op);
        self.earlier.resize_with(leaves.len(), Earlier::default);
        let mut prepared = self.earlier.iter_mut().zip(&leaves);
        prepared.try_for_each(|(earlier, leaf)| earlier.prepare(ACCUMULATE, &replica.held(), &run, leaf))?;
        let verifies = replica.strategy().options().verifies();
        self.earlier.iter_mut().zip(&leaves).try_for_each(|(earlier, leaf)| earlier.add(leaf, verifies))?;
        (self.pushes, self.added) = (signatures, self.added + 1);
        Ok(value)
    }

    /// Returns the pushes of the passes before, if there were some.
    fn known(&self) -> Option<&[NestSignature]> {
        Some(&self.pushes[..]).filter(|_| self.added > 0)
    }

    /// Runs the last backward pass of a step, and reduces its gradients with those of the passes
    /// before. Returns what `backward` returned, and the reduced gradients. The next step begins
    /// anew.
    ///
    /// Gradients are reduced while the pass goes on: small ones in buckets, large ones alone.
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
        let whole = place.and_then(|place| place.require_all(ALL_REDUCE, self.added).map(|()| place));
        let place = replica.or_refuse(Kind::AllReduce, whole).inspect_err(|_| self.reset())?;
        let run = (!place.is_of_one_each(replica.num_replicas_in_sync())).then(|| place.run_of(self.op));
        let earlier = mem::take(&mut self.earlier).into_iter();
        let origins = run.is_some().then(Vec::new);
        let reduced = replica.overlap_of(CommunicationOptions::new(), run, |buckets| {
            let target = Target::Replicas { op: self.op, buckets, pending: Vec::new(), earlier, origins };
            let mut pass = Pass { known: self.known(), pushes: 0, target, waited: Duration::ZERO };
            let value = backward(&mut pass)?;
            pass.is_whole()?;
            let Target::Replicas { pending, origins, .. } = pass.target else { unreachable!("made above") };
            let start = Instant::now();
            let (mut gradients, mut earlier) = (Vec::with_capacity(pending.len()), Vec::new());
            for nest in pending {
                let (nest, room) = nest.wait_for_all()?;
                gradients.push(nest);
                earlier.extend(room);
            }
            let waited = pass.waited + start.elapsed();
            let communication = Communication { total: buckets.in_collectives(), waited };
            Ok((Reduced { value, gradients, communication }, earlier, origins))
        });
        let reduced = reduced.and_then(|(mut reduced, earlier, origins)| {
            self.earlier = earlier;
            let origins = origins.into_iter().flatten();
            let moved = reduced.gradients.iter_mut().zip(origins).filter(|(_, origin)| origin.is_on_device());
            for (gradients, origin) in moved {
                let mut leaves = nest::take(gradients);
                origin.take_back(&replica.held(), &mut leaves)?;
                gradients.put_leaves(&mut leaves.into_iter())?;
            }
            Ok(reduced)
        });
        self.reset();
        reduced
    }

    /// Returns the place of this replica's contributions. Drops room for others.
    fn place(&mut self, call: &'static str, replica: &ReplicaContext<'_>) -> Result<Contributions> {
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
        let place = Contributions::new(counted, replica, run, of);
        if let Some(before) = self.place.as_ref().filter(|before| **before != place) {
            if self.added > 0 {
                let expected = format!("{before}, as in the passes before (Gradients::reset drops them)");
                let found = format!("{place} of another strategy, or after a reform");
                return Err(Error::invalid(call, counted.argument(), expected, found));
            }
            self.earlier.clear();
        }
        self.place = Some(place.clone());
        Ok(place)
    }

    /// Returns the number of passes since the last reduction.
    pub fn passes(&self) -> usize {
        self.added
    }

    /// Forgets the passes since the last reduction.
    pub fn reset(&mut self) {
        self.added = 0;
        self.earlier.iter_mut().for_each(Earlier::clear);
    }
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
            Target::Passes(_) => drop(on_host(&mut leaves)?),
            Target::Replicas { origins: Some(origins), .. } => origins.push(on_host(&mut leaves)?),
            Target::Replicas { origins: None, .. } => {}
        }
        let signature = NestSignature::new(&leaves, &Axes::default());
        if let Some(known) = self.known {
            let nothing = NestSignature::new(&[], &Axes::default());
            let expected = known.get(self.pushes).unwrap_or(&nothing);
            if let Some((path, expected, found)) = expected.difference(&signature) {
                return Err(Error::invalid(PUSH, path, expected, found));
            }
        }
        match &mut self.target {
            Target::Passes(pushed) => {
                pushed.leaves.append(&mut leaves);
                pushed.signatures.push(signature);
            }
            Target::Replicas { op, buckets, pending, earlier, .. } => {
                let own = earlier.by_ref().take(leaves.len()).collect::<Vec<_>>().into_iter();
                let nest = nest::put(gradients, leaves).map_err(|error| error.of_call(PUSH))?;
                pending.push(buckets.all_reduce_after(*op, nest, own)?);
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
