//! Copies between buffers that ranks share. With the reducer, this is all that touches them.

#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

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

/// Asks for the cache line of an address, which this rank writes soon and another core has read. The address need not be valid.
pub(crate) fn fetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // Processors that have AVX2 have this instruction, or do nothing when they meet it.
    if Isa::best() != Isa::Baseline {
        // SAFETY: it changes nothing that a program can see, and does not fault.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
