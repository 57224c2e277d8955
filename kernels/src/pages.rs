//! Pages of memory.

use std::ptr::NonNull;

/// Bytes of a huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Asks the system to make so many huge pages present as such, each at its first touch, which takes less time than to make its 512
/// small ones present. What they have in them stays. A system that knows none, or has none left, takes small ones.
///
/// # Safety
/// The pages are memory of the caller's.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn prefer_huge(start: NonNull<u8>, count: usize) {
    // SAFETY: the caller vouches for the pages. What is asked for is speed, so that an error is none.
    let _ =
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), count * HUGE_BYTES, rustix::mm::Advice::LinuxHugepage) };
}

/// # Safety
/// The pages are memory of the caller's.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn prefer_huge(_: NonNull<u8>, _: usize) {}
