//! What the system has besides memory that processes share: files, threads, other processes.

pub mod mapped_file;
pub mod thread_pool;
pub(crate) mod available;
pub(crate) mod process_memory;
#[cfg(target_os = "linux")]
pub mod process_state;
