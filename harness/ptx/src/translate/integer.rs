//! Integer arithmetic: `add`, `sub`, `mul`, `mad`, `div`, `rem`, `abs`, `neg`, `min`, `max`, `sad`,
//! and the instructions with a carry.

use super::{Translated, halves::in_halves2, kernel::Translator, modifiers::Modifiers};
use crate::{
    parse::{Instruction, Scalar},
    program::{Action, binary, ternary, unary},
};

/// An integer type, and its values as 128-bit integers, in which no result here overflows.
#[derive(Clone, Copy)]
pub(crate) struct Integer {
    bits: u32,
    is_signed: bool,
}

impl Integer {
    pub(crate) fn of(scalar: Scalar) -> Integer {
        Integer { bits: scalar.bits(), is_signed: scalar.is_signed() }
    }

    /// Returns the low bits.
    pub(crate) fn bits_of(self, value: u64) -> u64 {
        value & (u64::MAX >> (64 - self.bits))
    }

    /// Returns the value of the low bits, in 64 bits of two's complement.
    pub(crate) fn extended(self, value: u64) -> u64 {
        let shift = 64 - self.bits;
        if self.is_signed { (((value << shift) as i64) >> shift) as u64 } else { value << shift >> shift }
    }

    /// Returns the value of the low bits.
    pub(crate) fn wide(self, value: u64) -> i128 {
        let value = self.extended(value);
        if self.is_signed { i128::from(value as i64) } else { i128::from(value) }
    }

    /// Returns the nearest value of this type, as its bits.
    pub(crate) fn clamped(self, value: i128) -> u64 {
        let (low, high) = match self.is_signed {
            true => (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1),
            false => (0, (1i128 << self.bits) - 1),
        };
        self.bits_of(value.clamp(low, high) as u64)
    }
}

/// The part of a product that is the result.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Low,
    High,
    Wide,
}

impl Part {
    fn of_modifier(name: &str) -> Option<Part> {
        match name {
            "lo" => Some(Part::Low),
            "hi" => Some(Part::High),
            "wide" => Some(Part::Wide),
            _ => None,
        }
    }

    /// Returns this part of a product. `Low` and `Wide` are cut to the result's bits later.
    fn of_product(self, integer: Integer, a: u64, b: u64) -> u64 {
        match (self, integer.is_signed, integer.bits) {
            (Part::High, _, 64) if !integer.is_signed => ((u128::from(a) * u128::from(b)) >> 64) as u64,
            (Part::High, ..) => ((integer.wide(a) * integer.wide(b)) >> integer.bits) as u64,
            _ => integer.extended(a).wrapping_mul(integer.extended(b)),
        }
    }
}

