//! The atomics of the protocol, from one module, so that a model checker can take their place.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
