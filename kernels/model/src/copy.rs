//! Copies, as the model sees them.

use crate::memory;

/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize, _: usize) {
    memory::read(source, bytes);
    memory::write(target, bytes);
    // SAFETY: the caller's promises are the same.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}

pub(crate) use copy as put_up;
pub(crate) use copy as take;

/// What others have read is no slower to write here.
pub(crate) fn fetch_to_write(_: *const u8) {}
