//! Exact sums: the sum and the mean of floats, rounded once. They depend on the multiset of the
//! elements alone, not on their order or on their division into parts.
//!
//! The exact sum is a rational number; the result is the float nearest to it, and of two the one
//! with the even significand. The same holds for the mean, the exact sum divided by the number of
//! elements. A result that lies halfway beyond the largest float or further is an infinity.
//!
//! | elements | sum and mean |
//! |---|---|
//! | a NaN, or both infinities | NaN |
//! | an infinity | it |
//! | none | sum +0, mean NaN, as those of [`ReduceOp`](crate::ReduceOp) along an axis |
//! | all −0 | −0 |
//! | others whose exact sum is zero | +0 |
//!
//! A result that is rounded to zero has the sign of the exact sum.

use std::cmp::Ordering;

/// An element type with exact sums.
pub trait Exact: Copy {
    /// The value that is not a number.
    const NAN: Self;
    /// The place of infinity in the order of the positive floats: its bits.
    const INFINITE: u64;

    /// Returns the same value as f64.
    fn widen(self) -> f64;

    /// Returns the float at a place in the order of the positive floats, with a sign.
    fn at(place: u64, is_negative: bool) -> Self;

    /// Returns the magnitude of the float at a place. That of infinity is what the next float would
    /// be.
    fn magnitude(place: u64) -> Natural;
}

impl Exact for f64 {
    const NAN: f64 = f64::NAN;
    const INFINITE: u64 = f64::INFINITY.to_bits();

    fn widen(self) -> f64 {
        self
    }

    fn at(place: u64, is_negative: bool) -> f64 {
        let magnitude = f64::from_bits(place);
        if is_negative { -magnitude } else { magnitude }
    }

    fn magnitude(place: u64) -> Natural {
        match place >> 52 {
            0 => Natural::from(place),
            exponent => Natural::from(1 << 52 | place & ((1 << 52) - 1)).shifted(exponent as usize - 1),
        }
    }
}

impl Exact for f32 {
    const NAN: f32 = f32::NAN;
    const INFINITE: u64 = f32::INFINITY.to_bits() as u64;

    fn widen(self) -> f64 {
        self.into()
    }

    fn at(place: u64, is_negative: bool) -> f32 {
        let magnitude = f32::from_bits(place as u32);
        if is_negative { -magnitude } else { magnitude }
    }

    fn magnitude(place: u64) -> Natural {
        if place == Self::INFINITE {
            return f64::magnitude(2f64.powi(128).to_bits());
        }
        f64::magnitude(f64::from(f32::from_bits(place as u32)).to_bits())
    }
}

/// A natural number below 2^2304, in units of 2^-1074: enough for 2^64 doubles, times 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Natural([u64; 36]);

impl Natural {
    const ZERO: Natural = Natural([0; 36]);

    fn plus(mut self, other: Natural) -> Natural {
        let mut carry = 0;
        for (word, other) in self.0.iter_mut().zip(other.0) {
            let sum = u128::from(*word) + u128::from(other) + carry;
            *word = sum as u64;
            carry = sum >> 64;
        }
        self
    }

    /// Returns the difference from a number that is not larger.
    fn minus(mut self, other: Natural) -> Natural {
        let mut borrow = 0;
        for (word, other) in self.0.iter_mut().zip(other.0) {
            let difference = i128::from(*word) - i128::from(other) - borrow;
            *word = difference as u64;
            borrow = i128::from(difference < 0);
        }
        self
    }

    fn times(mut self, factor: u64) -> Natural {
        let mut carry = 0;
        for word in &mut self.0 {
            let product = u128::from(*word) * u128::from(factor) + carry;
            *word = product as u64;
            carry = product >> 64;
        }
        self
    }

    fn shifted(self, bits: usize) -> Natural {
        let mut moved = Natural::ZERO;
        moved.0[bits / 64..].copy_from_slice(&self.0[..36 - bits / 64]);
        moved.times(1 << (bits % 64))
    }
}

impl From<u64> for Natural {
    fn from(word: u64) -> Natural {
        let mut number = Natural::ZERO;
        number.0[0] = word;
        number
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Natural) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Natural) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the sum, rounded once.
pub fn sum<T: Exact>(elements: &[T]) -> T {
    divided(elements, 1)
}

/// Returns the mean, rounded once.
pub fn mean<T: Exact>(elements: &[T]) -> T {
    match elements.len() {
        0 => T::NAN,
        count => divided(elements, count as u64),
    }
}

/// Returns the sum divided by `divisor`, rounded once.
fn divided<T: Exact>(elements: &[T], divisor: u64) -> T {
    let elements: Vec<f64> = elements.iter().map(|element| element.widen()).collect();
    let [infinite, negative_infinite] = [f64::INFINITY, f64::NEG_INFINITY].map(|value| elements.contains(&value));
    if elements.iter().any(|element| element.is_nan()) || infinite && negative_infinite {
        return T::NAN;
    }
    if infinite || negative_infinite {
        return T::at(T::INFINITE, negative_infinite);
    }
    let total = |is_negative: bool| {
        let those = elements.iter().filter(|element| element.is_sign_negative() == is_negative);
        those.fold(Natural::ZERO, |sum, element| sum.plus(f64::magnitude(element.abs().to_bits())))
    };
    let (positive, negative) = (total(false), total(true));
    match positive.cmp(&negative) {
        Ordering::Greater => nearest(positive.minus(negative), divisor, false),
        Ordering::Less => nearest(negative.minus(positive), divisor, true),
        Ordering::Equal => {
            let is_negative = |element: &f64| *element == 0.0 && element.is_sign_negative();
            T::at(0, !elements.is_empty() && elements.iter().all(is_negative))
        }
    }
}

/// Returns the float nearest to `±sum / divisor`.
fn nearest<T: Exact>(sum: Natural, divisor: u64, is_negative: bool) -> T {
    let times_divisor = |place: u64| T::magnitude(place).times(divisor);
    // The float at `below` is not larger, the one at `above` is.
    let (mut below, mut above) = (0, T::INFINITE);
    if sum >= times_divisor(above) {
        return T::at(T::INFINITE, is_negative);
    }
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if times_divisor(middle) <= sum { below = middle } else { above = middle }
    }
    let middle = times_divisor(below).plus(times_divisor(above));
    let place = match sum.times(2).cmp(&middle) {
        Ordering::Less => below,
        Ordering::Greater => above,
        Ordering::Equal if below % 2 == 0 => below,
        Ordering::Equal => above,
    };
    T::at(place, is_negative)
}
