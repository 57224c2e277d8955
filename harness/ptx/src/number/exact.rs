//! Numbers without rounding: sums, products and quotients of floats as they are before a format
//! rounds them.

use super::rounding::Rounding;
use std::cmp::Ordering;

/// A finite number `±mantissa × 2^exponent`, plus something smaller than one unit of the mantissa
/// and away from zero if `is_inexact`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub(crate) is_negative: bool,
    pub(crate) mantissa: u128,
    pub(crate) exponent: i32,
    pub(crate) is_inexact: bool,
}

/// The place of the highest bit of a normalised mantissa: a sum of two still fits.
const TOP: u32 = 126;

impl Exact {
    /// Returns a number.
    pub(crate) fn new(is_negative: bool, mantissa: u128, exponent: i32) -> Exact {
        Exact { is_negative, mantissa, exponent, is_inexact: false }
    }

    /// Returns whether this is zero.
    pub(crate) fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// Returns the exponent of the highest bit. The number is not zero.
    pub(crate) fn magnitude(self) -> i32 {
        self.exponent + 127 - self.mantissa.leading_zeros() as i32
    }

    /// Returns the product. Each mantissa has at most 64 bits.
    pub(crate) fn times(self, other: Exact) -> Exact {
        let mantissa = self.mantissa * other.mantissa;
        Exact::new(self.is_negative != other.is_negative, mantissa, self.exponent + other.exponent)
    }

    /// Returns the sum. Mantissas have at most 110 bits. A sum of zero is positive.
    pub(crate) fn plus(self, other: Exact) -> Exact {
        if self.is_zero() || other.is_zero() {
            return if self.is_zero() { other } else { self };
        }
        let (a, b) = (self.normalised(), other.normalised());
        let (big, small) = if (a.exponent, a.mantissa) >= (b.exponent, b.mantissa) { (a, b) } else { (b, a) };
        let shift = (big.exponent - small.exponent) as u32;
        let shifted = small.mantissa.checked_shr(shift).unwrap_or(0);
        let is_inexact = shifted.checked_shl(shift).unwrap_or(0) != small.mantissa;
        let same = big.is_negative == small.is_negative;
        // Bits that were shifted out of a subtrahend make the difference smaller by less than a
        // unit.
        let mantissa = match same {
            true => big.mantissa + shifted,
            false => big.mantissa - shifted - u128::from(is_inexact),
        };
        Exact { is_negative: big.is_negative && mantissa != 0, mantissa, exponent: big.exponent, is_inexact }
    }

    /// Returns the quotient to at least 64 bits. Mantissas have at most 53 bits; the divisor is
    /// not zero.
    pub(crate) fn divided_by(self, other: Exact) -> Exact {
        let other = Exact { exponent: other.exponent + other.mantissa.trailing_zeros() as i32, ..other };
        let divisor = other.mantissa >> other.mantissa.trailing_zeros();
        let shift = self.mantissa.leading_zeros().min(TOP);
        let dividend = self.mantissa << shift;
        Exact {
            is_negative: self.is_negative != other.is_negative,
            mantissa: dividend / divisor,
            exponent: self.exponent - shift as i32 - other.exponent,
            is_inexact: !dividend.is_multiple_of(divisor),
        }
    }

    /// Returns the mantissa of this number in units of `2^exponent`, rounded. The result has at
    /// most 128 bits.
    pub(crate) fn in_units(self, exponent: i32, rounding: Rounding) -> u128 {
        if exponent <= self.exponent {
            return self.mantissa << (self.exponent - exponent);
        }
        let shift = (exponent - self.exponent) as u32;
        let kept = self.mantissa.checked_shr(shift).unwrap_or(0);
        let lost = if shift > 127 { self.mantissa } else { self.mantissa & ((1 << shift) - 1) };
        let half = if shift > 128 { Ordering::Less } else { lost.cmp(&(1 << (shift - 1))) };
        let rest = match (half, lost == 0 && !self.is_inexact) {
            (_, true) => 0,
            (Ordering::Less, _) => 1,
            (Ordering::Equal, _) if !self.is_inexact => 2,
            _ => 3,
        };
        kept + u128::from(rounding.rounds_up(self.is_negative, kept & 1 == 1, rest))
    }

    fn normalised(self) -> Exact {
        let shift = self.mantissa.leading_zeros() - (127 - TOP);
        Exact { mantissa: self.mantissa << shift, exponent: self.exponent - shift as i32, ..self }
    }
}
