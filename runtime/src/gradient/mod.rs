//! Gradients of collectives: what a gradient goes through on the way back, for tapes and layers of
//! your own.
//!
//! A collective that only adds and copies is linear, and so has an adjoint: where replicas `i` hold
//! inputs `x` and get outputs `f(x)`, it takes the gradients of all outputs to those of all inputs,
//! so that `<f(x), y> = <x, f*(y)>` over all replicas together. The loss is then the sum of the
//! replicas' losses, as every replica's tape sees only its own.
//!
//! | forward | its gradient |
//! |---|---|
//! | [`all_reduce`](crate::ReplicaContext::all_reduce) by sum or mean | the same all-reduce: [`all_reduce`] |
//! | [`all_gather`](crate::ReplicaContext::all_gather) | the sum, of which each replica has its own part: [`all_gather`] |
//! | [`reduce_scatter`](crate::ReplicaContext::reduce_scatter) by sum or mean | an all-gather: [`reduce_scatter`] |
//! | [`broadcast`](crate::ReplicaContext::broadcast) | the sum on the root, zero elsewhere: [`broadcast`] |
//! | a [`Communicator`](crate::Communicator)'s | in [`slices`] |
//!
//! Every replica calls the gradient, in the same order, as it called the collective. Gradients are
//! collectives too, so they can be passed through again: the gradient of [`all_gather`] is an
//! all-gather. Where a leaf is a tensor on the way forth, its gradient may be
//! [`IndexedSlices`](crate::IndexedSlices), as that of a lookup is; it stays sparse.
//!
//! ```
//! use consonance::{MirroredStrategy, ReduceOp, Tensor, gradient};
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! // Replica i's loss is (i + 1) times the sum of x over the replicas: on each, x counts 1 + 2 times.
//! let gradients = strategy.run(|replica| {
//!     let upstream = Tensor::from(1.0f32 + replica.replica_id_in_sync_group() as f32);
//!     gradient::all_reduce(replica, ReduceOp::Sum, upstream)
//! })?;
//! assert_eq!(gradients.values(), [Tensor::from(3.0f32), Tensor::from(3.0f32)]);
//! # Ok::<(), consonance::Error>(())
//! ```

mod nests;
pub mod slices;

pub use nests::{all_gather, all_reduce, broadcast, reduce_scatter};

use crate::{Error, ReduceOp, Result};
use consonance_spec::DType;

/// Sums and means have a gradient of the type of what they combine; the other operations are not
/// linear.
fn linear(call: &'static str, op: ReduceOp, dtype: DType) -> Result<()> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean if op.result(dtype) == Some(dtype) => Ok(()),
        ReduceOp::Sum | ReduceOp::Mean => {
            Err(Error::invalid(call, "op", format!("an operation from {dtype} to {dtype}"), op.name()))
        }
        _ => Err(Error::invalid(call, "op", "sum or mean, which are linear", op.name())),
    }
}
