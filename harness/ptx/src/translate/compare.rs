//! `setp` and `set`.

use super::{Translated, float::Finish, integer::Integer, kernel::Translator, modifiers::Modifiers};
use crate::{
    number::{F16, F32, F64, Format, Value},
    parse::{Instruction, Operand, Scalar},
    program::{ALWAYS, Action, Comparison, comparison},
};
use std::cmp::Ordering;

/// A comparison of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Relation {
    /// Whether it holds for less, equal and greater operands.
    less: bool,
    equal: bool,
    greater: bool,
    /// Whether it holds if an operand is a NaN.
    unordered: bool,
    /// `lo`, `ls`, `hi`, `hs`: for integers without a sign alone.
    is_unsigned: bool,
}

impl Relation {
    fn of_modifier(name: &str) -> Option<Relation> {
        let relation =
            |less, equal, greater, unordered| Relation { less, equal, greater, unordered, is_unsigned: false };
        let unsigned = |less, equal, greater| Relation { is_unsigned: true, ..relation(less, equal, greater, false) };
        Some(match name {
            "eq" => relation(false, true, false, false),
            "ne" => relation(true, false, true, false),
            "lt" => relation(true, false, false, false),
            "le" => relation(true, true, false, false),
            "gt" => relation(false, false, true, false),
            "ge" => relation(false, true, true, false),
            "lo" => unsigned(true, false, false),
            "ls" => unsigned(true, true, false),
            "hi" => unsigned(false, false, true),
            "hs" => unsigned(false, true, true),
            "equ" => relation(false, true, false, true),
            "neu" => relation(true, false, true, true),
            "ltu" => relation(true, false, false, true),
            "leu" => relation(true, true, false, true),
            "gtu" => relation(false, false, true, true),
            "geu" => relation(false, true, true, true),
            "num" => relation(true, true, true, false),
            "nan" => relation(false, false, false, true),
            _ => return None,
        })
    }

    fn holds(self, ordering: Option<Ordering>) -> bool {
        match ordering {
            Some(Ordering::Less) => self.less,
            Some(Ordering::Equal) => self.equal,
            Some(Ordering::Greater) => self.greater,
            None => self.unordered,
        }
    }

    fn of_integers(self, scalar: Scalar) -> Comparison {
        let integer = Integer::of(scalar);
        if scalar.is_signed() && !self.is_unsigned {
            let value = move |a| integer.extended(a) as i64;
            return match (self.less, self.equal, self.greater) {
                (true, false, false) => comparison(move |a, b| value(a) < value(b)),
                (true, true, false) => comparison(move |a, b| value(a) <= value(b)),
                (false, false, true) => comparison(move |a, b| value(a) > value(b)),
                (false, true, true) => comparison(move |a, b| value(a) >= value(b)),
                (false, true, false) => comparison(|a, b| a == b),
                _ => comparison(|a, b| a != b),
            };
        }
        match (self.less, self.equal, self.greater) {
            (true, false, false) => comparison(|a, b| a < b),
            (true, true, false) => comparison(|a, b| a <= b),
            (false, false, true) => comparison(|a, b| a > b),
            (false, true, true) => comparison(|a, b| a >= b),
            (false, true, false) => comparison(|a, b| a == b),
            _ => comparison(|a, b| a != b),
        }
    }

    fn of_floats(self, finish: Finish) -> Comparison {
        match (finish.format, finish.flushes) {
            (F32, false) => {
                comparison(move |a, b| self.holds(f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32))))
            }
            (F64, _) => comparison(move |a, b| self.holds(f64::from_bits(a).partial_cmp(&f64::from_bits(b)))),
            (format, _) => comparison(move |a, b| {
                let value = |bits| number(format, finish.operand(bits));
                self.holds(value(a).partial_cmp(&value(b)))
            }),
        }
    }
}

