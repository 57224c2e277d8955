//! The standard library's atomics, without counts of reads: for memory of one process, and for the
//! counts themselves.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
