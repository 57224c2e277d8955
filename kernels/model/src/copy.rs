//! Copies, as the model sees them.

use crate::{flow::Volume, memory};

/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize, _: Volume) {
    memory::read(source, bytes);
    memory::write(target, bytes);
    // SAFETY: the caller's promises are the same.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}

/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn put_up(source: *const u8, target: *mut u8, bytes: usize, volume: Volume, _: bool) {
    // SAFETY: the caller's promises are the same.
    unsafe { copy(source, target, bytes, volume) }
}

pub(crate) use copy as take;

/// What others write is no slower to read here.
pub(crate) fn fetch(_: *const u8, _: usize) {}

/// What others have read is no slower to write here.
pub(crate) fn fetch_to_write(_: *const u8, _: usize) {}
