//! The context of a running replica: its collectives, merge calls and overlaps; and its handle.

mod board;
mod context;
mod current;
pub(crate) mod earlier;
pub(crate) mod exact;
pub(crate) mod grain_sum;
mod grains;
mod merge;
pub(crate) mod nest_call;
pub(crate) mod overlap;
mod overlap_queue;
pub(crate) mod packed_sums;
mod slices;
mod static_shapes;
mod verify;

pub(crate) use board::MergeBoard;
pub use context::ReplicaContext;
pub(crate) use current::Running;
pub use current::{ReplicaHandle, current_replica};
pub use grains::NestAccumulator;