/// Returns the number that the bits of a format of at most 32 bits stand for.
fn number(format: Format, bits: u64) -> f64 {
    match format.value(bits) {
        Value::Nan => f64::NAN,
        Value::Infinity { is_negative: true } => f64::NEG_INFINITY,
        Value::Infinity { is_negative: false } => f64::INFINITY,
        Value::Finite(x) => f64::from_bits(F64.round(x, crate::number::Rounding::NearestEven)),
    }
}

impl Translator<'_> {
    /// Translates `setp`.
    pub(crate) fn compare(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let relation = m.need("a comparison", Relation::of_modifier)?;
        let combine: Option<fn(u32, u32) -> u32> = m.take(|name| match name {
            "and" => Some((|a, b| a & b) as fn(u32, u32) -> u32),
            "or" => Some(|a, b| a | b),
            "xor" => Some(|a, b| a ^ b),
            _ => None,
        });
        let (scalar, compute) = self.comparison(&mut m, relation)?;
        m.end()?;
        self.count(i, if combine.is_some() { 4 } else { 3 })?;
        let (to, complement) = match &i.operands[0] {
            Operand::Pair(to, complement) => {
                (self.predicate_destination(to)?, Some(self.predicate_destination(complement)?))
            }
            to => (self.predicate_destination(to)?, None),
        };
        let (a, b) = (self.source(&i.operands[1], scalar)?, self.source(&i.operands[2], scalar)?);
        let with = i.operands.get(3).map_or(Ok(ALWAYS), |operand| self.condition(operand))?;
        let combine = combine.unwrap_or(|a, _| a);
        self.emit(Action::Compare { to, complement, a, b, compute, combine, with })
    }

    /// Translates `set` without a combination: the result is all ones, or 1.0, or zero.
    pub(crate) fn compare_to_register(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let relation = m.need("a comparison", Relation::of_modifier)?;
        let to = m.scalar()?;
        let (scalar, compute) = self.comparison(&mut m, relation)?;
        m.end()?;
        let one = match to {
            Scalar::Float(F32) => u64::from(1f32.to_bits()),
            Scalar::Bits(32) | Scalar::Unsigned(32) | Scalar::Signed(32) => 0xffff_ffff,
            _ => return Err(self.unknown("a result of this type")),
        };
        let compute: crate::program::Binary = Box::new(move |a, b, to| {
            let mask = compute(a, b);
            *to = std::array::from_fn(|at| if mask >> at & 1 == 1 { one } else { 0 });
        });
        self.binary(i, to, scalar, scalar, compute)
    }

    /// Translates a test of one operand, with a predicate as its result.
    pub(crate) fn test(&mut self, i: &Instruction, scalar: Scalar, compute: Comparison) -> Translated {
        self.count(i, 2)?;
        let to = self.predicate_destination(&i.operands[0])?;
        let a = self.source(&i.operands[1], scalar)?;
        self.emit(Action::Compare { to, complement: None, a, b: a, compute, combine: |a, _| a, with: ALWAYS })
    }

    fn comparison(
        &mut self,
        m: &mut Modifiers<'_>,
        relation: Relation,
    ) -> Result<(Scalar, Comparison), crate::ParseError> {
        let flushes = m.takes("ftz");
        let scalar = m.scalar()?;
        let is_for_floats = relation.unordered || relation == NUMBERS;
        match scalar {
            Scalar::Float(format) if !relation.is_unsigned && (!flushes || format == F32 || format == F16) => {
                let finish = Finish { format, flushes, saturates: false, clips: false };
                Ok((scalar, relation.of_floats(finish)))
            }
            _ if scalar.is_integer() && scalar.bits() >= 16 && !is_for_floats && !flushes => {
                Ok((scalar, relation.of_integers(scalar)))
            }
            _ => Err(self.unknown("this comparison of this type")),
        }
    }
}

/// `num`.
const NUMBERS: Relation = Relation { less: true, equal: true, greater: true, unordered: false, is_unsigned: false };
