//! Whole strategies whose values lie in the memory of a device.

mod calls;
mod driver;
mod gpu;
mod host_copies;
mod pretended;
mod profiles;
mod streams;
mod variables;
mod workers;
