//! The gradients of a replica: accumulated over passes, and reduced while they are computed.

use crate::{
    Axes, Buckets, Error, IndexedSlices, Nest, PendingNest, ReduceOp, ReplicaContext, Result, Tensor,
    value::{
        indexed_slices,
        nest::{self, Leaf, NestSignature, Path, Value},
    },
};
use consonance_kernels::{cpu::reduce::Reducer, memory::HostMemory};
use std::{
    fmt, mem,
    ops::AddAssign,
    time::{Duration, Instant},
};

/// Sums or averages gradients over the replicas.
///
/// A backward pass [pushes](Pass::push) the gradients of each layer as soon as they are computed,
/// in the same order on every replica. [`all_reduce`](Gradients::all_reduce) reduces them meanwhile
/// ([`ReplicaContext::overlap`]). [`accumulate`](Gradients::accumulate) keeps the gradients of a
/// pass for the next reduction, without communication. The value belongs to one replica.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, training::Gradients};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let averages = strategy.run(|replica| {
///     let id = replica.replica_id_in_sync_group() as f32;
///     let mut gradients = Gradients::mean();
///     gradients.accumulate(|pass| pass.push(Tensor::from([id, 1.0])))?;
///     let reduced = gradients.all_reduce(replica, |pass| pass.push(Tensor::from([id, 3.0])))?;
///     Ok(reduced.gradients)
/// })?;
/// // The mean of two passes on each of two replicas.
/// assert_eq!(averages[1], [Tensor::from([0.5f32, 2.0])]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct Gradients {
    op: ReduceOp,
    /// The sums of the passes so far: for each push its leaves.
    sums: Vec<Vec<Leaf>>,
    /// The number of passes in `sums`.
    passes: usize,
}

/// A backward pass, to which gradients are pushed. All passes of a reduction push gradients of the
/// same structures, dtypes and shapes, in the same order.
pub struct Pass<'p, N> {
    /// The leaves of earlier passes, for each push.
    sums: &'p mut [Vec<Leaf>],
    /// The number of earlier passes.
    passes: usize,
    /// The number of pushes so far.
    pushes: usize,
    target: Target<'p, N>,
    waited: Duration,
}

