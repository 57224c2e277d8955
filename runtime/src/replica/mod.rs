//! The context of a running replica: its collectives, merge calls and overlaps; and its handle.

mod board;
mod context;
mod current_replica;
pub(crate) mod earlier_contributions;
pub(crate) mod exact;
pub(crate) mod grain_sum;
mod grains;
pub(crate) mod host_copies;
mod merge;
pub(crate) mod nest_call;
pub(crate) mod overlap;
mod overlap_queue;
pub(crate) mod packed_sums;
mod slices;
mod static_shapes;
mod verification;

pub(crate) use board::MergeBoard;
pub use context::ReplicaContext;
pub(crate) use current_replica::Running;
pub use current_replica::{ReplicaHandle, current_replica};
pub use grains::NestAccumulator;
