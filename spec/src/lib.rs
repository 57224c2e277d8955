//! The specification of Consonance: the words that every crate uses, and the results that each
//! collective must produce.
//!
//! The *words* ([`dtype`], [`op`], [`world`], [`partition`], [`call`], [`traffic`], [`packing`],
//! [`aggregation`], [`static_shapes`], the constants in [`order`] and the types at the root) are
//! for every crate. All other modules are the *meaning*. Only tests, the harness and the fuzz
//! targets import the meaning: a runtime that called it would be compared with itself.

#![forbid(unsafe_code)]
// The lints of the lists in clippy.toml. Tests are free.
#![cfg_attr(not(test), deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros))]

pub mod dtype;
pub mod op;
mod names;
pub mod world;
pub mod partition;
pub mod call;
pub mod traffic;
pub mod packing;
pub mod aggregation;
pub mod static_shapes;
pub mod order;
pub mod number;
pub mod exact;
pub mod collective;
pub mod array;
pub mod sparse;
pub mod adjoint;
pub mod nest;
pub mod strategy;
pub mod dataset;
pub mod variable;
pub mod blame;
pub mod training;
pub mod ending;
pub mod generations;
pub mod messages;
pub mod parameter_server;
pub mod sample;

pub use aggregation::{VariableAggregation, VariableSynchronization};
pub use call::{Extension, Extent, Flow, Kind, Signature, Work};
pub use dtype::{Class, DType, Element};
pub use half::{bf16, f16};
pub use op::{ReduceOp, UnknownReduceOp};
pub use parameter_server::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, OnError, Order, Partitioner, RefusedPartition,
    RoundRobin, Shards, Updates,
};
pub use world::World;
