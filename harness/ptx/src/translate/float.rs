//! Float arithmetic: `add`, `sub`, `mul`, `fma`, `div`, `rcp`, `sqrt`, `abs`, `neg`, `min`, `max`.
//!
//! The fastest way to a result rounded to nearest is the host's own arithmetic, which IEEE 754
//! gives the same bits but for NaNs. All else goes through [`Format`].

use super::{
    Translated,
    halves::{in_halves1, in_halves2, in_halves3},
    kernel::Translator,
    modifiers::Modifiers,
};
use crate::{
    number::{F16, F32, F64, Format, Rounding, Value},
    parse::{Instruction, Scalar},
    program::{Binary, Ternary, Unary, binary, ternary, unary},
};

/// Changes of operands and results besides rounding.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) format: Format,
    /// `.ftz`: subnormal operands and results become zeros.
    pub(crate) flushes: bool,
    /// `.sat`: results are clamped to `[0, 1]`.
    pub(crate) saturates: bool,
    /// `.relu`: negative results become zero.
    pub(crate) clips: bool,
}

impl Finish {
    pub(crate) fn of(format: Format, m: &mut Modifiers<'_>) -> Finish {
        let mut takes = |name| m.takes(name);
        Finish { format, flushes: takes("ftz"), saturates: takes("sat"), clips: takes("relu") }
    }

    fn is_plain(self) -> bool {
        !self.flushes && !self.saturates && !self.clips
    }

    pub(crate) fn operand(self, bits: u64) -> u64 {
        if self.flushes { self.format.flushed(bits) } else { bits }
    }

    pub(crate) fn result(self, bits: u64) -> u64 {
        let bits = self.operand(bits);
        match self.format {
            format if self.saturates => format.saturated(bits),
            format if self.clips && bits & format.sign() != 0 && !format.is_nan(bits) => 0,
            _ => bits,
        }
    }

