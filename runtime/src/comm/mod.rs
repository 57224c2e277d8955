//! The raw layer: collectives on slices. Each is a call that an engine executes.

pub(crate) mod options;
pub(crate) mod call;
pub(crate) mod agreement;
pub(crate) mod report;
pub(crate) mod promise;
pub(crate) mod kept_thread;
pub(crate) mod request;
pub(crate) mod mailbox;
pub(crate) mod tagged_messages;
pub(crate) mod engine;
mod observation;
mod on_devices;
pub(crate) mod communicator;
mod slices;
pub(crate) mod accumulator;
pub(crate) mod leaf_reductions;
pub(crate) mod exact;
mod bytes;
#[cfg(feature = "serde")]
mod objects;
mod disagreement;
pub(crate) mod shared_memory;
mod progress;
pub(crate) mod queue;
pub(crate) mod pending;
pub(crate) mod async_scope;
