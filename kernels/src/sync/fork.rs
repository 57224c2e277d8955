//! Whether this process is a child, made by `fork`, of the process that made a value; and values
//! that each process makes for itself.

use std::{
    ptr,
    sync::{
        Once,
        atomic::{AtomicPtr, AtomicU64, Ordering},
    },
};

/// The number of forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Remembers the process that made it.
///
/// ```
/// # mod consonance { pub mod raw { pub use consonance_kernels::sync::fork::Origin; } }
/// use consonance::raw::Origin;
/// assert!(!Origin::here().forked());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Origin(u64);

impl Origin {
    /// Returns the origin of values that this process makes.
    pub fn here() -> Origin {
        static REGISTERED: Once = Once::new();
        extern "C" fn count() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the function only adds to a word. If the system has no memory to remember it,
        // forks are not noticed here, and a lock that was held is waited for.
        REGISTERED.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(count)) });
        Origin(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a fork of the origin. Costs one load.
    #[inline]
    pub fn forked(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }
}

/// A value that each process makes for itself when it first asks for it. A fork makes a new one,
/// since a thread that the fork does not have may have held a lock of the old one.
pub(crate) struct PerProcess<T> {
    /// Null, or the address of a value that lives as long as the process.
    made: AtomicPtr<(Origin, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess { made: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// Returns the value of this process. Costs two loads once there is one.
    pub(crate) fn get(&self) -> &'static T {
        let seen = self.made.load(Ordering::Acquire);
        // SAFETY: the word is null or the address of a value that was leaked below, before the
        // address was stored.
        if let Some((origin, value)) = unsafe { seen.as_ref() }
            && !origin.forked()
        {
            return value;
        }
        let new = Box::into_raw(Box::new((Origin::here(), (self.make)())));
        match self.made.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the value was stored, so nobody frees it.
            Ok(_) => unsafe { &(*new).1 },
            // SAFETY: another thread of this process has stored its value, as above. This one was
            // seen by nobody.
            Err(other) => unsafe {
                drop(Box::from_raw(new));
                &(*other).1
            },
        }
    }
}
