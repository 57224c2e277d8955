//! The context of a running replica: its collectives, merge calls and overlaps.

mod board;
mod context;
mod merge;
pub(crate) mod nest_call;
pub(crate) mod overlap;
mod overlap_queue;
mod slices;
mod verify;

pub(crate) use board::MergeBoard;
pub use context::ReplicaContext;
