//! Operations of an instruction set that the compiler does not make of plain loops.

use crate::cpu::half;
#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::*};

/// An instruction set as a type.
///
/// # Safety of the methods
/// They may be called where the machine has the instruction set. They are inlined into a function
/// that is compiled for it.
pub(crate) trait Simd {
    /// Widens `L` elements of `f16` to `f32`.
    ///
    /// # Safety
    /// The machine has the instruction set; `source` is valid for reads of `L` elements, of any
    /// alignment.
    #[inline(always)]
    unsafe fn widen_f16<const L: usize>(source: *const u16) -> [f32; L] {
        // SAFETY: the caller vouches for `L` elements.
        let source = unsafe { source.cast::<[u16; L]>().read_unaligned() };
        let mut tile = [0.0; L];
        for lane in 0..L {
            tile[lane] = half::widen_f16(source[lane]);
        }
        tile
    }

    /// Rounds `L` elements of `f32` to `f16`.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn narrow_f16<const L: usize>(tile: [f32; L]) -> [u16; L] {
        let mut narrow = [0; L];
        for lane in 0..L {
            narrow[lane] = half::narrow_f16(tile[lane]);
        }
        narrow
    }

    /// Writes a tile past the caches, if the instruction set has such stores.
    ///
    /// # Safety
    /// The machine has the instruction set; `target` is valid for writes of a tile and aligned to
    /// 64 bytes or, for smaller tiles, to the tile.
    unsafe fn stream<T: Copy, const L: usize>(target: *mut T, tile: [T; L]);

    /// Prefetches the cache line of an address, which need not be valid.
    #[inline(always)]
    fn prefetch(address: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every `x86_64` has SSE, and a prefetch does not fault.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address.cast())
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }

    /// Prefetches the cache line of an address, which need not be valid, for writing. By default
    /// does nothing.
    #[inline(always)]
    fn prefetch_to_write(_: *const u8) {}

    /// Makes [streamed](Simd::stream) tiles visible before anything that this thread writes next.
    #[inline(always)]
    fn fence() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every `x86_64` has SSE.
        unsafe {
            _mm_sfence()
        }
    }
}

/// The baseline, for tiles too small to be written past the caches.
pub(crate) struct Small;
pub(crate) struct Baseline;
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx512;

/// Implements `stream` by the non-temporal stores of one register width.
#[cfg(target_arch = "x86_64")]
macro_rules! stream {
    ($register:ty, $store:ident) => {
        #[inline(always)]
        unsafe fn stream<T: Copy, const L: usize>(target: *mut T, tile: [T; L]) {
            const { assert!(size_of::<[T; L]>().is_multiple_of(size_of::<$register>())) };
            for at in 0..size_of::<[T; L]>() / size_of::<$register>() {
                // SAFETY: the registers cover the tile; the caller vouches for the target, its
                // alignment and the machine.
                unsafe {
                    let part = tile.as_ptr().cast::<$register>().add(at).read_unaligned();
                    $store(target.cast::<$register>().add(at), part);
                }
            }
        }
    };
}

/// Implements `prefetch_to_write` by the instruction `prefetchw`. Every processor from AVX2 on has
/// it, or executes it as a no-op.
#[cfg(target_arch = "x86_64")]
macro_rules! prefetch_to_write {
    () => {
        #[inline(always)]
        fn prefetch_to_write(address: *const u8) {
            // SAFETY: the instruction changes nothing that a program can see, and does not fault.
            unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
        }
    };
}

impl Simd for Small {
    #[inline(always)]
    unsafe fn stream<T: Copy, const L: usize>(target: *mut T, tile: [T; L]) {
        // SAFETY: the caller vouches for the target.
        unsafe { target.cast::<[T; L]>().write_unaligned(tile) }
    }
}

impl Simd for Baseline {
    #[cfg(target_arch = "x86_64")]
    stream!(__m128i, _mm_stream_si128);

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream<T: Copy, const L: usize>(target: *mut T, tile: [T; L]) {
        // SAFETY: the caller vouches for the target. Stable Rust has no store past the caches for
        // this architecture.
        unsafe { target.cast::<[T; L]>().write_unaligned(tile) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    #[inline(always)]
    unsafe fn widen_f16<const L: usize>(source: *const u16) -> [f32; L] {
        // SAFETY: the caller vouches for the elements and the machine; tiles are multiples of 8.
        unsafe { half::widen_f16c(source) }
    }

    #[inline(always)]
    unsafe fn narrow_f16<const L: usize>(tile: [f32; L]) -> [u16; L] {
        // SAFETY: as above.
        unsafe { half::narrow_f16c(tile) }
    }

    prefetch_to_write!();
    stream!(__m256i, _mm256_stream_si256);
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx512 {
    #[inline(always)]
    unsafe fn widen_f16<const L: usize>(source: *const u16) -> [f32; L] {
        // SAFETY: the caller vouches for the elements and the machine; tiles are multiples of 16.
        unsafe { half::widen_f16_avx512(source) }
    }

    #[inline(always)]
    unsafe fn narrow_f16<const L: usize>(tile: [f32; L]) -> [u16; L] {
        // SAFETY: as above.
        unsafe { half::narrow_f16_avx512(tile) }
    }

    prefetch_to_write!();
    stream!(__m512i, _mm512_stream_si512);
}
