//! The element types that have exact sums, and the float nearest to a quotient.

use consonance_spec::Element;
use std::ops::Range;

/// The words of a sum: 2^-1074 to 2^1024, and 2^64 such elements.
pub(super) const WORDS: usize = 34;

/// f32 or f64.
pub(super) trait Float: Element + PartialOrd {
    /// The words of a superaccumulator that a sum of these elements may reach.
    const WORDS: Range<usize>;
    /// The number of extractions by which most blocks are summed.
    const LEVELS: usize;

    fn widen(self) -> f64;

    fn abs(self) -> Self;

    /// Returns the float nearest to `±words / divisor`, where the lowest bit of `words` means
    /// 2^`unit`.
    fn nearest(words: &[u64], unit: i32, divisor: u64, is_negative: bool) -> Self;

    /// Returns `(sum + rest) / divisor`, where `rest` is 0 or less than half a bit of `sum`. `None`
    /// if that might be rounded twice.
    fn divided(sum: f64, rest: f64, divisor: u64) -> Option<Self>;

    fn infinity(is_negative: bool) -> Self;

    const NAN: Self;
}

impl Float for f64 {
    const WORDS: Range<usize> = 0..WORDS;
    const LEVELS: usize = 2;
    const NAN: f64 = f64::NAN;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn abs(self) -> f64 {
        self.abs()
    }

    fn nearest(words: &[u64], unit: i32, divisor: u64, is_negative: bool) -> f64 {
        let bits = nearest(words, unit, divisor, 53, -1074).min(f64::INFINITY.to_bits());
        f64::from_bits(bits | u64::from(is_negative) << 63)
    }

    #[inline(always)]
    fn divided(sum: f64, rest: f64, divisor: u64) -> Option<f64> {
        let total = if rest == 0.0 { sum } else { sum + rest };
        let quotient = total / divisor as f64;
        // A power of two moves the exponent alone, if the result is not subnormal.
        let once = rest == 0.0 || divisor == 1 || divisor.is_power_of_two() && quotient.abs() >= f64::MIN_POSITIVE;
        (once && total.is_finite() && divisor <= 1 << 53).then_some(quotient)
    }

    fn infinity(is_negative: bool) -> f64 {
        if is_negative { f64::NEG_INFINITY } else { f64::INFINITY }
    }
}

impl Float for f32 {
    /// The words of 2^-149 to 2^128, and of 2^64 such elements.
    const WORDS: Range<usize> = 14..20;
    const LEVELS: usize = 1;
    const NAN: f32 = f32::NAN;

    #[inline(always)]
    fn widen(self) -> f64 {
        self.into()
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        self.abs()
    }

    fn nearest(words: &[u64], unit: i32, divisor: u64, is_negative: bool) -> f32 {
        let bits = nearest(words, unit, divisor, 24, -149).min(f32::INFINITY.to_bits().into());
        f32::from_bits(bits as u32 | u32::from(is_negative) << 31)
    }

    #[inline(always)]
    fn divided(sum: f64, rest: f64, divisor: u64) -> Option<f32> {
        let quotient = sum / divisor as f64;
        // The quotient may be a rounded one. Its own rounding goes wrong if it is halfway between
        // two floats, and subnormal floats are halved elsewhere.
        let is_between = quotient.to_bits() << 35 == 1 << 63;
        let is_subnormal = quotient != 0.0 && quotient.abs() < f64::from(f32::MIN_POSITIVE);
        let once = divisor == 1 || !is_between && !is_subnormal;
        (rest == 0.0 && once && sum.is_finite() && divisor <= 1 << 53).then_some(quotient as f32)
    }

    fn infinity(is_negative: bool) -> f32 {
        if is_negative { f32::NEG_INFINITY } else { f32::INFINITY }
    }
}

/// Returns the bits of the float nearest to `words / divisor`, of two the even one. Floats have
/// `precision` bits, and the least one is 2^`least`. Bits of a number beyond the floats are those
/// of infinity or more.
fn nearest(words: &[u64], unit: i32, divisor: u64, precision: i32, least: i32) -> u64 {
    let Some(top) = words.iter().rposition(|word| *word != 0) else { return 0 };
    // The first of three digits of the quotient may be zero, and the second one is not then.
    let mut remainder = 0;
    let digits = [0, 1, 2].map(|place| {
        let dividend = u128::from(remainder) << 64 | u128::from(top.checked_sub(place).map_or(0, |at| words[at]));
        remainder = (dividend % u128::from(divisor)) as u64;
        (dividend / u128::from(divisor)) as u64
    });
    let lower = remainder != 0 || words[..top.saturating_sub(2)].iter().any(|word| *word != 0);
    let double = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
    let (quotient, place, lower) = match digits {
        [0, high, low] => (double(high, low), top as i32 - 2, lower),
        [high, low, rest] => (double(high, low), top as i32 - 1, lower || rest != 0),
    };
    let unit = unit + 64 * place;
    let last = (unit + 128 - quotient.leading_zeros() as i32 - precision).max(least);
    // At least 65 bits are there, so some are dropped.
    let dropped = (last - unit) as u32;
    let half = 1u128.checked_shl(dropped - 1).unwrap_or(0);
    let kept = quotient.checked_shr(dropped).unwrap_or(0) as u64;
    let below = if half == 0 { quotient } else { quotient & (half - 1) };
    let up = quotient & half != 0 && (below != 0 || lower || kept % 2 == 1);
    (((last - least) as u64) << (precision - 1)) + kept + u64::from(up)
}
