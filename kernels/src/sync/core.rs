//! The core on which a thread runs.

/// Returns the number of the core on which this thread runs plus 1, or 0 if the system does not
/// tell. It may have moved since. The C library reads a word of the thread, without a system call.
#[cfg(target_os = "linux")]
pub(crate) fn current() -> u32 {
    // SAFETY: the call takes no argument and accesses no memory of this program.
    let core = unsafe { libc::sched_getcpu() };
    u32::try_from(core).map_or(0, |core| core.saturating_add(1))
}

/// Returns 0: the system does not tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn current() -> u32 {
    0
}
