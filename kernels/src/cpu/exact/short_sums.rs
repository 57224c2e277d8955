//! Exact sums of few elements each, of many results side by side.

use super::{float::Float, sum::ExactSum};
use crate::cpu::isa::Isa;

/// The results that are computed side by side.
pub(super) const RESULTS: usize = 64;

/// One element of each of the results.
pub(super) type Row<T> = [T; RESULTS];

/// Returns the sum of each column of the rows, divided by `divisor` and rounded once.
pub(super) fn divided<T: Float>(rows: &[Row<T>], divisor: u64) -> Row<T> {
    let Some((first, others)) = rows.split_first() else {
        return [ExactSum::new().divided(divisor); RESULTS];
    };
    let pairs = match Isa::best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this instruction set.
        Isa::Avx512 => unsafe { pairs_avx512(first, others) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this instruction set.
        Isa::Avx2 => unsafe { pairs_avx2(first, others) },
        _ => pairs(first, others),
    };
    let mut results = [T::default(); RESULTS];
    for (place, result) in results.iter_mut().enumerate() {
        let Pairs { sum, rest, lost } = &pairs;
        let quotient = T::divided(sum[place], rest[place], divisor).filter(|_| lost[place] == 0);
        *result = quotient.unwrap_or_else(|| column(rows, place, divisor));
    }
    results
}

/// The sum of each column as that of two floats.
struct Pairs {
    sum: [f64; RESULTS],
    /// The parts that rounding took from `sum`.
    rest: [f64; RESULTS],
    /// Bits that are not all zero if rounding took something from `rest`, too.
    lost: [u64; RESULTS],
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn pairs_avx512<T: Float>(first: &Row<T>, others: &[Row<T>]) -> Pairs {
    pairs(first, others)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pairs_avx2<T: Float>(first: &Row<T>, others: &[Row<T>]) -> Pairs {
    pairs(first, others)
}

/// Adds rows by additions that also give what they round away.
#[inline(always)]
fn pairs<T: Float>(first: &Row<T>, others: &[Row<T>]) -> Pairs {
    let mut pairs = Pairs { sum: first.map(T::widen), rest: [0.0; RESULTS], lost: [0; RESULTS] };
    for row in others {
        for (place, element) in row.iter().enumerate() {
            let (sum, error) = added(pairs.sum[place], element.widen());
            let (rest, lost) = added(pairs.rest[place], error);
            pairs.sum[place] = sum;
            pairs.rest[place] = rest;
            pairs.lost[place] |= lost.to_bits() << 1;
        }
    }
    pairs
}

/// Returns the rounded sum and what was rounded away: `TwoSum` of Knuth.
#[inline(always)]
fn added(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let from_b = sum - a;
    (sum, (a - (sum - from_b)) + (b - from_b))
}

/// Returns the sum of one column, of any elements.
fn column<T: Float>(rows: &[Row<T>], place: usize, divisor: u64) -> T {
    near(rows, place, divisor).unwrap_or_else(|| {
        let mut sum = ExactSum::new();
        rows.iter().for_each(|row| sum.add(&row[place..=place]));
        sum.divided(divisor)
    })
}

/// Returns the sum of one column by an integer of 128 bits, if it fits and is not zero.
fn near<T: Float>(rows: &[Row<T>], place: usize, divisor: u64) -> Option<T> {
    let parts = || {
        rows.iter().map(|row| row[place].widen().to_bits()).filter(|bits| bits << 1 != 0).map(|bits| {
            let (exponent, fraction) = ((bits >> 52 & 0x7ff) as u32, (bits & ((1 << 52) - 1)) as i128);
            let significand = if exponent == 0 { fraction } else { fraction | 1 << 52 };
            (exponent.max(1), if bits >> 63 == 1 { -significand } else { significand })
        })
    };
    let (least, most) =
        parts().fold((u32::MAX, 0), |(least, most), (exponent, _)| (least.min(exponent), most.max(exponent)));
    if most == 0x7ff || most.checked_sub(least)? > 127 - 53 - rows.len().ilog2() - 1 {
        return None;
    }
    let sum: i128 = parts().map(|(exponent, significand)| significand << (exponent - least)).sum();
    let magnitude = sum.unsigned_abs();
    let words = [magnitude as u64, (magnitude >> 64) as u64];
    (sum != 0).then(|| T::nearest(&words, least as i32 - 1075, divisor, sum < 0))
}
