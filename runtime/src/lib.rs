//! `tf.distribute`'s strategies, replica contexts and collectives, with no tensor framework under them.
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
//! * [`MirroredStrategy`], [`OneDeviceStrategy`], [`CentralStorageStrategy`]: replicas in one process;
//!   [`MultiWorkerMirroredStrategy`]: in several. [`Strategy`] has what they share.
//! * [`ReplicaContext`]: a replica's collectives, on any [nest](Nest) of [tensors](Tensor).
//! * [`Dataset`]: what replicas are fed with, batch by batch.
//! * [`Variable`]: what is trained, placed by the strategy; saved and restored by `checkpoint`.
//! * [`gradient`]: what a gradient goes through on the way back.
//! * [`Communicator`]: the raw layer below, MPI's collectives on slices.
//! * The [guide]: a page for each theme.
//!
//! # The same bits everywhere
//!
//! The contributions of replicas `0..n` are combined by a balanced binary tree, whatever the size, the number of threads, the
//! packing, the [`Implementation`] and the instruction set: `((x0 ⊕ x1) ⊕ (x2 ⊕ x3)) ⊕ x4`. f16 and bf16 are summed in f32 and
//! rounded once.
//!
//! # No unbounded wait
//!
//! Replicas compare their calls before any data moves. One that calls something else, returns early, fails or panics gives
//! every other an [`Error`] that names it, at once; one that does not come is named at the deadline
//! ([`CommunicationOptions::timeout`]). A failed run does not harm the next.

#![forbid(unsafe_code)]

/// The programs of the README run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

// The derive macro writes paths that begin so, in this crate's own tests and examples too.
extern crate self as consonance;

mod error;
mod device;
mod options;
mod tensor;
mod sparse;
mod axis;
pub mod nest;
mod values;
mod context;
mod strategy;
mod replica;
mod session;
mod buckets;
mod carrier;
pub mod gradient;
mod variable;
pub mod dataset;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
pub mod cluster;
pub mod guide;
mod communicator;
mod scope;
#[cfg(target_os = "linux")]
mod process_group;
mod call;
mod backend;
mod algorithm;

pub use axis::{Axes, Axis};
pub use backend::Implementation;
pub use buckets::{Buckets, PendingNest};
pub use cluster::{
    ClusterResolver, ClusterSpec, SimpleClusterResolver, SlurmClusterResolver, TfConfigClusterResolver, UnionResolver,
};
pub use communicator::{Communicator, SharedMemory};
pub use consonance_derive::Nest;
pub use consonance_spec::{
    DType, Element, ReduceOp, UnknownReduceOp, VariableAggregation, VariableSynchronization, World, bf16, f16,
};
pub use context::{current_strategy, has_strategy, in_cross_replica_context, in_replica_context};
pub use dataset::{Dataset, DistributedDataset, DistributedIterator};
pub use device::Device;
pub use error::{BoxError, Error, IntoReduceOp, Result};
pub use nest::Nest;
pub use options::CommunicationOptions;
#[cfg(target_os = "linux")]
pub use process_group::{ProcessGroup, ProcessGroupBuilder};
pub use replica::ReplicaContext;
pub use scope::{Pending, Scope};
pub use sparse::IndexedSlices;
pub use strategy::{
    Builder, CentralStorageStrategy, Destinations, LocalResults, MirroredStrategy, MultiWorkerBuilder,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, Strategy, ValueContext,
};
pub use tensor::Tensor;
pub use values::{Merged, Mirrored, PerReplica};
pub use variable::{Variable, VariableBuilder, VariableMut};
