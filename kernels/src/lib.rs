//! Everything of Consonance that needs the machine: buffers, reductions, threads that are kept, memory that ranks share.
//!
//! All unsafe code of the workspace is here; what is exported is safe to call.
pub mod buffer;
pub mod file;
pub mod isa;
mod half;
pub mod reduce;
pub mod axis;
mod copy;
mod atomics;
mod wait;
mod line;
mod hub;
#[cfg_attr(not(test), allow(dead_code, reason = "the seats of processes, which use it, come next"))]
pub mod ring;
#[cfg(target_os = "linux")]
#[cfg_attr(not(test), allow(dead_code, reason = "the seats of processes, which use it, come next"))]
pub mod segment;
pub mod step;
pub mod phase;
pub mod team;
