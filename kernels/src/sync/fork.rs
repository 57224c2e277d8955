//! Whether this process is a child, made by `fork`, of the process that made a value.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

/// How many forks lie between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Remembers the process that made it.
///
/// ```
/// use consonance_kernels::sync::fork::Origin;
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
