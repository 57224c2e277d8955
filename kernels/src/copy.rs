//! Copies between buffers that ranks share.

/// Copies `bytes` bytes.
///
/// The C library's `memcpy` already stores past the caches from about the size of the last one on; our own stores from a
/// smaller size were not faster on any size that was measured.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promises are the same.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}
