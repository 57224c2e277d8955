//! The driver's objects with their owners, lifetimes and bounds.
//!
//! Memory that is dropped while the device may still use it is *retired*: its [`Context`] keeps it
//! until no stream of the context has work left, and frees it then. The driver frees memory only
//! after all work of the context, so that freeing it earlier would wait for as long as the work
//! takes.
//! **Invariant:** the owner of a retired thing is gone, so that no later work can use it.

mod absence;
mod driver;
mod failure;
mod context;
mod address;
mod memory;
mod module;
mod launch;
mod stream;
mod kernels;
mod operands;
mod fold;
mod gpu;
mod caller;
mod along;
mod elements;

pub use absence::Absent;
pub use address::Found;
pub use caller::CallerStream;
pub use context::Context;
pub use driver::{Device, Driver, INTERPRETER, Uuid};
pub use failure::{Failure, LoadError};
pub use fold::Fold;
pub use gpu::Gpu;
pub use kernels::{Compiled, Kernels};
pub use launch::Access;
pub use memory::{DeviceMemory, DeviceSlice, PinnedMemory};
pub use module::{Function, Module};
pub use stream::{Event, InFlight, Stream};
