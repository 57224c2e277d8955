//! Gradients of a replica's collectives, on nests.

use super::linear;
use crate::{
    Axis, Error, ReduceOp, ReplicaContext, Result, Tensor,
    comm::call::Call,
    error::{IntoReduceOp, op_of},
    value::{
        indexed_slices,
        nest::{self, Leaf, Nest, Value},
    },
};
use consonance_kernels::memory::HostMemory;
use consonance_spec::Kind;
use std::ops::Range;

/// Returns the gradient of [`all_reduce`](ReplicaContext::all_reduce) by sum or mean. `upstream` is
/// the gradient of its result.
///
/// # Errors
/// [`Error::InvalidCall`] for another operation, or the mean of integers; otherwise as
/// [`all_reduce`](ReplicaContext::all_reduce).
///
/// ```
/// use consonance::{IndexedSlices, MirroredStrategy, ReduceOp, Tensor, gradient};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let gradients = strategy.run(|replica| {
///     let row = Tensor::from([replica.replica_id_in_sync_group() as i64]);
///     let upstream = IndexedSlices::new(Tensor::from([[1.0f32, 2.0]]), row, Some(vec![3, 2]))?;
///     gradient::all_reduce(replica, ReduceOp::Mean, upstream)
/// })?;
/// assert_eq!(gradients[0].to_dense()?, Tensor::from([[0.5f32, 1.0], [0.5, 1.0], [0.0, 0.0]]));
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn all_reduce<N: Nest>(replica: &ReplicaContext<'_>, op: impl IntoReduceOp, mut upstream: N) -> Result<N> {
    let call = "gradient::all_reduce";
    replica.require(call)?;
    let leaves = nest::take(&mut upstream);
    let op = replica.or_refuse(Kind::AllReduce, check_linear(call, op, &leaves))?;
    replica.all_reduce(op, nest::put(upstream, leaves)?)
}

/// Returns the gradient of [`all_gather`](ReplicaContext::all_gather) along `axis`. `upstream` is
/// the gradient of its result. The gradient is this replica's part of the sum over the replicas.
///
/// `own_sizes` are the sizes along `axis` of this replica's input, one per leaf.
///
/// # Errors
/// [`Error::InvalidCall`] if the sizes are not those of `upstream`; otherwise as
/// [`all_gather`](ReplicaContext::all_gather).
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, gradient};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let gradients = strategy.run(|replica| {
///     // Replica 0 gave one element, replica 1 two.
///     let own_size = 1 + replica.replica_id_in_sync_group();
///     gradient::all_gather(replica, Tensor::from([1.0f32, 2.0, 3.0]), 0, &[own_size])
/// })?;
/// assert_eq!(gradients.values(), [Tensor::from([2.0f32]), Tensor::from([4.0f32, 6.0])]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn all_gather<N: Nest>(
    replica: &ReplicaContext<'_>,
    mut upstream: N,
    axis: impl Into<Axis>,
    own_sizes: &[usize],
) -> Result<N> {
    let (call, axis) = ("gradient::all_gather", axis.into());
    replica.require(call)?;
    let leaves = nest::take(&mut upstream);
    let checked = match own_sizes.len() == leaves.len() {
        true => leaves.iter().map(|leaf| leaf.gather_axis(call, axis)).collect(),
        false => {
            let (expected, found) = (format!("{} sizes", leaves.len()), format!("{} sizes", own_sizes.len()));
            Err(Error::invalid(call, "own_sizes", expected, found))
        }
    };
    let axes: Vec<usize> = replica.or_refuse(Kind::AllGather, checked)?;
    let own: Vec<u64> = own_sizes.iter().map(|&size| size as u64).collect();
    let mut all = vec![0u64; own.len() * replica.num_replicas_in_sync()];
    // The axis is not in the signature of any later step: compare it here.
    replica.session(Kind::AllGather, &leaves, axis, &replica.strategy().options()).call(Call::AllGather {
        send: Some(own.as_slice().into()),
        recv: all.as_mut_slice().into(),
        counts: None,
    })?;
    let all: Vec<usize> = all.into_iter().map(|size| size as usize).collect();
    let sizes = |place: usize| all.iter().skip(place).step_by(own.len());
    let fit = leaves.iter().zip(&axes).enumerate().try_for_each(|(place, (leaf, &axis))| {
        let (size, total) = (size(leaf, axis), sizes(place).fold(0usize, |total, &size| total.saturating_add(size)));
        if size == total {
            return Ok(());
        }
        let (expected, found) = (format!("{total} entries along axis {axis}"), size.to_string());
        Err(Error::invalid(call, leaf.path.to_string(), expected, found))
    });
    replica.or_refuse(Kind::AllReduce, fit)?;

    let even = |(place, leaf): (usize, &Leaf)| {
        let even = axes[place] == 0 && sizes(place).all(|&size| size == own_sizes[place]);
        even && matches!(leaf.value, Value::Dense(_))
    };
    let scattered = leaves.iter().enumerate().all(even);
    let upstream = nest::put(upstream, leaves)?;
    if scattered {
        return replica.reduce_scatter(ReduceOp::Sum, upstream);
    }
    let mut sum = replica.all_reduce(ReduceOp::Sum, upstream)?;
    let mut leaves = nest::take(&mut sum);
    for (place, (leaf, &axis)) in leaves.iter_mut().zip(&axes).enumerate() {
        let start = sizes(place).take(replica.replica_id_in_sync_group()).sum();
        let own = start..start + own_sizes[place];
        match &mut leaf.value {
            Value::Dense(tensor) => *tensor = part(tensor, axis, own)?,
            Value::Sparse(slices) => *slices = slices.part(own)?,
        }
    }
    nest::put(sum, leaves)
}

/// Returns the gradient of [`reduce_scatter`](ReplicaContext::reduce_scatter) by sum or mean.
/// `upstream` is the gradient of this replica's block.
///
/// # Errors
/// As [`all_reduce`], and as [`all_gather`](ReplicaContext::all_gather).
///
/// ```
/// use consonance::{MirroredStrategy, ReduceOp, Tensor, gradient};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let gradients = strategy.run(|replica| {
///     let upstream = Tensor::from([1.0f32 + replica.replica_id_in_sync_group() as f32]);
///     gradient::reduce_scatter(replica, ReduceOp::Mean, upstream)
/// })?;
/// assert_eq!(gradients.values(), [Tensor::from([0.5f32, 1.0]), Tensor::from([0.5f32, 1.0])]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn reduce_scatter<N: Nest>(replica: &ReplicaContext<'_>, op: impl IntoReduceOp, mut upstream: N) -> Result<N> {
    let call = "gradient::reduce_scatter";
    replica.require(call)?;
    let mut leaves = nest::take(&mut upstream);
    let checked = check_linear(call, op, &leaves).and_then(|op| {
        let axes: Result<Vec<usize>> = leaves.iter().map(|leaf| leaf.gather_axis(call, Axis::from(0))).collect();
        Ok((op, axes?))
    });
    let (op, axes) = replica.or_refuse(Kind::AllGather, checked)?;
    if op == ReduceOp::Mean {
        for leaf in &mut leaves {
            let values = match &mut leaf.value {
                Value::Dense(tensor) => tensor,
                Value::Sparse(slices) => &mut slices.values,
            };
            *values = indexed_slices::divide(call, values, replica.num_replicas_in_sync())?;
        }
    }
    // No axis is ragged: blocks are even.
    let session = replica.session(Kind::AllGather, &leaves, None, &replica.strategy().options());
    session.with_own_op(op).all_gather_leaves(&mut leaves, &axes)?;
    replica.put(call, upstream, leaves)
}

