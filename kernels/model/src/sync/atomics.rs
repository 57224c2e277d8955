//! The items of `crate::sync::atomics` that the protocol uses, on the model checker's atomics. Each
//! operation first checks whether a fault is planted at its call.
//!
//! Operations of a rank that has died, and operations after a failure that ended the model, do
//! nothing: they may be called while the stack unwinds.

use crate::fault;
pub(crate) use loom::thread::yield_now;
pub(crate) use std::sync::atomic::Ordering;
use std::{
    cell::UnsafeCell,
    io,
    num::NonZeroUsize,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::LockResult,
};

macro_rules! integers {
    ($($name:ident $type:ty),*) => {$(
        #[derive(Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "not every type needs each operation")]
        impl $name {
            pub(crate) fn new(value: $type) -> $name {
                $name(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $type {
                let Some(fault) = fault::at(Location::caller()) else { return 0 };
                self.0.load(fault.order(order)).wrapping_add(fault.offset() as $type)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $type, order: Ordering) {
                let Some(fault) = fault::at(Location::caller()) else { return };
                self.0.store(value.wrapping_add(fault.offset() as $type), fault.order(order))
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $type, order: Ordering) -> $type {
                let Some(fault) = fault::at(Location::caller()) else { return 0 };
                self.0.swap(value, fault.order(order))
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $type, order: Ordering) -> $type {
                let Some(fault) = fault::at(Location::caller()) else { return 0 };
                self.0.fetch_add(value.wrapping_add(fault.offset() as $type), fault.order(order))
            }

            #[track_caller]
            pub(crate) fn fetch_sub(&self, value: $type, order: Ordering) -> $type {
                let Some(fault) = fault::at(Location::caller()) else { return 0 };
                self.0.fetch_sub(value.wrapping_add(fault.offset() as $type), fault.order(order))
            }

            #[track_caller]
            pub(crate) fn fetch_max(&self, value: $type, order: Ordering) -> $type {
                let Some(fault) = fault::at(Location::caller()) else { return 0 };
                self.0.fetch_max(value.wrapping_add(fault.offset() as $type), fault.order(order))
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                let Some(fault) = fault::at(Location::caller()) else { return Ok(current) };
                self.0.compare_exchange(current, new, fault.order(success), fault.order(failure))
            }
        }
    )*};
}

integers!(AtomicU32 u32, AtomicU64 u64);

pub(crate) struct AtomicPtr<T>(loom::sync::atomic::AtomicPtr<T>);

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        AtomicPtr(loom::sync::atomic::AtomicPtr::default())
    }
}

impl<T> AtomicPtr<T> {
    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        let Some(fault) = fault::at(Location::caller()) else { return std::ptr::null_mut() };
        self.0.load(fault.order(order))
    }

    #[track_caller]
    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        let Some(fault) = fault::at(Location::caller()) else { return };
        self.0.store(value, fault.order(order))
    }
}

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    match fault::at(Location::caller()) {
        Some(fault) if fault.order(order) != Ordering::Relaxed => loom::sync::atomic::fence(order),
        _ => {}
    }
}

/// Fails, so that no rank spins before it sleeps: each spin would be one more step of the model.
pub(crate) fn available_parallelism() -> io::Result<NonZeroUsize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A lock that can be dropped after a failure, unlike the model checker's lock.
#[derive(Default)]
pub(crate) struct Mutex<T> {
    lock: loom::sync::Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock accesses the value.
unsafe impl<T: Send> Sync for Mutex<T> {}

pub(crate) struct MutexGuard<'a, T> {
    guard: Option<loom::sync::MutexGuard<'a, ()>>,
    value: &'a UnsafeCell<T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex { lock: loom::sync::Mutex::new(()), value: UnsafeCell::new(value) }
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let guard = fault::at(Location::caller()).map(|_| self.lock.lock().expect("no poison"));
        Ok(MutexGuard { guard, value: &self.value })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held, or this is the only thread that still runs.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if fault::over() {
            std::mem::forget(self.guard.take());
        }
    }
}
