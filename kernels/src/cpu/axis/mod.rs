//! Reductions of a tensor along one axis, by several replicas, each of which has some of the
//! elements.
//!
//! [`Along`] reduces the tensors of replicas that share memory. A [`Partial`] is what the elements
//! of one replica give, for others that do not, in the type that is computed in, so that [`finish`]
//! rounds once however the elements were split.
//!
//! The order is the spec's (`order.rs`): blocks of 4096 consecutive elements along the axis, of
//! which lane `j` takes the elements `j`, `j + 32`, …; lanes, blocks and replicas meet by the
//! balanced tree. Where no tensor has more than a block, its accumulators never leave the caches: a
//! chunk of each is made, and then that chunk of the results.

mod partial;
mod tensor;
mod along;
#[cfg(test)]
mod tests;

pub use along::{Along, Part};
pub use partial::{Partial, finish};
