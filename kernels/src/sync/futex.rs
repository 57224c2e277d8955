//! Sleeping until a word changes.

use super::atomics::AtomicU32;
use std::time::Duration;

/// The threads that sleep until a word changes. On Linux the kernel keeps this list, by the word's
/// address.
#[derive(Default)]
pub(crate) struct Sleepers {
    #[cfg(not(target_os = "linux"))]
    lot: (std::sync::Mutex<()>, std::sync::Condvar),
}

#[cfg(target_os = "linux")]
impl Sleepers {
    /// Sleeps while `word` is `seen`, at most for `limit`; may wake early. `shared` says that the
    /// word lies in memory that other processes map.
    pub(crate) fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration, shared: bool) {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let wait = libc::FUTEX_WAIT | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
        // SAFETY: the word and the time live until the call returns. The result is not read: after
        // any return the caller checks its condition again.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, seen, &raw const limit) };
    }

    /// Wakes all threads that sleep on `word`, which has changed.
    pub(crate) fn wake(&self, word: &AtomicU32, shared: bool) {
        let wake = libc::FUTEX_WAKE | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
        // SAFETY: the word lives while it is borrowed; FUTEX_WAKE reads nothing else.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
    }
}

#[cfg(not(target_os = "linux"))]
impl Sleepers {
    /// Sleeps while `word` is `seen`, at most for `limit`; may wake early.
    pub(crate) fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration, _shared: bool) {
        let guard = self.lot.0.lock().unwrap_or_else(|poison| poison.into_inner());
        if word.load(crate::sync::atomics::Ordering::Acquire) == seen {
            drop(self.lot.1.wait_timeout(guard, limit));
        }
    }

    /// Wakes all threads that sleep on `word`, which has changed.
    pub(crate) fn wake(&self, _word: &AtomicU32, _shared: bool) {
        // Once this thread holds the lock, every thread that saw the old value sleeps; none is
        // still about to.
        let _guard = self.lot.0.lock().unwrap_or_else(|poison| poison.into_inner());
        self.lot.1.notify_all();
    }
}
