//! Everything of Consonance that needs the machine: buffers, reductions, threads that are kept,
//! memory that ranks share.
//!
//! All unsafe code of the workspace is here; what is exported is safe to call.
#[macro_use]
pub mod sync;
pub mod memory;
pub mod cpu;
pub mod os;
pub mod shm;
pub mod group;
#[cfg(target_os = "linux")]
pub mod bootstrap;
