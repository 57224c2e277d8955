//! The atomics, locks and thread calls that the protocol uses, from one module, so that a model
//! checker can replace them: `kernels/model` does.

#[cfg(not(debug_assertions))]
pub(crate) use super::plain::{AtomicPtr, AtomicU32, AtomicU64};
pub(crate) use super::plain::{Ordering, fence};
#[cfg(debug_assertions)]
pub(crate) use counted::{AtomicPtr, AtomicU32, AtomicU64};
pub(crate) use std::{
    sync::{Mutex, MutexGuard},
    thread::{available_parallelism, yield_now},
};

/// The standard library's atomics; `watch.rs` counts each read of them.
#[cfg(debug_assertions)]
mod counted {
    use crate::sync::{
        plain::{self, Ordering},
        watch,
    };
    use std::ops::Deref;

    macro_rules! counted {
        ($($name:ident $type:ty),*) => {$(
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name(plain::$name);

            impl Deref for $name {
                type Target = plain::$name;

                #[inline]
                fn deref(&self) -> &plain::$name {
                    watch::read(self.0.as_ptr().cast(), size_of::<$type>());
                    &self.0
                }
            }

            impl $name {
                #[inline]
                pub(crate) const fn new(value: $type) -> $name {
                    $name(plain::$name::new(value))
                }

                /// Not counted: the only operation that reads nothing.
                #[inline]
                pub(crate) fn store(&self, value: $type, order: Ordering) {
                    self.0.store(value, order);
                }
            }
        )*};
    }

    counted!(AtomicU32 u32, AtomicU64 u64);

    #[repr(transparent)]
    pub(crate) struct AtomicPtr<T>(plain::AtomicPtr<T>);

    impl<T> Default for AtomicPtr<T> {
        fn default() -> Self {
            AtomicPtr(plain::AtomicPtr::default())
        }
    }

    impl<T> AtomicPtr<T> {
        #[inline]
        pub(crate) fn load(&self, order: Ordering) -> *mut T {
            watch::read(self.0.as_ptr().cast(), size_of::<*mut T>());
            self.0.load(order)
        }

        #[inline]
        pub(crate) fn store(&self, value: *mut T, order: Ordering) {
            self.0.store(value, order);
        }
    }
}
