//! The standard library's atomics, of which no read is counted: for memory of one process, and for
//! the counts themselves.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
