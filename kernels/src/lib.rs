//! Everything of Consonance that needs the machine: buffers, reductions, threads that are kept, memory that ranks share.
//!
//! All unsafe code of the workspace is here; what is exported is safe to call.
mod pages;
pub mod buffer;
pub mod file;
pub mod isa;
mod half;
pub mod reduce;
pub mod axis;
mod flow;
mod copy;
pub mod read;
mod remote;
mod atomics;
mod futex;
mod wait;
mod trade;
mod line;
mod hub;
pub mod ring;
#[cfg_attr(not(target_os = "linux"), path = "segment/none.rs")]
pub mod segment;
pub mod step;
mod shared;
pub mod plan;
pub mod phase;
mod stage;
mod direct;
mod alloc;
pub mod team;
#[cfg(target_os = "linux")]
pub mod rendezvous;