/// Returns the gradient of [`broadcast`](ReplicaContext::broadcast) from `root`. `upstream` is the
/// gradient of its result. The gradient is the sum on `root`, and zero on the other replicas, whose
/// values were not used.
///
/// # Errors
/// [`Error::InvalidCall`] for a replica that does not exist, or values that cannot be added;
/// otherwise as [`all_reduce`](ReplicaContext::all_reduce).
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, gradient};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let gradients = strategy.run(|replica| gradient::broadcast(replica, Tensor::from(2.0f32), 1))?;
/// assert_eq!(gradients.values(), [Tensor::from(0.0f32), Tensor::from(4.0f32)]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn broadcast<N: Nest>(replica: &ReplicaContext<'_>, upstream: N, root: usize) -> Result<N> {
    replica.sum_on("gradient::broadcast", root, upstream)
}

fn check_linear(call: &'static str, op: impl IntoReduceOp, leaves: &[Leaf]) -> Result<ReduceOp> {
    let op = op_of(call, op)?;
    let dtype = |leaf: &Leaf| match &leaf.value {
        Value::Dense(tensor) => tensor.dtype(),
        Value::Sparse(slices) => slices.values.dtype(),
    };
    leaves.iter().try_for_each(|leaf| linear(call, op, dtype(leaf))).map(|()| op)
}

/// Returns the size along `axis`, which must exist.
fn size(leaf: &Leaf, axis: usize) -> usize {
    match &leaf.value {
        Value::Dense(tensor) => tensor.shape()[axis],
        Value::Sparse(slices) => slices.dense_shape.as_ref().map_or(0, |shape| shape[axis]),
    }
}

/// Copies the entries `own` along `axis`.
fn part(tensor: &Tensor, axis: usize, own: Range<usize>) -> Result<Tensor> {
    let mut shape = tensor.shape().to_vec();
    let (outer, inner): (usize, usize) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
    let size = std::mem::replace(&mut shape[axis], own.len());
    let host = tensor.host()?;
    let rows = (0..outer).map(|row| host.slice((row * size + own.start) * inner..(row * size + own.end) * inner));
    Tensor::from_memory(shape, HostMemory::concat(tensor.dtype(), &rows.collect::<Vec<_>>()))
}