/// The destination of a pass's gradients.
enum Target<'p, N> {
    /// Into the sums, at the end of the pass.
    Sums(Vec<Vec<Leaf>>),
    /// To the other replicas.
    Replicas { op: ReduceOp, buckets: &'p Buckets<'p>, pending: Vec<PendingNest<'p, Accumulated<N>>> },
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

impl Gradients {
    /// Makes a value that returns the mean over the replicas and the passes: the mean over the
    /// replicas of the sums over the passes, then divided by the number of passes. The sums of
    /// passes are rounded to the element type.
    pub fn mean() -> Gradients {
        Gradients { op: ReduceOp::Mean, sums: Vec::new(), passes: 0 }
    }

    /// Makes a value that returns the sum over the passes and the replicas. Divide it by the number
    /// of samples in all of them, if replicas have different numbers.
    pub fn sum() -> Gradients {
        Gradients { op: ReduceOp::Sum, sums: Vec::new(), passes: 0 }
    }

    /// Runs a backward pass whose gradients are added to those of the passes before. The other
    /// replicas are not waited for. Returns what `backward` returns.
    ///
    /// # Errors
    /// The error of `backward`; [`Error::InvalidCall`] for gradients that have no sum, or differ
    /// from those of the passes before. The sums are then as before the call.
    ///
    /// ```
    /// use consonance::training::Gradients;
    /// let mut gradients = Gradients::sum();
    /// gradients.accumulate(|pass| pass.push([1.0f32, 2.0]))?;
    /// let error = gradients.accumulate(|pass| pass.push([1.0f64, 2.0])).unwrap_err();
    /// assert_eq!(error.to_string(), "Pass::push: value/0: expected f32[2], found f64[2]");
    /// assert_eq!(gradients.passes(), 1);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn accumulate<N: Nest, R>(&mut self, backward: impl FnOnce(&mut Pass<'_, N>) -> Result<R>) -> Result<R> {
        let (sums, passes) = (&mut self.sums[..], self.passes);
        let mut pass = Pass { sums, passes, pushes: 0, target: Target::Sums(Vec::new()), waited: Duration::ZERO };
        let value = backward(&mut pass)?;
        pass.is_whole()?;
        let Target::Sums(made) = pass.target else { unreachable!("made above") };
        match self.passes {
            0 => self.sums = made,
            _ => {
                for (sum, new) in self.sums.iter_mut().flatten().zip(made.into_iter().flatten()) {
                    add(sum, &new)?;
                }
            }
        }
        self.passes += 1;
        Ok(value)
    }

    /// Runs a backward pass, and reduces its gradients with those of the passes before: small ones
    /// in buckets, large ones alone, while the pass goes on. Returns what `backward` returned, and
    /// the reduced gradients. The next pass begins anew.
    ///
    /// Every replica makes the call, after the same number of passes. The result has the same bits
    /// for every size of buckets, and with and without threads that reduce meanwhile.
    ///
    /// # Errors
    /// The error of `backward`; [`Error::InvalidCall`] as in [`accumulate`](Gradients::accumulate),
    /// which aborts the group; otherwise as [`ReplicaContext::overlap`]. The passes before are lost
    /// then. If the numbers of passes differ, the [`Error::Mismatch`] has them in its paths.
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
        let op = self.op;
        let (mut sums, passes) = (mem::take(&mut self.sums), mem::take(&mut self.passes));
        replica.overlap(|buckets| {
            let target = Target::Replicas { op, buckets, pending: Vec::new() };
            let mut pass = Pass { sums: &mut sums, passes, pushes: 0, target, waited: Duration::ZERO };
            let value = backward(&mut pass)?;
            pass.is_whole()?;
            let Target::Replicas { pending, .. } = pass.target else { unreachable!("made above") };
            let start = Instant::now();
            let reduced = pending.into_iter().map(|nest| nest.wait()).collect::<Result<Vec<_>>>()?;
            let waited = pass.waited + start.elapsed();
            let parts = if op == ReduceOp::Mean { passes + 1 } else { 1 };
            let gradients = reduced.into_iter().map(|gradient| divide(gradient.nest, parts)).collect::<Result<_>>()?;
            Ok(Reduced { value, gradients, communication: Communication { total: buckets.in_collectives(), waited } })
        })
    }

    /// Returns the number of passes since the last reduction.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// Forgets the passes since the last reduction.
    pub fn reset(&mut self) {
        self.sums.clear();
        self.passes = 0;
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
    /// use consonance::{Tensor, training::Gradients};
    /// Gradients::sum().accumulate(|pass| {
    ///     pass.push((Tensor::from([[1.0f32, 2.0]]), Tensor::from([3.0f32])))?;
    ///     pass.push((Tensor::from([[4.0f32, 5.0]]), Tensor::from([6.0f32])))
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn push(&mut self, mut gradients: N) -> Result<()> {
        let start = Instant::now();
        let mut leaves = Vec::new();
        gradients.take_leaves(&Path::default().join(self.pushes), &mut leaves);
        leaves.iter().try_for_each(|leaf| leaf.check_op(PUSH, ReduceOp::Sum))?;
        if self.passes > 0 || matches!(self.target, Target::Sums(_)) {
            leaves.iter().try_for_each(check_space)?;
        }
        if self.passes > 0 {
            let expected = self.sums.get(self.pushes).map_or(&[][..], |sum| sum);
            let signature = |leaves: &[Leaf]| NestSignature::new(leaves, &Axes::default());
            if let Some((path, expected, found)) = signature(expected).difference(&signature(&leaves)) {
                return Err(Error::invalid(PUSH, path, expected, found));
            }
        }
        match &mut self.target {
            Target::Sums(made) => made.push(leaves),
            Target::Replicas { op, buckets, pending } => {
                if self.passes > 0 {
                    let mut sums = mem::take(&mut self.sums[self.pushes]);
                    sums.iter_mut().zip(&leaves).try_for_each(|(sum, new)| add(sum, new))?;
                    leaves = sums;
                }
                let nest = nest::put(gradients, leaves).map_err(|error| error.of_call(PUSH))?;
                pending.push(buckets.all_reduce(*op, Accumulated { passes: self.passes + 1, nest })?);
            }
        }
        self.pushes += 1;
        self.waited += start.elapsed();
        Ok(())
    }

    /// Checks that everything of the passes before was pushed.
    fn is_whole(&self) -> Result<()> {
        let expected = self.sums.len();
        if self.passes == 0 || self.pushes == expected {
            return Ok(());
        }
        let words = |pushes: usize| format!("{pushes} pushes");
        Err(Error::invalid(PUSH, "the pass", format!("{} as before", words(expected)), words(self.pushes)))
    }
}

