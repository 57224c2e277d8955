//! Asking for cache lines before they are read or written.

use super::reduce::{Baseline, LINE, Simd};
#[cfg(target_arch = "x86_64")]
use super::{isa::Isa, reduce::Avx2};
use crate::memory::HostBuf;

/// Asks for the cache lines of elements, which are read soon.
pub fn fetch_elements(elements: HostBuf<'_>) {
    fetch(elements.as_ptr(), elements.bytes());
}

/// Asks for the cache lines of so many bytes. They need not be valid.
#[inline]
pub(crate) fn fetch(start: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|line| Baseline::prefetch(start.wrapping_add(line)));
}

/// The same, of lines that this rank writes soon and another core has read.
#[inline]
pub(crate) fn fetch_to_write(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if Isa::best() != Isa::Baseline {
        (0..bytes).step_by(LINE).for_each(|line| Avx2::prefetch_to_write(start.wrapping_add(line)));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}
