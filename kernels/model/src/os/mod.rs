//! What the model has of a system.

pub(crate) mod available;
pub(crate) mod process_memory;
