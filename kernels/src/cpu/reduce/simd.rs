//! What kernels ask of an instruction set beyond what the compiler makes of plain loops.

use crate::cpu::half;
#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::*};

/// An instruction set as a type.
///
/// # Safety of the methods
/// They may be called where the machine has the instruction set, and inline into a function that is
/// compiled for it.
pub(crate) trait Simd {
    /// `L` elements of `f16` as `f32`.
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

    /// `L` elements of `f32`, rounded to `f16`.
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

    /// Writes past the caches, where the instruction set can.
    ///
    /// # Safety
    /// The machine has the instruction set; `target` is valid for writes of a tile and aligned to
    /// 64 bytes or, for smaller tiles, to the tile.
    unsafe fn stream<T: Copy, const L: usize>(target: *mut T, tile: [T; L]);

    /// Asks for the cache line of an address, which need not be valid.
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

    /// Asks for the cache line of an address, which need not be valid, as one that is written soon.
    #[inline(always)]
    fn prefetch_to_write(_: *const u8) {}

    /// Makes what was [streamed](Simd::stream) visible before what this thread writes next.
    #[inline(always)]
    fn fence() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every `x86_64` has SSE.
        unsafe {
            _mm_sfence()
        }
    }
}

/// The baseline in tiles too small to be written past the caches.
pub(crate) struct Small;
pub(crate) struct Baseline;
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx512;

/// A tile written by the non-temporal stores of one register width.
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

/// Asks for a line by an instruction that processors have from here on, or do nothing when they
/// meet it.
#[cfg(target_arch = "x86_64")]
macro_rules! prefetch_to_write {
    () => {
        #[inline(always)]
        fn prefetch_to_write(address: *const u8) {
            // SAFETY: it changes nothing that a program can see, and does not fault.
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
        // SAFETY: the caller vouches for the target. Stable Rust has no store past the caches here.
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
