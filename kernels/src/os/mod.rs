//! Services of the operating system except shared memory: files, threads, clocks, other processes.

#[cfg(target_os = "linux")]
pub mod addresses;
pub mod clock;
pub mod clock_comparison;
pub mod gate;
pub mod mapped_file;
pub mod record_file;
pub mod thread_pool;
pub mod available;
pub(crate) mod process_memory;
#[cfg(target_os = "linux")]
pub(crate) mod robust_list;
#[cfg(target_os = "linux")]
pub mod process_state;
#[cfg(target_os = "linux")]
pub mod tap;
pub mod launcher;
