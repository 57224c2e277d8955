//! `cvt`: conversions between types.

use super::{Translated, float::Finish, integer::Integer, kernel::Translator, modifiers::Modifiers};
use crate::{
    number::{BF16, Exact, F16, F32, F64, Format, Rounding, Value},
    parse::{Instruction, Scalar},
    program::{Unary, binary, unary},
};

impl Translator<'_> {
    /// Translates `cvt`.
    pub(crate) fn convert(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let integral = m.take(Rounding::of_integral_modifier);
        let rounding = m.take(Rounding::of_modifier);
        let (flushes, saturates, clips) = (m.takes("ftz"), m.takes("sat"), m.takes("relu"));
        let (to, from) = (m.scalar()?, m.scalar()?);
        m.end()?;
        let is_single = |scalar| scalar == Scalar::Float(F32);
        if flushes && !is_single(to) && !is_single(from) {
            return Err(self.unknown("`.ftz` without an f32"));
        }
        // f32 alone is flushed.
        let source =
            move |format: Format| Finish { format, flushes: flushes && format == F32, saturates: false, clips: false };
        let result = move |format: Format| Finish { saturates, clips, ..source(format) };
        if let (Scalar::Pair(format), Scalar::Float(F32)) = (to, from) {
            let Some(rounding) = rounding.filter(|_| integral.is_none() && !saturates) else {
                return Err(self.unknown("this conversion without `.rn` or `.rz`"));
            };
            let narrow = move |a| result(format).result(convert_float(F32, format, a, rounding));
            let compute = binary(move |high, low| narrow(high) << 16 | narrow(low));
            return self.binary(i, to, from, from, compute);
        }
        let compute: Unary = match (to, from) {
            (Scalar::Float(to), Scalar::Float(from)) => {
                let is_narrower = to.bits < from.bits || to.bits == 16 && from.bits == 16 && to != from;
                if clips && (to.bits != 16 || from != F32) {
                    return Err(self.unknown("`.relu` of this conversion"));
                }
                match (integral, rounding) {
                    (Some(rounding), None) if to == from => {
                        unary(move |a| result(to).result(to.integral(source(from).operand(a), rounding)))
                    }
                    (None, None) if to == from => unary(move |a| result(to).result(a)),
                    (None, Some(rounding)) if is_narrower => {
                        narrowing(from, to, rounding, flushes || saturates || clips).unwrap_or_else(|| {
                            unary(move |a| {
                                let a = source(from).operand(a);
                                result(to).result(convert_float(from, to, a, rounding))
                            })
                        })
                    }
                    (None, None) if !is_narrower => unary(move |a| {
                        let a = source(from).operand(a);
                        result(to).result(convert_float(from, to, a, Rounding::NearestEven))
                    }),
                    _ => return Err(self.unknown("this rounding mode of this conversion")),
                }
            }
            (_, Scalar::Float(from)) if to.is_integer() => {
                let Some(rounding) = integral.filter(|_| rounding.is_none() && !clips) else {
                    return Err(self.unknown("this conversion without a mode such as `.rzi`"));
                };
                let (integer, is_long) = (Integer::of(to), to.bits() == 64);
                unary(move |a| match from.value(source(from).operand(a)) {
                    // A NaN becomes zero, or the highest bit where 64 bits are involved.
                    Value::Nan if from == F64 || is_long => 1 << (to.bits() - 1),
                    Value::Nan => 0,
                    Value::Infinity { is_negative } => integer.clamped(if is_negative { i128::MIN } else { i128::MAX }),
                    Value::Finite(x) => integer.clamped(whole(x, rounding)),
                })
            }
            (Scalar::Float(to), _) if from.is_integer() => {
                let Some(rounding) = rounding.filter(|_| integral.is_none() && !clips) else {
                    return Err(self.unknown("this conversion without a rounding mode"));
                };
                let integer = Integer::of(from);
                unary(move |a| {
                    let value = integer.wide(a);
                    result(to).result(to.round(Exact::new(value < 0, value.unsigned_abs(), 0), rounding))
                })
            }
            _ if to.is_integer() && from.is_integer() => {
                if integral.is_some() || rounding.is_some() || clips {
                    return Err(self.unknown("a rounding mode between integers"));
                }
                let (target, source) = (Integer::of(to), Integer::of(from));
                match saturates {
                    true => unary(move |a| target.clamped(source.wide(a))),
                    false => unary(move |a| target.bits_of(source.extended(a))),
                }
            }
            _ => return Err(self.unknown("a conversion between these types")),
        };
        self.count(i, 2)?;
        let a = self.wide_source(&i.operands[1], from)?;
        let (register, bits) = self.wide_destination(&i.operands[0], to)?;
        // A register wider than the type holds it extended with its sign.
        let (narrow, wide) = (Integer::of(to), Integer::of(Scalar::Bits(bits.max(8))));
        let compute: Unary = match to.is_signed() && bits > to.bits() {
            true => {
                let extend = unary(move |a| wide.bits_of(narrow.extended(a)));
                Box::new(move |a, to| {
                    let mut converted = [0; 32];
                    compute(a, &mut converted);
                    extend(&converted, to);
                })
            }
            false => compute,
        };
        let from = Integer::of(from);
        let cut: Unary = match self.bits_of_register(a) > from_bits(from) {
            true => Box::new(move |a, to| compute(&a.map(|a| from.bits_of(a)), to)),
            false => compute,
        };
        self.emit(crate::program::Action::Unary { to: register, a, compute: cut })
    }
}

fn from_bits(integer: Integer) -> u32 {
    integer.bits_of(u64::MAX).count_ones()
}

/// Returns a finite number rounded to an integer, or one that is too large for any type.
fn whole(x: Exact, rounding: Rounding) -> i128 {
    if x.exponent > 65 {
        return match (x.is_zero(), x.is_negative) {
            (true, _) => 0,
            (_, true) => i128::MIN,
            (_, false) => i128::MAX,
        };
    }
    let magnitude = x.in_units(0, rounding) as i128;
    if x.is_negative { -magnitude } else { magnitude }
}

fn convert_float(from: Format, to: Format, bits: u64, rounding: Rounding) -> u64 {
    match from.value(bits) {
        Value::Nan => to.nan_converted(from, bits),
        Value::Infinity { is_negative } => to.infinity() | if is_negative { to.sign() } else { 0 },
        Value::Finite(x) => to.round(x, rounding),
    }
}

/// Returns the conversion of the kernels in steps that the compiler turns into vectors, if it is
/// one of theirs.
fn narrowing(from: Format, to: Format, rounding: Rounding, is_finished: bool) -> Option<Unary> {
    if from != F32 || rounding != Rounding::NearestEven || is_finished {
        return None;
    }
    match to {
        BF16 => Some(unary(|a| {
            let is_nan = F32.is_nan(a);
            let rounded = (a + 0x7fff + (a >> 16 & 1)) >> 16;
            if is_nan { 0x7fff } else { rounded }
        })),
        F16 => Some(unary(|a| {
            let single = a as u32;
            let (sign, magnitude) = (single >> 16 & 0x8000, single & 0x7fff_ffff);
            let half = if magnitude > 0x7f80_0000 {
                return 0x7fff;
            } else if magnitude >= 0x4780_0000 {
                0x7c00
            } else if magnitude < 0x3880_0000 {
                // The sum with a power of two has the subnormal in its last bits, rounded.
                (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
            } else {
                (magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1)) >> 13
            };
            u64::from(half | sign)
        })),
        _ => None,
    }
}
