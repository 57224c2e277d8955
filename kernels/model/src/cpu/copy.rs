//! Copies, as the model sees them.

use super::cache_hints::CopySize;
use crate::watched;

/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize, _: CopySize) {
    watched::read(source, bytes);
    watched::write(target, bytes);
    // SAFETY: the caller's promises are the same.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}

/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_in(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize, _: bool) {
    // SAFETY: the caller's promises are the same.
    unsafe { copy(source, target, bytes, volume) }
}

pub(crate) use copy as take;
