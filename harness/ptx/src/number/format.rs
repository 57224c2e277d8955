//! The float formats, and arithmetic that is rounded once into any of them.

use super::{exact::Exact, rounding::Rounding};

/// A binary float format: a sign, an exponent, a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The bits of the whole.
    pub(crate) bits: u32,
    /// The bits of the fraction.
    fraction: u32,
    /// The NaN of results.
    nan: u64,
}

/// Half precision.
pub(crate) const F16: Format = Format { bits: 16, fraction: 10, nan: 0x7fff };
/// Single precision with a short fraction.
pub(crate) const BF16: Format = Format { bits: 16, fraction: 7, nan: 0x7fff };
/// Single precision.
pub(crate) const F32: Format = Format { bits: 32, fraction: 23, nan: 0x7fff_ffff };
/// Double precision. The manual leaves open which NaN an invalid operation gives.
pub(crate) const F64: Format = Format { bits: 64, fraction: 52, nan: 0xfff8_0000_0000_0000 };

/// The value of a float's bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Nan,
    Infinity {
        is_negative: bool,
    },
    /// Any other number. Zeros have a sign, too.
    Finite(Exact),
}

impl Format {
    /// Returns the bit of the sign.
    pub(crate) fn sign(self) -> u64 {
        1 << (self.bits - 1)
    }

    /// Returns positive infinity.
    pub(crate) fn infinity(self) -> u64 {
        self.sign() - (1 << self.fraction)
    }

