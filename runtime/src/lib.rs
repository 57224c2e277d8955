//! `tf.distribute`'s strategies, replica contexts and collectives, with no tensor framework under
//! them.
//!
//! A [strategy](Strategy) runs one function on every replica and combines what comes back:
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
//!   process; [`MultiWorkerMirroredStrategy`]: in several. [`Strategy`] has what they share.
//! * [`ReplicaContext`]: a replica's collectives, on any [nest](Nest) of [tensors](Tensor).
//! * [`Dataset`]: what replicas are fed with, batch by batch.
//! * [`Variable`]: what is trained, placed by the strategy; saved and restored by `checkpoint`.
//! * [`gradient`]: what a gradient goes through on the way back.
//! * [`Communicator`]: the raw layer below, MPI's collectives on slices.
//! * The [guide]: a page for each theme.
//!
//! # The same bits everywhere
//!
//! The contributions of replicas `0..n` are combined by a balanced binary tree, whatever the size,
//! the number of threads, the packing, the [`Implementation`] and the instruction set:
//! `((x0 ⊕ x1) ⊕ (x2 ⊕ x3)) ⊕ x4`. f16 and bf16 are summed in f32 and rounded once.
//!
//! # No unbounded wait
//!
//! Replicas compare their calls before any data moves. One that calls something else, returns
//! early, fails or panics gives every other an [`Error`] that names it, at once; one that does not
//! come is named at the deadline ([`CommunicationOptions::timeout`]). A failed run does not harm
//! the next.

#![forbid(unsafe_code)]

/// The programs of the README run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

// The derive macro writes paths that begin so, in this crate's own tests and examples too.
extern crate self as consonance;

mod error;
mod panics;
mod device;
mod value;
mod comm;
pub mod cluster;
mod handle;
mod replica;
mod strategy;
mod variable;
pub mod dataset;
pub mod gradient;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
pub mod raw;
pub mod guide;

pub use value::axis::{Axes, Axis};

#[cfg(target_os = "linux")]
pub use cluster::process_group::{ProcessGroup, ProcessGroupBuilder};
pub use cluster::{
    ClusterResolver, ClusterSpec, SimpleClusterResolver, SlurmClusterResolver, TfConfigClusterResolver, UnionResolver,
};
pub use comm::async_scope::{Pending, Scope};
pub use comm::communicator::Communicator;
pub use comm::options::{CommunicationOptions, Implementation};
pub use comm::shared_memory::SharedMemory;
pub use consonance_derive::Nest;
pub use consonance_spec::{
    DType, Element, ReduceOp, UnknownReduceOp, VariableAggregation, VariableSynchronization, World, bf16, f16,
};
pub use dataset::{Dataset, DistributedDataset, DistributedIterator};
pub use device::Device;
pub use error::{BoxError, Error, IntoReduceOp, Result};
pub use handle::context::{current_strategy, has_strategy, in_cross_replica_context, in_replica_context};
pub use handle::{Builder, Strategy};
pub use replica::ReplicaContext;
pub use replica::overlap::{Buckets, PendingNest};
pub use strategy::{
    CentralStorageStrategy, Destinations, LocalResults, MirroredStrategy, MultiWorkerBuilder,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, ValueContext,
};
pub use value::indexed_slices::IndexedSlices;
pub use value::nest::{self, Nest};
pub use value::per_replica::{Merged, Mirrored, PerReplica};
pub use value::tensor::Tensor;
pub use variable::{Variable, VariableBuilder, VariableMut};
