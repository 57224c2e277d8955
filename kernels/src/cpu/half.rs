//! Conversions between `f32` and the bits of `f16` and `bf16`, of single elements and of whole
//! tiles. To `f32` they are exact. From `f32` they round to the nearest, ties to even.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::hint::select_unpredictable;

/// Returns the value of an `f16`.
///
/// The bits are shifted to their place in an `f32`, where the exponent has the wrong bias. One
/// multiplication corrects the bias exactly, for subnormal numbers too. There is no branch, so the
/// compiler can vectorize a loop of conversions.
#[inline(always)]
pub(crate) fn widen_f16(half: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + (127 - 15)) << 23);
    let magnitude = (half as u32 & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    // The largest exponent means infinity and NaN in both formats.
    let bits = if magnitude >= 0x7c00 << 13 { finite | 0xff << 23 } else { finite };
    f32::from_bits(bits | (half as u32 & 0x8000) << 16)
}

/// Returns the nearest `f16`.
#[inline(always)]
pub(crate) fn narrow_f16(value: f32) -> u16 {
    const INFINITE: u32 = (127 + 16) << 23;
    const NORMAL: u32 = (127 - 14) << 23;
    // The sum of this and a number below `NORMAL` has the bits of a subnormal `f16`, rounded by the
    // addition.
    const ALIGN: f32 = f32::from_bits((127 - 1) << 23);
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let subnormal = (f32::from_bits(magnitude) + ALIGN).to_bits().wrapping_sub(ALIGN.to_bits());
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let special = if magnitude > 0xff << 23 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let bits = if magnitude >= INFINITE { special } else { finite };
    (bits | value.to_bits() >> 16 & 0x8000) as u16
}

/// Returns the nearest `bf16` in the upper half of the word. The lower half is not cleared.
#[inline(always)]
pub(crate) fn round_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN is made quiet, so that it stays a NaN without its lower half. In the baseline an `if`
    // would compile to a branch for each lane.
    select_unpredictable(value.is_nan(), bits | 0x0040_0000, nearest)
}

/// Maps the bits of a half-precision float to an integer that has the float's order, with -0 below
/// +0. The function is its own inverse.
#[inline(always)]
pub(crate) const fn order(bits: i16) -> i16 {
    bits ^ (bits >> 15 & 0x7fff)
}

/// Converts `L` elements as [`widen_f16`] does, eight at a time.
///
/// # Safety
/// `source` is valid for reads of `L` elements; the machine has F16C; `L` is a multiple of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn widen_f16c<const L: usize>(source: *const u16) -> [f32; L] {
    let mut tile = [0.0f32; L];
    for at in (0..L).step_by(8) {
        // SAFETY: `at + 8 <= L`, so both groups of eight are in bounds; neither access needs
        // alignment; the caller vouches for F16C.
        unsafe {
            let half = _mm_loadu_si128(source.add(at).cast());
            _mm256_storeu_ps(tile.as_mut_ptr().add(at), _mm256_cvtph_ps(half));
        }
    }
    tile
}

/// Converts `L` elements as [`narrow_f16`] does, eight at a time.
///
/// # Safety
/// The machine has F16C; `L` is a multiple of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn narrow_f16c<const L: usize>(tile: [f32; L]) -> [u16; L] {
    let mut narrow = [0u16; L];
    for at in (0..L).step_by(8) {
        // SAFETY: as in `widen_f16c`.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(tile.as_ptr().add(at)));
            _mm_storeu_si128(narrow.as_mut_ptr().add(at).cast(), half);
        }
    }
    narrow
}

/// Converts `L` elements as [`widen_f16`] does, sixteen at a time.
///
/// # Safety
/// `source` is valid for reads of `L` elements; the machine has AVX-512 F; `L` is a multiple of 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn widen_f16_avx512<const L: usize>(source: *const u16) -> [f32; L] {
    let mut tile = [0.0f32; L];
    for at in (0..L).step_by(16) {
        // SAFETY: `at + 16 <= L`, so both groups of sixteen are in bounds; neither access needs
        // alignment; the caller vouches for AVX-512.
        unsafe {
            let half = _mm256_loadu_si256(source.add(at).cast());
            _mm512_storeu_ps(tile.as_mut_ptr().add(at), _mm512_cvtph_ps(half));
        }
    }
    tile
}

/// Converts `L` elements as [`narrow_f16`] does, sixteen at a time.
///
/// # Safety
/// The machine has AVX-512 F; `L` is a multiple of 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn narrow_f16_avx512<const L: usize>(tile: [f32; L]) -> [u16; L] {
    let mut narrow = [0u16; L];
    for at in (0..L).step_by(16) {
        // SAFETY: as in `widen_f16_avx512`.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(tile.as_ptr().add(at)));
            _mm256_storeu_si256(narrow.as_mut_ptr().add(at).cast(), half);
        }
    }
    narrow
}
