//! What the protocol asks of the machine besides memory and sleep, from one module, so that a model checker can take its
//! place: `kernels/model` does.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::{
    sync::{Mutex, MutexGuard},
    thread::{available_parallelism, yield_now},
};
