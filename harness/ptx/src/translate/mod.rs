//! From the parts of a module to programs: each instruction's meaning is chosen once.

mod modifiers;
mod symbols;
mod kernel;
mod module;
mod halves;
mod integer;
mod bits;
mod float;
mod convert;
mod compare;
mod transfer;
mod control;

use crate::parse::{Instruction, ParseError, Scalar};
use kernel::Translator;
use modifiers::Modifiers;

pub(crate) use module::{Translation, translate};

type Translated = Result<(), ParseError>;

impl<'a> Translator<'a> {
    /// Translates an instruction. The guard and the line are set.
    fn instruction(&mut self, i: &'a Instruction) -> Translated {
        match i.name.as_str() {
            "add" | "sub" | "mul" | "mad" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "sad" | "addc" | "subc"
            | "madc" | "fma" | "rcp" | "sqrt" => {
                let mut m = Modifiers::new(i);
                let scalar = m.scalar()?;
                match scalar {
                    Scalar::Float(_) | Scalar::Pair(_) => self.float(i, m, scalar),
                    _ => self.integer(i, m, scalar),
                }
            }
            "copysign" | "testp" => self.float_bits(i),
            "cvt" => self.convert(i),
            "setp" => self.compare(i),
            "set" => self.compare_to_register(i),
            "selp" => self.select(i),
            "slct" => self.select_by_sign(i),
            "mov" => self.movement(i),
            "ld" | "ldu" | "st" => self.access(i),
            "cvta" => self.convert_address(i),
            "isspacep" => self.test_space(i),
            "prefetch" | "prefetchu" => self.prefetch(i),
            "bra" => self.branch(i),
            "brx" => self.branch_indexed(i),
            "ret" | "exit" => self.leave(i),
            "call" => self.call(i),
            "bar" | "barrier" => self.barrier(i),
            "shfl" => self.shuffle(i),
            "vote" => self.vote(i),
            "activemask" => self.active_lanes(i),
            "trap" => self.emit(crate::program::Action::Trap),
            "membar" | "fence" => self.emit(crate::program::Action::Nothing),
            _ => match self.bits(i)? {
                true => Ok(()),
                false => Err(self.unknown(&format!("the instruction `{}`", i.name))),
            },
        }
    }
}
