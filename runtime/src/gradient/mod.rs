//! Gradients of collectives, for the backward pass of your own tapes and layers.
//!
//! A collective `f` that only adds and copies is linear, so it has an adjoint `f*`. With the inputs
//! `x` and the outputs `f(x)` of all replicas together, the adjoint maps the gradients of all
//! outputs to those of all inputs: `<f(x), y> = <x, f*(y)>`. The differentiated loss is the sum of
//! the replicas' losses; the tape of each replica sees only its own loss.
//!
//! | forward | its gradient |
//! |---|---|
//! | [`all_reduce`](crate::ReplicaContext::all_reduce) by sum or mean | the same all-reduce: [`all_reduce`] |
//! | [`all_gather`](crate::ReplicaContext::all_gather) | the sum; each replica gets its own part: [`all_gather`] |
//! | [`reduce_scatter`](crate::ReplicaContext::reduce_scatter) by sum or mean | an all-gather: [`reduce_scatter`] |
//! | [`broadcast`](crate::ReplicaContext::broadcast) | the sum on the root, zero elsewhere: [`broadcast`] |
//! | those of a [`Communicator`](crate::Communicator) | in [`slices`] |
//!
//! Every replica calls the gradient, as it called the collective, and in the same order as the
//! other replicas. Gradients are collectives too, so they have gradients: that of [`all_gather`] is
//! an all-gather. The gradient of a tensor may be [`IndexedSlices`](crate::IndexedSlices), for
//! example that of a lookup; it stays sparse.
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

/// Checks that `op` has a gradient: it is a sum or a mean whose result has the dtype of its
/// operands. The other operations are not linear.
fn linear(call: &'static str, op: ReduceOp, dtype: DType) -> Result<()> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean if op.result(dtype) == Some(dtype) => Ok(()),
        ReduceOp::Sum | ReduceOp::Mean => {
            Err(Error::invalid(call, "op", format!("an operation from {dtype} to {dtype}"), op.name()))
        }
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            Err(Error::invalid(call, "op", "sum or mean, which are linear", op.name()))
        }
    }
}
