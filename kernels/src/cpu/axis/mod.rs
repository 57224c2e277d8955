//! Reductions of a tensor along one axis. Several replicas have some of the elements each.
//!
//! [`Along`] reduces the tensors of replicas that share memory. A [`Partial`] is the result of one
//! replica's elements, for replicas that do not share memory. It consists of accumulators, so
//! [`finish`] rounds once, however the elements are split.
//!
//! The order is the spec's (`order.rs`). A block has 4096 consecutive elements along the axis. In a
//! block, lane `j` takes the elements `j`, `j + 32`, …. Lanes, blocks and replicas are combined by
//! the balanced tree. If no tensor has more than one block, the accumulators never leave the
//! caches: a chunk of each tensor's accumulators is computed, and then that chunk of the results.

mod partial;
mod tensor;
mod along;
#[cfg(test)]
mod tests;

pub use along::{Along, Part};
pub use partial::{Partial, finish};
