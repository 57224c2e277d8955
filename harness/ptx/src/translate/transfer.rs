//! Moves, loads, stores and addresses.

use super::{Translated, integer::Integer, kernel::Translator, modifiers::Modifiers, symbols::Entity};
use crate::{
    memory_map,
    parse::{Instruction, Operand, ParseError, Scalar, Space},
    program::{ALWAYS, Access, Action, Constant, Register, binary, comparison, unary},
};

impl Translator<'_> {
    /// Translates `mov`.
    pub(crate) fn movement(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let scalar = m.scalar()?;
        m.end()?;
        self.count(i, 2)?;
        match (&i.operands[0], &i.operands[1]) {
            _ if scalar == Scalar::Predicate => {
                let (to, a) = (self.predicate_destination(&i.operands[0])?, self.condition(&i.operands[1])?);
                self.emit(Action::Logic { to, a, b: ALWAYS, compute: |a, _| a })
            }
            (to, Operand::Vector(parts)) => {
                let bits = self.part_bits(scalar, parts)?;
                let to = self.destination(to, scalar.bits())?;
                let mut whole = None;
                for (at, part) in parts.iter().enumerate() {
                    let part = self.source(part, Scalar::Bits(bits))?;
                    let shift = bits * at as u32;
                    let is_last = at + 1 == parts.len();
                    let next = if is_last { to } else { self.new_plane(64) };
                    let (a, b) = (whole.unwrap_or(part), part);
                    let compute = match whole {
                        None => binary(|_, b| b),
                        Some(_) => binary(move |a, b| a | b << shift),
                    };
                    self.emit(Action::Binary { to: next, a, b, compute })?;
                    whole = Some(next);
                }
                Ok(())
            }
            (Operand::Vector(parts), from) => {
                let bits = self.part_bits(scalar, parts)?;
                let from = self.source(from, scalar)?;
                for (at, part) in parts.iter().enumerate() {
                    let to = self.destination(part, bits)?;
                    let (shift, part) = (bits * at as u32, Integer::of(Scalar::Bits(bits)));
                    self.emit(Action::Unary { to, a: from, compute: unary(move |a| part.bits_of(a >> shift)) })?;
                }
                Ok(())
            }
            _ => self.unary(i, scalar, scalar, unary(|a| a)),
        }
    }

    fn part_bits(&self, scalar: Scalar, parts: &[Operand]) -> Result<u32, ParseError> {
        match (scalar.bits(), parts.len()) {
            (bits @ (32 | 64), count @ (2 | 4)) if bits / count as u32 >= 16 => Ok(bits / count as u32),
            _ => Err(self.unknown("a vector of this many parts")),
        }
    }

    /// Translates `ld`, `ldu` and `st`.
    pub(crate) fn access(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let space = m.take(|name| match name.split("::").next().unwrap_or_default() {
            "global" => Some(Space::Global),
            "shared" if name != "shared::cluster" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "const" => Some(Space::Constant),
            "param" => Some(Space::Parameter),
            _ => None,
        });
        let is_load = i.name != "st";
        for hint in ["weak", "volatile", "ca", "cg", "cs", "lu", "cv", "wb", "wt"] {
            m.takes(hint);
        }
        let is_read_only = is_load && m.takes("nc");
        while m.take(|name| (name.starts_with("L1::") || is_l2_hint(name)).then_some(())).is_some() {}
        let count = m.take(|name| match name {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        });
        let scalar = m.scalar()?;
        m.end()?;
        self.count(i, 2)?;
        if scalar == Scalar::Predicate || matches!(scalar, Scalar::Pair(_) | Scalar::IntegerPair { .. }) {
            return Err(self.unknown("an access of this type"));
        }
        let (value, address) = if is_load { (0, 1) } else { (1, 0) };
        let (base, offset) = self.address(&i.operands[address])?;
        let parts = match (&i.operands[value], count) {
            (Operand::Vector(parts), Some(count)) if parts.len() == count => parts.as_slice(),
            (Operand::Vector(_), _) | (_, Some(_)) => return Err(self.error("the vector has another size")),
            (one, None) => std::slice::from_ref(one),
        };
        let (mut elements, mut register_bits) = (Vec::new(), scalar.bits());
        for part in parts {
            if is_load && *part == Operand::Name("_".to_owned()) {
                elements.push(None);
                continue;
            }
            let plane = match is_load {
                true => self.wide_destination(part, scalar)?.0,
                false => self.wide_source(part, scalar)?,
            };
            register_bits = self.bits_of_register(plane);
            elements.push(Some(plane));
        }
        let space = space.unwrap_or(Space::Generic);
        let (bytes, is_signed) = (scalar.bytes(), scalar.is_signed());
        let access = Access { space, base, offset, bytes, elements, register_bits, is_signed, is_read_only };
        self.emit(if is_load { Action::Load(access) } else { Action::Store(access) })
    }

    /// Returns the plane of an address' base, and its offset.
    pub(crate) fn address(&mut self, operand: &Operand) -> Result<(Register, i64), ParseError> {
        let Operand::Address(base, offset) = operand else { return Err(self.error("an address was expected")) };
        let Some(name) = base else { return Ok((self.constant(Constant::Value(0), 64), *offset)) };
        let scalar = match self.find(name)? {
            Some(Entity::Register { plane }) => Scalar::Bits(self.bits_of_register(plane)),
            _ => Scalar::Bits(64),
        };
        if scalar.bits() < 32 {
            return Err(self.error("an address has 32 or 64 bits"));
        }
        Ok((self.source(&Operand::Name(name.clone()), scalar)?, *offset))
    }

    /// Translates `cvta`.
    pub(crate) fn convert_address(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let is_to = m.takes("to");
        let space = m.need("a state space", named_space)?;
        let scalar = m.scalar()?;
        m.end()?;
        if scalar.bits() != 64 || !scalar.is_integer() {
            return Err(self.unknown("an address of this type"));
        }
        let window = memory_map::window(space);
        let compute = match is_to {
            true => unary(move |a| a.wrapping_sub(window)),
            false => unary(move |a| a.wrapping_add(window)),
        };
        self.count(i, 2)?;
        let to = self.destination(&i.operands[0], 64)?;
        let a = self.source(&i.operands[1], scalar)?;
        self.emit(Action::Unary { to, a, compute })
    }

    /// Translates `isspacep`.
    pub(crate) fn test_space(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        let space = m.need("a state space", named_space)?;
        m.end()?;
        self.test(i, Scalar::Bits(64), comparison(move |a, _| memory_map::space_of(a).0 == space))
    }

    /// Translates `prefetch` and `prefetchu`, which change nothing.
    pub(crate) fn prefetch(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.take(named_space);
        m.need("a level", |name| (name == "L1" || name.starts_with("L2")).then_some(()))?;
        m.end()?;
        self.count(i, 1)?;
        self.address(&i.operands[0])?;
        self.emit(Action::Nothing)
    }
}

fn named_space(name: &str) -> Option<Space> {
    match name {
        "global" => Some(Space::Global),
        "shared" | "shared::cta" => Some(Space::Shared),
        "local" => Some(Space::Local),
        "const" => Some(Space::Constant),
        "param" | "param::entry" => Some(Space::Parameter),
        _ => None,
    }
}

/// Returns whether a modifier is a hint for the second cache that needs no operand.
fn is_l2_hint(name: &str) -> bool {
    name.starts_with("L2::") && name != "L2::cache_hint"
}
