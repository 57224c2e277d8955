//! The clock that all processes of this host share.

use std::time::Duration;

/// Returns the time since some moment that is the same for all processes of this host: the system's
/// monotonic clock.
///
/// ```
/// use consonance_kernels::os::clock;
/// let begin = clock::now();
/// assert!(clock::now() >= begin);
/// ```
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes. Every system has this clock, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