    /// Returns whether bits are a NaN.
    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    /// Returns whether bits are a subnormal number.
    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign() - 1);
        magnitude != 0 && magnitude < 1 << self.fraction
    }

    /// Returns zero with the same sign in place of a subnormal number.
    pub(crate) fn flushed(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// Returns the NaN of a result: f64 keeps the payload of the first operand that is a NaN.
    pub(crate) fn nan_of(self, operands: &[u64]) -> u64 {
        let kept = operands.iter().find(|bits| self == F64 && self.is_nan(**bits));
        kept.map_or(self.nan, |bits| bits | 1 << (self.fraction - 1))
    }

    /// Returns the NaN that a NaN of another format becomes: f64 keeps the payload. The manual
    /// leaves it open.
    pub(crate) fn nan_converted(self, from: Format, bits: u64) -> u64 {
        if self != F64 {
            return self.nan;
        }
        let payload = (bits & (from.sign() - 1)) << (self.fraction - from.fraction);
        let sign = if bits & from.sign() == 0 { 0 } else { self.sign() };
        sign | self.infinity() | 1 << (self.fraction - 1) | payload & (self.infinity() ^ (self.sign() - 1))
    }

    /// Returns what bits stand for.
    pub(crate) fn value(self, bits: u64) -> Value {
        let is_negative = bits & self.sign() != 0;
        let magnitude = bits & (self.sign() - 1);
        if magnitude > self.infinity() {
            Value::Nan
        } else if magnitude == self.infinity() {
            Value::Infinity { is_negative }
        } else {
            let fraction = magnitude & ((1 << self.fraction) - 1);
            let biased = (magnitude >> self.fraction) as i32;
            let mantissa = if biased == 0 { fraction } else { fraction | 1 << self.fraction };
            Value::Finite(Exact::new(is_negative, mantissa.into(), self.lowest() + (biased - 1).max(0)))
        }
    }

    /// Returns a number rounded to this format.
    pub(crate) fn round(self, exact: Exact, rounding: Rounding) -> u64 {
        let sign = if exact.is_negative { self.sign() } else { 0 };
        if exact.is_zero() {
            return sign;
        }
        let biased = (exact.magnitude() - self.fraction as i32 - self.lowest()).max(0);
        if biased as u64 >= self.infinity() >> self.fraction {
            return sign | self.overflow(exact.is_negative, rounding);
        }
        // A carry out of the fraction raises the exponent, which is what the sum of both does.
        let units = exact.in_units(self.lowest() + biased, rounding) as u64;
        let magnitude = ((biased as u64) << self.fraction) + units;
        sign | if magnitude >= self.infinity() { self.overflow(exact.is_negative, rounding) } else { magnitude }
    }

    /// Returns the sum of two floats.
    pub(crate) fn add(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        match (self.value(a), self.value(b)) {
            (Value::Finite(x), Value::Finite(y)) => self.sum(x, y, rounding),
            (Value::Infinity { is_negative: x }, Value::Infinity { is_negative: y }) if x != y => self.nan_of(&[]),
            (Value::Nan, _) | (_, Value::Nan) => self.nan_of(&[a, b]),
            (Value::Infinity { .. }, _) => a,
            _ => b,
        }
    }

    /// Returns the difference of two floats.
    pub(crate) fn subtract(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        if self.is_nan(b) { self.nan_of(&[a, b]) } else { self.add(a, b ^ self.sign(), rounding) }
    }

    /// Returns the smaller of two floats, or the larger one. -0 is smaller than +0. Of a NaN and a
    /// number it is the number, unless `keeps_nan`.
    pub(crate) fn extreme(self, a: u64, b: u64, is_larger: bool, keeps_nan: bool) -> u64 {
        match (self.is_nan(a), self.is_nan(b)) {
            (true, true) => self.nan_of(&[a, b]),
            (true, _) | (_, true) if keeps_nan => self.nan_of(&[a, b]),
            (true, _) => b,
            (_, true) => a,
            _ if (self.key(a) < self.key(b)) != is_larger => a,
            _ => b,
        }
    }

    /// Returns an integer that is ordered as the floats are that are no NaNs.
    fn key(self, bits: u64) -> i64 {
        let magnitude = (bits & (self.sign() - 1)) as i64;
        if bits & self.sign() == 0 { magnitude } else { -1 - magnitude }
    }

    /// Returns the square root.
    pub(crate) fn square_root(self, bits: u64, rounding: Rounding) -> u64 {
        match self.value(bits) {
            Value::Nan => self.nan_of(&[bits]),
            Value::Finite(x) if x.is_zero() => bits,
            _ if bits & self.sign() != 0 => self.nan_of(&[]),
            Value::Infinity { .. } => bits,
            Value::Finite(x) => {
                let shift = x.mantissa.leading_zeros() - 1;
                let shift = shift - u32::from((x.exponent - shift as i32) % 2 != 0);
                let square = x.mantissa << shift;
                let root = square.isqrt();
                let exponent = (x.exponent - shift as i32) / 2;
                let is_inexact = root * root != square;
                self.round(Exact { is_negative: false, mantissa: root, exponent, is_inexact }, rounding)
            }
        }
    }

    /// Returns the product of two floats.
    pub(crate) fn multiply(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        let sign = (a ^ b) & self.sign();
        match (self.value(a), self.value(b)) {
            (Value::Nan, _) | (_, Value::Nan) => self.nan_of(&[a, b]),
            (Value::Finite(x), Value::Finite(y)) => self.round(x.times(y), rounding),
            (Value::Finite(x), _) | (_, Value::Finite(x)) if x.is_zero() => self.nan_of(&[]),
            _ => sign | self.infinity(),
        }
    }

    /// Returns `a × b + c` of three floats, rounded once.
    pub(crate) fn multiply_add(self, a: u64, b: u64, c: u64, rounding: Rounding) -> u64 {
        match (self.value(a), self.value(b), self.value(c)) {
            (Value::Finite(x), Value::Finite(y), Value::Finite(z)) => self.sum(x.times(y), z, rounding),
            (Value::Finite(_), Value::Finite(_), Value::Infinity { .. }) => c,
            (Value::Nan, ..) | (_, Value::Nan, _) | (_, _, Value::Nan) => self.nan_of(&[a, b, c]),
            _ => {
                let product = self.multiply(a, b, rounding);
                if self.is_nan(product) { product } else { self.add(product, c, rounding) }
            }
        }
    }

    /// Returns the quotient of two floats.
    pub(crate) fn divide(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        let sign = (a ^ b) & self.sign();
        match (self.value(a), self.value(b)) {
            (Value::Nan, _) | (_, Value::Nan) => self.nan_of(&[a, b]),
            (Value::Infinity { .. }, Value::Infinity { .. }) => self.nan_of(&[]),
            (Value::Infinity { .. }, _) => sign | self.infinity(),
            (_, Value::Infinity { .. }) => sign,
            (Value::Finite(x), Value::Finite(y)) => match (x.is_zero(), y.is_zero()) {
                (true, true) => self.nan_of(&[]),
                (true, false) => sign,
                (false, true) => sign | self.infinity(),
                _ => self.round(x.divided_by(y), rounding),
            },
        }
    }

    /// Returns a float rounded to an integer of the same format.
    pub(crate) fn integral(self, bits: u64, rounding: Rounding) -> u64 {
        match self.value(bits) {
            Value::Nan => self.nan_of(&[bits]),
            Value::Finite(x) if x.exponent < 0 => {
                let whole = Exact::new(x.is_negative, x.in_units(0, rounding), 0);
                self.round(whole, rounding)
            }
            _ => bits,
        }
    }

    /// Returns a float clamped to `[0, 1]`, with 0 for a NaN and for `-0`.
    pub(crate) fn saturated(self, bits: u64) -> u64 {
        let one = (self.infinity() >> (self.fraction + 1)) << self.fraction;
        if self.is_nan(bits) || bits & self.sign() != 0 { 0 } else { bits.min(one) }
    }

    fn sum(self, x: Exact, y: Exact, rounding: Rounding) -> u64 {
        let exact = x.plus(y);
        if !exact.is_zero() {
            return self.round(exact, rounding);
        }
        // Zeros of one sign keep it. Other sums of zero are -0 only when rounded down.
        let same = x.is_zero() && y.is_zero() && x.is_negative == y.is_negative;
        let is_negative = if same { x.is_negative } else { rounding == Rounding::Down };
        if is_negative { self.sign() } else { 0 }
    }

    /// Returns the exponent of the last bit of a subnormal number.
    fn lowest(self) -> i32 {
        let bias = (self.infinity() >> (self.fraction + 1)) as i32;
        1 - bias - self.fraction as i32
    }

    /// Returns the magnitude of a result beyond the largest number.
    fn overflow(self, is_negative: bool, rounding: Rounding) -> u64 {
        let to_infinity = rounding.rounds_up(is_negative, true, 3);
        if to_infinity { self.infinity() } else { self.infinity() - 1 }
    }
}
