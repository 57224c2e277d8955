//! Copies between buffers that ranks share. With the reducer, this is all that touches them.

/// Copies `bytes` bytes.
///
/// By the C library's `memcpy`, which stores past the caches from about the size of the last one on.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promises are the same.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}
