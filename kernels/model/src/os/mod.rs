//! The model's operating system.

pub(crate) mod available;
pub(crate) mod clock;
pub(crate) mod process_memory;
