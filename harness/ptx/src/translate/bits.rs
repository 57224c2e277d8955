//! Logic, shifts and fields of bits.

use super::{Translated, kernel::Translator, modifiers::Modifiers};
use crate::{
    number::F32,
    parse::{Instruction, Operand, Scalar},
    program::{Action, Condition, binary, ternary, unary},
    translate::integer::Integer,
};

const B32: Scalar = Scalar::Bits(32);

impl Translator<'_> {
    /// Translates an instruction on bits; false if its name is none.
    pub(crate) fn bits(&mut self, i: &Instruction) -> Result<bool, crate::ParseError> {
        let mut m = Modifiers::new(i);
        match i.name.as_str() {
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(i, m)?,
            "shl" | "shr" => self.shift(i, m)?,
            "shf" => self.funnel_shift(i, m)?,
            "popc" | "clz" | "brev" => {
                let scalar = m.scalar()?;
                m.end()?;
                let bits = scalar.bits();
                let compute = match i.name.as_str() {
                    "popc" => unary(|a| a.count_ones().into()),
                    "clz" => unary(move |a| u64::from((a << (64 - bits)).leading_zeros().min(bits))),
                    _ => unary(move |a| a.reverse_bits() >> (64 - bits)),
                };
                let to = if i.name == "brev" { scalar } else { B32 };
                self.unary(i, to, scalar, compute)?;
            }
            "bfind" => {
                let is_shift = m.takes("shiftamt");
                let scalar = m.scalar()?;
                m.end()?;
                let integer = Integer::of(scalar);
                let compute = unary(move |a| {
                    let is_negative = scalar.is_signed() && integer.wide(a) < 0;
                    let bits = integer.bits_of(if is_negative { !a } else { a });
                    match 64 - bits.leading_zeros() {
                        0 => 0xffff_ffff,
                        above if is_shift => u64::from(scalar.bits() - above),
                        above => u64::from(above - 1),
                    }
                });
                self.unary(i, B32, scalar, compute)?;
            }
            "bfe" => {
                let scalar = m.scalar()?;
                m.end()?;
                self.count(i, 4)?;
                let to = self.destination(&i.operands[0], scalar.bits())?;
                let a = self.source(&i.operands[1], scalar)?;
                let (b, c) = (self.source(&i.operands[2], B32)?, self.source(&i.operands[3], B32)?);
                let compute = ternary(move |a, start, count| extract(scalar, a, start & 0xff, count & 0xff));
                self.emit(Action::Ternary { to, a, b, c, compute })?;
            }
            "bfi" => {
                let scalar = m.scalar()?;
                m.end()?;
                self.count(i, 5)?;
                let to = self.destination(&i.operands[0], scalar.bits())?;
                let (a, b) = (self.source(&i.operands[1], scalar)?, self.source(&i.operands[2], scalar)?);
                let (start, count) = (self.source(&i.operands[3], B32)?, self.source(&i.operands[4], B32)?);
                let (operands, bits) = ([a, b, start, count], scalar.bits());
                self.emit(Action::Quaternary { to, operands, compute: insert, bits })?;
            }
            "prmt" => self.permute(i, m)?,
            "lop3" => {
                let scalar = m.scalar()?;
                m.end()?;
                self.count(i, 5)?;
                let Operand::Integer(table) = i.operands[4] else {
                    return Err(self.unknown("`lop3` without an immediate table"));
                };
                let to = self.destination(&i.operands[0], 32)?;
                let mut source = |at: usize| self.source(&i.operands[at], scalar);
                let (a, b, c) = (source(1)?, source(2)?, source(3)?);
                let compute = ternary(move |a, b, c| lookup(a, b, c, table));
                self.emit(Action::Ternary { to, a, b, c, compute })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn logic(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Translated {
        let scalar = m.scalar()?;
        m.end()?;
        if scalar == Scalar::Predicate {
            self.count(i, if i.name == "not" { 2 } else { 3 })?;
            let to = self.predicate_destination(&i.operands[0])?;
            let a = self.condition(&i.operands[1])?;
            let b = i.operands.get(2).map_or(Ok(a), |operand| self.condition(operand))?;
            let compute: fn(u32, u32) -> u32 = match i.name.as_str() {
                "and" => |a, b| a & b,
                "or" => |a, b| a | b,
                "xor" => |a, b| a ^ b,
                "not" => |a, _| !a,
                _ => return Err(self.unknown("this type")),
            };
            return self.emit(Action::Logic { to, a, b, compute });
        }
        if !scalar.is_integer() || scalar.bits() < 16 {
            return Err(self.unknown("this type"));
        }
        let integer = Integer::of(scalar);
        match i.name.as_str() {
            "and" => self.binary(i, scalar, scalar, scalar, binary(|a, b| a & b)),
            "or" => self.binary(i, scalar, scalar, scalar, binary(|a, b| a | b)),
            "xor" => self.binary(i, scalar, scalar, scalar, binary(|a, b| a ^ b)),
            "not" => self.unary(i, scalar, scalar, unary(move |a| integer.bits_of(!a))),
            _ => self.unary(i, scalar, scalar, unary(|a| u64::from(a == 0))),
        }
    }

    fn shift(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Translated {
        let scalar = m.scalar()?;
        m.end()?;
        let integer = Integer::of(scalar);
        let bits = u64::from(scalar.bits());
        // Counts are cut to the bits of the type: a longer shift gives zeros, or the sign.
        let compute = match (i.name == "shl", scalar.is_signed()) {
            (true, _) => binary(move |a, b| if b < bits { integer.bits_of(a << b) } else { 0 }),
            (false, false) => binary(move |a, b| if b < bits { a >> b } else { 0 }),
            (false, true) => binary(move |a, b| integer.bits_of((integer.extended(a) as i64 >> b.min(63)) as u64)),
        };
        self.binary(i, scalar, scalar, B32, compute)
    }

    fn funnel_shift(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Translated {
        let is_left = m.need("`.l` or `.r`", |name| match name {
            "l" => Some(true),
            "r" => Some(false),
            _ => None,
        })?;
        let wraps = m.need("`.clamp` or `.wrap`", |name| match name {
            "wrap" => Some(true),
            "clamp" => Some(false),
            _ => None,
        })?;
        let scalar = m.scalar()?;
        m.end()?;
        if scalar != B32 {
            return Err(self.unknown("this type"));
        }
        let compute = ternary(move |low, high, count| {
            let count = if wraps { count & 31 } else { count.min(32) };
            let whole = high << 32 | low;
            let shifted = if is_left { ((u128::from(whole) << count) >> 32) as u64 } else { whole >> count };
            shifted & 0xffff_ffff
        });
        self.ternary(i, scalar, scalar, compute)
    }

    fn permute(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Translated {
        let scalar = m.scalar()?;
        let mode = m.take(|name| ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].into_iter().position(|mode| mode == name));
        m.end()?;
        if scalar != B32 {
            return Err(self.unknown("this type"));
        }
        let compute = ternary(move |a, b, selector| permuted(mode, b << 32 | a, selector));
        self.ternary(i, scalar, scalar, compute)
    }

    /// Translates `slct`: the first operand if the third one is not negative. A NaN is.
    pub(crate) fn select_by_sign(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let flushes = m.takes("ftz");
        let (scalar, by) = (m.scalar()?, m.scalar()?);
        m.end()?;
        let is_float = by == Scalar::Float(F32);
        if !is_float && (flushes || by != Scalar::Signed(32)) {
            return Err(self.unknown("a choice by this type"));
        }
        self.count(i, 4)?;
        let to = self.destination(&i.operands[0], scalar.bits())?;
        let (a, b) = (self.source(&i.operands[1], scalar)?, self.source(&i.operands[2], scalar)?);
        let c = self.source(&i.operands[3], by)?;
        let is_first = move |c: u64| match is_float {
            true => f32::from_bits(if flushes { F32.flushed(c) } else { c } as u32) >= 0.0,
            false => c as u32 as i32 >= 0,
        };
        let compute = ternary(move |a, b, c| if is_first(c) { a } else { b });
        self.emit(Action::Ternary { to, a, b, c, compute })
    }

    /// Translates `selp`.
    pub(crate) fn select(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let scalar = m.scalar()?;
        m.end()?;
        self.count(i, 4)?;
        let to = self.destination(&i.operands[0], scalar.bits())?;
        let (a, b) = (self.source(&i.operands[1], scalar)?, self.source(&i.operands[2], scalar)?);
        let condition: Condition = self.condition(&i.operands[3])?;
        self.emit(Action::Select { to, a, b, condition })
    }
}

/// Returns the field of `count` bits from bit `start` on. Bits beyond the type are zeros, or the
/// sign of the field.
fn extract(scalar: Scalar, a: u64, start: u64, count: u64) -> u64 {
    let integer = Integer::of(scalar);
    let last = u64::from(scalar.bits()) - 1;
    if count == 0 {
        return 0;
    }
    let sign = scalar.is_signed() && a >> (start + count - 1).min(last) & 1 == 1;
    let moved = if start > last { 0 } else { a >> start };
    let available = (last + 1).saturating_sub(start).min(count);
    let mask = 1u64.checked_shl(available as u32).map_or(u64::MAX, |bit| bit - 1);
    integer.bits_of(moved & mask | if sign { !mask } else { 0 })
}

/// Returns `b` with `count` bits of `a` from bit `start` on.
fn insert([a, b, start, count]: [u64; 4], bits: u32) -> u64 {
    let (start, count) = (start & 0xff, count & 0xff);
    let all = u64::MAX >> (64 - bits);
    let ones = 1u64.checked_shl(count as u32).map_or(u64::MAX, |bit| bit - 1);
    let mask = ones.checked_shl(start as u32).unwrap_or(0) & all;
    b & !mask | a.checked_shl(start as u32).unwrap_or(0) & mask
}

/// Returns for each bit the bit of the table that the bits of three operands select.
fn lookup(a: u64, b: u64, c: u64, table: u64) -> u64 {
    (0..8).filter(|row| table >> row & 1 == 1).fold(0, |result, row| {
        let of = |operand: u64, bit: u64| if row & bit == 0 { !operand } else { operand };
        result | of(a, 4) & of(b, 2) & of(c, 1)
    }) & 0xffff_ffff
}

/// Returns four bytes of eight. Without a mode, each half byte of the selector names one, and its
/// highest bit asks for the byte's sign in its place.
fn permuted(mode: Option<usize>, bytes: u64, selector: u64) -> u64 {
    let byte = |at: u64| bytes >> (8 * (at & 7)) & 0xff;
    let low = selector & 3;
    let choose = |at: u64| match mode {
        None => {
            let choice = selector >> (4 * at) & 0xf;
            let byte = byte(choice);
            if choice & 8 == 0 { byte } else { (byte >> 7) * 0xff }
        }
        Some(0) => byte(low + at),
        Some(1) => byte(low.wrapping_sub(at)),
        Some(2) => byte(low),
        Some(3) => byte(at.max(low)),
        Some(4) => byte(at.min(low)),
        Some(_) => byte((selector & 1) * 2 + (at & 1)),
    };
    (0..4).fold(0, |word, at| word | choose(at) << (8 * at))
}
