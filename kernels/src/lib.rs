//! The parts of Consonance that need the machine: buffers, reductions, thread pools, memory that
//! ranks share.
//!
//! All unsafe code of the workspace is here, but that of the bindings and of the driver for tests.
//! Exported functions are safe to call, except constructors of buffers for them
//! ([`memory::Buf::from_raw`], [`memory::BufMut::from_raw`], [`memory::HostMemory::foreign`],
//! [`memory::DeviceMemory::new`]) and [`cuda::Stream::launch`].
#[macro_use]
pub mod sync;
pub mod digest;
pub mod tuning;
pub mod memory;
pub mod cpu;
pub mod os;
pub mod cuda;
#[cfg(target_os = "linux")]
pub mod wire;
pub mod shm;
pub mod group;
#[cfg(target_os = "linux")]
pub mod bootstrap;
#[cfg(target_os = "linux")]
pub mod hosts;