    fn unary(self, f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Unary {
        match self.is_plain() {
            true => unary(f),
            false => unary(move |a| self.result(f(self.operand(a)))),
        }
    }

    fn binary(self, f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Binary {
        match self.is_plain() {
            true => binary(f),
            false => binary(move |a, b| self.result(f(self.operand(a), self.operand(b)))),
        }
    }

    fn ternary(self, f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Ternary {
        match self.is_plain() {
            true => ternary(f),
            false => ternary(move |a, b, c| self.result(f(self.operand(a), self.operand(b), self.operand(c)))),
        }
    }
}

impl Translator<'_> {
    /// Translates an instruction on floats, whose type was used already.
    pub(crate) fn float(&mut self, i: &Instruction, mut m: Modifiers<'_>, scalar: Scalar) -> Translated {
        let (format, is_pair) = match scalar {
            Scalar::Float(format) => (format, false),
            Scalar::Pair(format) => (format, true),
            _ => return Err(self.unknown("this type")),
        };
        let finish = Finish::of(format, &mut m);
        if finish.flushes && format != F32 && format != F16 || finish.saturates && format == F64 {
            return Err(self.unknown("this modifier of this type"));
        }
        let given = m.take(Rounding::of_modifier);
        let rounding = given.unwrap_or(Rounding::NearestEven);
        let is_nearest = rounding == Rounding::NearestEven;
        let canonical = m.takes("NaN");
        m.end()?;
        let is_rounded = matches!(i.name.as_str(), "add" | "sub" | "mul" | "fma" | "mad" | "div" | "rcp" | "sqrt");
        let may_omit = matches!(i.name.as_str(), "add" | "sub" | "mul");
        if is_rounded && given.is_none() && !(may_omit || format.bits == 16) {
            return Err(self.unknown("the instruction without a rounding mode"));
        }
        if given.is_some() && (!is_rounded || format.bits == 16 && !is_nearest) {
            return Err(self.unknown("this rounding mode of this instruction"));
        }
        if canonical && !matches!(i.name.as_str(), "min" | "max") || finish.clips && i.name != "fma" {
            return Err(self.unknown("this modifier of this instruction"));
        }
        let is_half = format.bits == 16;
        if is_half && matches!(i.name.as_str(), "div" | "rcp" | "sqrt" | "mad") {
            return Err(self.unknown("this type"));
        }
        let fast = is_nearest && !is_half;
        match i.name.as_str() {
            "add" | "sub" | "mul" | "div" | "min" | "max" => {
                let compute = match i.name.as_str() {
                    "add" if fast && format == F32 => finish.binary(|a, b| single(of_single(a) + of_single(b))),
                    "sub" if fast && format == F32 => finish.binary(|a, b| single(of_single(a) - of_single(b))),
                    "mul" if fast && format == F32 => finish.binary(|a, b| single(of_single(a) * of_single(b))),
                    "div" if fast && format == F32 => finish.binary(|a, b| single(of_single(a) / of_single(b))),
                    "add" if fast => finish.binary(|a, b| double(of_double(a) + of_double(b), &[a, b])),
                    "sub" if fast => finish.binary(|a, b| double(of_double(a) - of_double(b), &[a, b])),
                    "mul" if fast => finish.binary(|a, b| double(of_double(a) * of_double(b), &[a, b])),
                    "div" if fast => finish.binary(|a, b| double(of_double(a) / of_double(b), &[a, b])),
                    "add" => finish.binary(move |a, b| format.add(a, b, rounding)),
                    "sub" => finish.binary(move |a, b| format.subtract(a, b, rounding)),
                    "mul" => finish.binary(move |a, b| format.multiply(a, b, rounding)),
                    "div" => finish.binary(move |a, b| format.divide(a, b, rounding)),
                    "min" => finish.binary(move |a, b| format.extreme(a, b, false, canonical)),
                    _ => finish.binary(move |a, b| format.extreme(a, b, true, canonical)),
                };
                let compute = if is_pair { in_halves2(compute) } else { compute };
                self.binary(i, scalar, scalar, scalar, compute)
            }
            "fma" | "mad" => {
                let compute = match format {
                    F32 if fast => finish.ternary(|a, b, c| single(of_single(a).mul_add(of_single(b), of_single(c)))),
                    F64 if fast => {
                        finish.ternary(|a, b, c| double(of_double(a).mul_add(of_double(b), of_double(c)), &[a, b, c]))
                    }
                    _ => finish.ternary(move |a, b, c| format.multiply_add(a, b, c, rounding)),
                };
                let compute = if is_pair { in_halves3(compute) } else { compute };
                self.ternary(i, scalar, scalar, compute)
            }
            "rcp" | "sqrt" | "abs" | "neg" => {
                let sign = format.sign();
                let one = format.round(crate::number::Exact::new(false, 1, 0), rounding);
                let compute = match i.name.as_str() {
                    "rcp" => finish.unary(move |a| format.divide(one, a, rounding)),
                    "sqrt" if fast && format == F32 => finish.unary(|a| single(of_single(a).sqrt())),
                    "sqrt" if fast => finish.unary(|a| double(of_double(a).sqrt(), &[a])),
                    "sqrt" => finish.unary(move |a| format.square_root(a, rounding)),
                    "abs" => finish.unary(move |a| a & !sign),
                    _ => finish.unary(move |a| a ^ sign),
                };
                let compute = if is_pair { in_halves1(compute) } else { compute };
                self.unary(i, scalar, scalar, compute)
            }
            _ => Err(self.unknown("this type")),
        }
    }

    /// Translates `copysign` and `testp`.
    pub(crate) fn float_bits(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        if i.name == "copysign" {
            let scalar = m.scalar()?;
            m.end()?;
            let Scalar::Float(format) = scalar else { return Err(self.unknown("this type")) };
            let sign = format.sign();
            return self.binary(i, scalar, scalar, scalar, binary(move |a, b| b & !sign | a & sign));
        }
        let known = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
        let test = m.need("a test", |name| known.iter().copied().find(|known| *known == name))?;
        let scalar = m.scalar()?;
        m.end()?;
        let Scalar::Float(format) = scalar else { return Err(self.unknown("this type")) };
        let holds = move |a: u64| match (test, format.value(a)) {
            ("finite", value) => matches!(value, Value::Finite(_)),
            ("infinite", value) => matches!(value, Value::Infinity { .. }),
            ("number", value) => !matches!(value, Value::Nan),
            ("notanumber", value) => matches!(value, Value::Nan),
            ("normal", Value::Finite(x)) => !x.is_zero() && !format.is_subnormal(a),
            (_, value) => matches!(value, Value::Finite(_)) && test == "subnormal" && format.is_subnormal(a),
        };
        self.test(i, scalar, crate::program::comparison(move |a, _| holds(a)))
    }
}

fn of_single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn single(value: f32) -> u64 {
    if value.is_nan() { F32.nan_of(&[]) } else { value.to_bits().into() }
}

fn of_double(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn double(value: f64, operands: &[u64]) -> u64 {
    if value.is_nan() { F64.nan_of(operands) } else { value.to_bits() }
}
