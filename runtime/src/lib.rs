//! The strategies, replica contexts and collectives of `tf.distribute`, without a tensor framework.
//!
//! A [strategy](Strategy) runs one function on every replica and combines the results:
//!
//! ```
//! use consonance::{MirroredStrategy, ReduceOp, Tensor};
//!
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let totals = strategy.run(|replica| {
//!     let loss = Tensor::from(replica.replica_id_in_sync_group() as f32 + 1.0);
//!     replica.all_reduce(ReduceOp::Sum, loss)
//! })?;
//! assert_eq!(strategy.local_results(&totals), [Tensor::from(3.0f32), Tensor::from(3.0f32)]);
//! # Ok::<(), consonance::Error>(())
//! ```
//!
//! * [`MirroredStrategy`], [`OneDeviceStrategy`], [`CentralStorageStrategy`]: replicas in one
//!   process. [`MultiWorkerMirroredStrategy`]: replicas in several processes. [`Strategy`] has
//!   their common methods.
//! * [`ReplicaContext`]: a replica's collectives, on any [nest](Nest) of [tensors](Tensor).
//! * [`Dataset`]: input for the replicas, batch by batch.
//! * [`Variable`]: trainable state, placed by the strategy; `checkpoint` saves and restores it.
//! * [`gradient`]: the collectives in the backward pass. [`training`]: gradients, norms, parameters
//!   and metrics of a training loop.
//! * [`Communicator`]: the raw layer below, MPI's collectives on slices.
//! * [`Mailbox`]: messages with tags. [`Queue`]: calls from any thread.
//! * The [guide]: a page per topic.
//!
//! # The same bits everywhere
//!
//! A reduction combines the contributions of replicas `0..n` by a balanced binary tree: `((x0 ⊕ x1)
//! ⊕ (x2 ⊕ x3)) ⊕ x4`. The order does not depend on the size, the number of threads, the packing,
//! the [`Implementation`] or the instruction set. f16 and bf16 are summed in f32 and rounded once.
//!
//! # No unbounded wait
//!
//! Replicas compare their calls before any data moves. If a replica makes another call, returns
//! early, fails or panics, every other replica gets at once an [`Error`] that names it. A replica
//! that does not come is named at the deadline ([`CommunicationOptions::timeout`]). A failed run
//! does not affect the next.

#![forbid(unsafe_code)]
// The lints of the lists in clippy.toml. Tests are free.
#![cfg_attr(not(test), deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros))]
#![deny(missing_debug_implementations)]

/// The programs of the README run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

// The derive macro generates paths that begin with `consonance`, also in this crate's own tests.
extern crate self as consonance;

#[cfg(test)]
#[path = "../tests/fields/mod.rs"]
mod fields;

mod error;
mod foreign_errors;
mod worst_error;
mod panics;
mod kind;
#[doc(hidden)]
pub mod profile;
mod device;
mod value;
mod comm;
pub mod cluster;
mod execution;
mod replica;
mod strategy;
mod variable;
pub mod dataset;
pub mod gradient;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
pub mod training;
#[cfg(target_os = "linux")]
pub mod parameter_server;
pub mod raw;
pub mod prelude;
pub mod guide;

pub use value::axis::{Axes, Axis};

pub use cluster::{
    ClusterResolver, ClusterSpec, SimpleClusterResolver, SlurmClusterResolver, TfConfigClusterResolver, UnionResolver,
};
#[cfg(target_os = "linux")]
pub use cluster::{group_builder::ProcessGroupBuilder, process_group::ProcessGroup, unique_id::UniqueId};
pub use comm::accumulator::Accumulator;
pub use comm::communicator::Communicator;
pub use comm::mailbox::{Mailbox, MessageType};
pub use comm::options::{CommunicationOptions, Implementation};
pub use comm::queue::Queue;
pub use comm::request::Request;
pub use comm::shared_memory::SharedMemory;
pub use comm::{async_scope::Scope, pending::Pending};
pub use consonance_derive::Nest;
pub use consonance_spec::{
    DType, Element, ReduceOp, UnknownReduceOp, VariableAggregation, VariableSynchronization, World, bf16, f16,
};
pub use dataset::{Dataset, DistributedDataset, DistributedIterator};
pub use device::Device;
pub use error::{BoxError, ClosureFailure, Error, IntoReduceOp, Result};
pub use execution::context::{current_strategy, has_strategy, in_cross_replica_context, in_replica_context};
pub use execution::{Builder, Compilations, StaticShapes, Strategy};
#[cfg(target_os = "linux")]
pub use parameter_server::{ClusterCoordinator, ParameterServerStrategy, RemoteValue, ShardedVariable};
pub use replica::overlap::{Buckets, PendingNest};
pub use replica::{NestAccumulator, ReplicaContext, ReplicaHandle, current_replica};
pub use strategy::{
    CentralStorageStrategy, Destinations, LocalResults, MirroredStrategy, MultiWorkerBuilder,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, ValueContext,
};
pub use value::elements::ElementArray;
pub use value::grains::Grains;
pub use value::indexed_slices::IndexedSlices;
pub use value::nest::{self, Nest};
pub use value::per_replica::{Merged, Mirrored, PerReplica};
pub use value::tensor::Tensor;
pub use variable::{Variable, VariableBuilder, VariableMut};
