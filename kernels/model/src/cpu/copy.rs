//! The model of copies, which records each as a read and a write.

use super::cache_hints::CopySize;
use crate::watched_memory;

/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize, _: CopySize) {
    watched_memory::read(source, bytes);
    watched_memory::write(target, bytes);
    // SAFETY: the caller ensures the same conditions.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}

/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_in(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize, _: bool) {
    // SAFETY: the caller ensures the same conditions.
    unsafe { copy(source, target, bytes, volume) }
}

/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_private(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller ensures the same conditions.
    unsafe { copy(source, target, bytes, CopySize::Near) }
}

pub(crate) use copy as take;
