//! The exact sum of a block of elements in the registers of the machine.
//!
//! An *extraction* divides each element `x` into `q`, its bits from a certain one on, and the rest
//! `x − q`, both exact: `q = (x + s) − s`, where `s` is so large that its last bit is that one. It
//! is chosen by the largest element, so that a sum of as many `q` as a block has elements fits in
//! a float and is exact in any order. A second extraction does the same with the rests. If no rest
//! is left then, the sum of the block is that of the two floats. Otherwise the elements are too
//! far apart, and the superaccumulator takes them one by one.

use super::float::Float;
use crate::cpu::isa::Isa;

/// The elements of a block: they lie in the first-level cache while they are read twice.
pub(super) const COUNT: usize = 1 << BITS;

const BITS: i32 = 11;

/// The next extraction is of bits so much lower: the rests are less than half of the last bit.
const STEP: i32 = 52 - BITS + 2;

/// Fewer elements are added one by one.
const LEAST: usize = 32;

/// Elements that are summed side by side.
const LANES: usize = 8;

/// The most extractions of a block.
const MOST: usize = 2;

/// Returns floats that have the same exact sum as the elements, up to [`COUNT`] of them, if they
/// are near enough to each other.
pub(super) fn sum<T: Float>(elements: &[T]) -> Option<[f64; MOST]> {
    if elements.len() < LEAST {
        return None;
    }
    match Isa::best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this instruction set.
        Isa::Avx512 => unsafe { sum_avx512(elements) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this instruction set.
        Isa::Avx2 => unsafe { sum_avx2(elements) },
        _ => body(elements),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn sum_avx512<T: Float>(elements: &[T]) -> Option<[f64; MOST]> {
    body(elements)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2<T: Float>(elements: &[T]) -> Option<[f64; MOST]> {
    body(elements)
}

#[inline(always)]
fn body<T: Float>(elements: &[T]) -> Option<[f64; MOST]> {
    let largest = largest(elements);
    if largest == 0.0 {
        // A NaN is not larger.
        return elements.iter().all(|element| *element == T::default()).then_some([0.0; MOST]);
    }
    let exponent = (largest.to_bits() >> 52) as i32 + BITS;
    // All that is computed has normal exponents.
    if exponent - STEP < 64 || exponent > 2040 {
        return None;
    }
    if T::LEVELS == 1
        && let Some([sum]) = extract::<T, 1>(elements, exponent)
    {
        return Some([sum, 0.0]);
    }
    extract::<T, MOST>(elements, exponent)
}

/// Returns the largest magnitude, or some number if there is a NaN.
#[inline(always)]
fn largest<T: Float>(elements: &[T]) -> f64 {
    let (rows, rest) = elements.as_chunks::<{ 4 * LANES }>();
    let mut most = [T::default(); 4 * LANES];
    let larger = |a: T, b: T| if a.abs() > b { a.abs() } else { b };
    for row in rows {
        for lane in 0..4 * LANES {
            most[lane] = larger(row[lane], most[lane]);
        }
    }
    most.iter().chain(rest).fold(T::default(), |most, &element| larger(element, most)).widen()
}

/// Returns the sum of each extraction, the first with this biased exponent, if they leave no rest.
#[inline(always)]
fn extract<T: Float, const LEVELS: usize>(elements: &[T], exponent: i32) -> Option<[f64; LEVELS]> {
    let mut scale = [0.0; LEVELS];
    for (level, scale) in scale.iter_mut().enumerate() {
        *scale = f64::from_bits(((exponent - STEP * level as i32) as u64) << 52 | 1 << 51);
    }
    let (rows, last) = elements.as_chunks::<LANES>();
    let mut sums = [[0.0; LANES]; LEVELS];
    let mut left = [0; LANES];
    for row in rows {
        take(row, &scale, &mut sums, &mut left);
    }
    let mut padded = [T::default(); LANES];
    padded[..last.len()].copy_from_slice(last);
    take(&padded, &scale, &mut sums, &mut left);
    // A NaN is not zero.
    let is_complete = left.iter().all(|bits| *bits == 0);
    is_complete.then(|| sums.map(|lanes| lanes.iter().sum()))
}

/// Extracts from the elements of a row, and adds the bits of their rests to `left`.
#[inline(always)]
fn take<T: Float, const LEVELS: usize>(
    row: &[T; LANES],
    scale: &[f64; LEVELS],
    sums: &mut [[f64; LANES]; LEVELS],
    left: &mut [u64; LANES],
) {
    let mut rest = row.map(T::widen);
    for level in 0..LEVELS {
        for lane in 0..LANES {
            let part = (rest[lane] + scale[level]) - scale[level];
            sums[level][lane] += part;
            rest[lane] -= part;
        }
    }
    for lane in 0..LANES {
        // The rest of −0 is −0.
        left[lane] |= rest[lane].to_bits() << 1;
    }
}
