//! Parameter servers: where variables lie.
//!
//! The words, which every crate uses, are at the root of this crate: [`Partitioner`] and its three
//! kinds, [`Shards`] (the rows of each shard) and [`RoundRobin`] (the server of each shard). The
//! other items are the meaning.

mod partitioner;
mod placement;
mod shards;

pub use partitioner::{FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner, RefusedPartition};
pub use placement::{RoundRobin, shards_of};
pub use shards::Shards;