impl Translator<'_> {
    /// Translates an instruction on integers, whose type was used already.
    pub(crate) fn integer(&mut self, i: &Instruction, mut m: Modifiers<'_>, scalar: Scalar) -> Translated {
        if let Scalar::IntegerPair { is_signed } = scalar {
            m.end()?;
            let half = Integer { bits: 16, is_signed };
            let compute = match (i.name.as_str(), is_signed) {
                ("add", _) => binary(move |a, b| half.bits_of(a.wrapping_add(b))),
                ("min", false) => binary(|a, b| a.min(b)),
                ("max", false) => binary(|a, b| a.max(b)),
                ("min", true) => binary(move |a, b| if half.wide(a) < half.wide(b) { a } else { b }),
                ("max", true) => binary(move |a, b| if half.wide(a) < half.wide(b) { b } else { a }),
                _ => return Err(self.unknown("this type")),
            };
            return self.binary(i, scalar, scalar, scalar, in_halves2(compute));
        }
        let integer = Integer::of(scalar);
        if !scalar.is_integer() || scalar.bits() < 16 {
            return Err(self.unknown("this type"));
        }
        if m.takes("cc") || matches!(i.name.as_str(), "addc" | "subc" | "madc") {
            return self.carrying(i, m, integer, scalar);
        }
        match i.name.as_str() {
            "add" | "sub" => {
                let is_saturated = m.takes("sat");
                let is_sum = i.name == "add";
                let compute = match (is_saturated, is_sum) {
                    (false, true) => binary(move |a, b| integer.bits_of(a.wrapping_add(b))),
                    (false, false) => binary(move |a, b| integer.bits_of(a.wrapping_sub(b))),
                    (true, true) => binary(move |a, b| integer.clamped(integer.wide(a) + integer.wide(b))),
                    (true, false) => binary(move |a, b| integer.clamped(integer.wide(a) - integer.wide(b))),
                };
                m.end()?;
                self.binary(i, scalar, scalar, scalar, compute)
            }
            "mul" | "mad" => self.product(i, m, integer, scalar),
            "div" => {
                m.end()?;
                // The manual leaves division by zero to the machine, which returns ones.
                let compute = match scalar.is_signed() {
                    true => binary(move |a, b| {
                        let (a, b) = (integer.extended(a) as i64, integer.extended(b) as i64);
                        integer.bits_of(if b == 0 { u64::MAX } else { a.wrapping_div(b) as u64 })
                    }),
                    false => binary(move |a, b| integer.bits_of(a.checked_div(b).unwrap_or(u64::MAX))),
                };
                self.binary(i, scalar, scalar, scalar, compute)
            }
            "rem" => {
                m.end()?;
                let compute = match scalar.is_signed() {
                    true => binary(move |a, b| {
                        let (a, b) = (integer.extended(a) as i64, integer.extended(b) as i64);
                        integer.bits_of(if b == 0 { a } else { a.wrapping_rem(b) } as u64)
                    }),
                    false => binary(move |a, b| integer.bits_of(a.checked_rem(b).unwrap_or(a))),
                };
                self.binary(i, scalar, scalar, scalar, compute)
            }
            "min" | "max" => {
                m.end()?;
                let compute = match (i.name == "min", scalar.is_signed()) {
                    (true, false) => binary(|a, b| a.min(b)),
                    (false, false) => binary(|a, b| a.max(b)),
                    (true, true) => {
                        binary(
                            move |a, b| {
                                if (integer.extended(a) as i64) < integer.extended(b) as i64 { a } else { b }
                            },
                        )
                    }
                    (false, true) => {
                        binary(
                            move |a, b| {
                                if (integer.extended(a) as i64) < integer.extended(b) as i64 { b } else { a }
                            },
                        )
                    }
                };
                self.binary(i, scalar, scalar, scalar, compute)
            }
            "abs" => {
                m.end()?;
                let compute = unary(move |a| integer.bits_of((integer.extended(a) as i64).unsigned_abs()));
                self.unary(i, scalar, scalar, compute)
            }
            "neg" => {
                m.end()?;
                self.unary(i, scalar, scalar, unary(move |a| integer.bits_of(a.wrapping_neg())))
            }
            "sad" => {
                m.end()?;
                let compute = ternary(move |a, b, c| {
                    let distance = (integer.wide(a) - integer.wide(b)).unsigned_abs() as u64;
                    integer.bits_of(c.wrapping_add(distance))
                });
                self.ternary(i, scalar, scalar, compute)
            }
            _ => Err(self.unknown("this type")),
        }
    }

    fn product(&mut self, i: &Instruction, mut m: Modifiers<'_>, integer: Integer, scalar: Scalar) -> Translated {
        let part = m.need("`.lo`, `.hi` or `.wide`", Part::of_modifier)?;
        let is_saturated = m.takes("sat");
        m.end()?;
        let to = match (part, scalar) {
            (Part::Wide, Scalar::Signed(bits)) if bits < 64 => Scalar::Signed(2 * bits),
            (Part::Wide, Scalar::Unsigned(bits)) if bits < 64 => Scalar::Unsigned(2 * bits),
            (Part::Wide, _) => return Err(self.unknown("a wide product of this type")),
            _ => scalar,
        };
        let result = Integer::of(to);
        if i.name == "mul" {
            let compute = binary(move |a, b| result.bits_of(part.of_product(integer, a, b)));
            return self.binary(i, to, scalar, scalar, compute);
        }
        let compute = match is_saturated {
            false => ternary(move |a, b, c| result.bits_of(part.of_product(integer, a, b).wrapping_add(c))),
            true => ternary(move |a, b, c| {
                let high = part.of_product(integer, a, b);
                result.clamped(result.wide(high) + result.wide(c))
            }),
        };
        self.ternary(i, to, scalar, compute)
    }

    fn carrying(&mut self, i: &Instruction, mut m: Modifiers<'_>, integer: Integer, scalar: Scalar) -> Translated {
        let sets = i.modifiers.iter().any(|modifier| modifier == "cc");
        m.takes("cc");
        let reads = i.name.ends_with('c');
        let bits = integer.bits;
        if bits < 32 {
            return Err(self.unknown("a carry of this type"));
        }
        let sum = move |a: u64, b: u64, carry: bool| {
            let whole = u128::from(a) + u128::from(b) + u128::from(carry && reads);
            (integer.bits_of(whole as u64), whole >> bits != 0)
        };
        let (compute, operands): (crate::program::Carrying, usize) = match i.name.as_str() {
            "add" | "addc" => (Box::new(move |[a, b, _], carry| sum(a, b, carry)), 2),
            "sub" | "subc" => {
                // The flag of a difference is its borrow.
                let compute = move |[a, b, _]: [u64; 3], borrow: bool| {
                    let whole = i128::from(a) - i128::from(b) - i128::from(borrow && reads);
                    (integer.bits_of(whole as u64), whole < 0)
                };
                (Box::new(compute), 2)
            }
            "mad" | "madc" => {
                let part = m.need("`.lo` or `.hi`", Part::of_modifier)?;
                if part == Part::Wide {
                    return Err(self.unknown("a wide product with a carry"));
                }
                let compute = move |[a, b, c]: [u64; 3], carry: bool| {
                    sum(integer.bits_of(part.of_product(integer, a, b)), c, carry)
                };
                (Box::new(compute), 3)
            }
            _ => return Err(self.unknown("a carry of this instruction")),
        };
        m.end()?;
        self.count(i, operands + 1)?;
        let to = self.destination(&i.operands[0], scalar.bits())?;
        let mut sources = [0; 3];
        for (source, operand) in sources.iter_mut().zip(&i.operands[1..]) {
            *source = self.source(operand, scalar)?;
        }
        self.emit(Action::Carry { to, operands: sources, compute, sets })
    }
}
