//! Prefetches of cache lines that are read or written soon.

use super::reduce::{Baseline, LINE, Simd};
#[cfg(target_arch = "x86_64")]
use super::{isa::Isa, reduce::Avx2};

/// Prefetches the cache lines of `bytes` bytes. The addresses need not be valid.
#[inline]
pub(crate) fn fetch(start: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|line| Baseline::prefetch(start.wrapping_add(line)));
}

/// Prefetches, for writing, cache lines that another core has read and this rank writes soon. Does
/// nothing in the baseline instruction set.
#[inline]
pub(crate) fn fetch_to_write(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if Isa::best() != Isa::Baseline {
        (0..bytes).step_by(LINE).for_each(|line| Avx2::prefetch_to_write(start.wrapping_add(line)));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}
