//! Memory that checks its accesses.

mod region;
mod shadow;
mod device;

pub use device::Memory;
pub(crate) use region::{Refusal, Region};
pub(crate) use shadow::{Event, Events, Shadow, Stamp};
