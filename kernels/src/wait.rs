//! Waiting: a short spin, then sleep on a bell until somebody rings it.
//!
//! A bell counts its rings. A sleeper reads the count, looks once more at what it waits for, and sleeps only while the count
//! has not changed; so a ring between the look and the sleep is not lost.

use crate::atomics::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a rank looks at a peer's line before it sleeps: a few cache-line trips, and less than a sleep costs.
const SPIN: Duration = Duration::from_micros(4);

/// Looks between two readings of the clock, which costs as much as several looks.
const LOOKS_PER_READING: u32 = 32;

/// Looks until `ready`, for [`SPIN`] at the most; false if it never was.
pub(crate) fn spin(ready: &impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS_PER_READING {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= SPIN {
            return false;
        }
    }
}

/// Where one rank sleeps and all others can wake it: each of its threads that waits in a group of its own.
///
/// What is `shared` with other processes lies in memory that they map, too.
#[derive(Default)]
pub(crate) struct Bell {
    rings: AtomicU32,
    #[cfg(not(target_os = "linux"))]
    sleeper: (std::sync::Mutex<()>, std::sync::Condvar),
}

impl Bell {
    /// The number of rings so far, wrapping.
    pub(crate) fn rings(&self) -> u32 {
        self.rings.load(Ordering::Acquire)
    }

    /// Wakes the sleeper, and keeps one that is about to sleep awake.
    #[cfg(target_os = "linux")]
    pub(crate) fn ring(&self, shared: bool) {
        self.rings.fetch_add(1, Ordering::Release);
        let wake = libc::FUTEX_WAKE | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
        // SAFETY: the word lives while `self` does; FUTEX_WAKE reads nothing else.
        unsafe { libc::syscall(libc::SYS_futex, self.rings.as_ptr(), wake, i32::MAX) };
    }

    /// Sleeps until a ring later than `seen`, or `limit`; may wake early.
    #[cfg(target_os = "linux")]
    pub(crate) fn sleep(&self, seen: u32, limit: Duration, shared: bool) {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let wait = libc::FUTEX_WAIT | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
        // SAFETY: the word and the time live until the call returns. Any return means: look again.
        unsafe { libc::syscall(libc::SYS_futex, self.rings.as_ptr(), wait, seen, &raw const limit) };
    }

    /// Wakes the sleeper, and keeps one that is about to sleep awake.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn ring(&self, _shared: bool) {
        let _guard = self.sleeper.0.lock().unwrap_or_else(|poison| poison.into_inner());
        self.rings.fetch_add(1, Ordering::Release);
        self.sleeper.1.notify_all();
    }

    /// Sleeps until a ring later than `seen`, or `limit`; may wake early.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sleep(&self, seen: u32, limit: Duration, _shared: bool) {
        let guard = self.sleeper.0.lock().unwrap_or_else(|poison| poison.into_inner());
        if self.rings() == seen {
            drop(self.sleeper.1.wait_timeout(guard, limit));
        }
    }
}
