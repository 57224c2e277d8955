//! Parameter servers: where variables lie, what the closures of a coordinator leave in them, and
//! what it answers.
//!
//! A *closure* is a function that was scheduled. It reads variables, and has effects on them. A
//! worker that runs it makes an *attempt*. A worker may be lost; then its closure is attempted
//! again. The effects of an attempt are its own until it *commits*.
//!
//! The words, which every crate uses, are at the root of this crate: [`Partitioner`] and its three
//! kinds, [`Shards`] (the rows of each shard), [`RoundRobin`] (the server of each shard),
//! [`Order`], [`Updates`] and [`OnError`]. The other items are the meaning.

mod partitioner;
mod placement;
mod shards;
mod table;
mod update_function;
mod order;
mod closure;
mod coordinator;

pub use closure::{Attempt, Came, Closure, Failure, Seen, Step, Variables};
pub use coordinator::{Coordinator, Failures, State, Stepped};
pub use order::{OnError, Order, Updates};
pub use partitioner::{FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner, RefusedPartition};
pub use placement::{RoundRobin, shards_of};
pub use shards::Shards;
pub use table::{Change, Effect, Refused, Rows, Tables, lookup};
pub use update_function::{FunctionUpdate, UpdateFunction};