/// The gradients of several passes. Their number is in the paths of the leaves, so that the
/// replicas compare it.
struct Accumulated<N> {
    passes: usize,
    nest: N,
}

impl<N: Nest> Nest for Accumulated<N> {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<Leaf>) {
        self.nest.take_leaves(&at.of_passes(self.passes), leaves);
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        self.nest.put_leaves(leaves)
    }
}

/// Checks that a leaf lies in host memory, where the gradients of several passes are added.
fn check_space(leaf: &Leaf) -> Result<()> {
    match &leaf.value {
        Value::Dense(tensor) => tensor.host().map(drop),
        Value::Sparse(slices) => slices.values.host().and(slices.indices.host()).map(drop),
    }
}

/// Adds `new` to `sum`, a leaf of the same dtype and shape. Rows are put behind the rows of `sum`.
fn add(sum: &mut Leaf, new: &Leaf) -> Result<()> {
    match (&mut sum.value, &new.value) {
        (Value::Dense(sum), Value::Dense(new)) => {
            let reducer = Reducer::new(ReduceOp::Sum, sum.dtype()).expect("the dtype was checked");
            let mut target = sum.buf_mut()?.host().expect("the space was checked");
            reducer.accumulate(&mut target, &[new.host()?]);
            Ok(())
        }
        (Value::Sparse(sum), Value::Sparse(new)) => {
            let IndexedSlices { values, indices, .. } = sum;
            (*values, *indices) = (joined(values, &new.values)?, joined(indices, &new.indices)?);
            Ok(())
        }
        (Value::Dense(_), Value::Sparse(_)) | (Value::Sparse(_), Value::Dense(_)) => {
            unreachable!("leaves of a place are of one kind")
        }
    }
}

/// Returns the rows of both tensors.
fn joined(first: &Tensor, second: &Tensor) -> Result<Tensor> {
    let mut shape = first.shape().to_vec();
    shape[0] += second.shape()[0];
    Tensor::from_memory(shape, HostMemory::concat(first.dtype(), &[first.host()?, second.host()?]))
}

/// Divides every leaf by `parts`.
fn divide<N: Nest>(mut gradients: N, parts: usize) -> Result<N> {
    if parts == 1 {
        return Ok(gradients);
    }
    let mut leaves = nest::take(&mut gradients);
    for leaf in &mut leaves {
        let values = match &mut leaf.value {
            Value::Dense(tensor) => tensor,
            Value::Sparse(slices) => &mut slices.values,
        };
        *values = indexed_slices::divide(PUSH, values, parts)?;
    }
    nest::put(gradients, leaves).map_err(|error| error.of_call(PUSH))
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
        write!(f, "Gradients({}, passes: {})", self.op, self.passes)
    }
}

impl<N> fmt::Debug for Pass<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass(pushes: {})", self.pushes)
    }
}
