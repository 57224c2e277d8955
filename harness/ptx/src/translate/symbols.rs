//! The meaning of the names of a module and of a kernel.

use crate::{
    parse::{Function, Initial, ParseError, Space, Syntax, Variable},
    program::{Predicate, Register},
};

/// The meaning of a name in a scope.
#[derive(Clone, Debug)]
pub(crate) enum Entity {
    Register { plane: Register },
    Predicate(Predicate),
    Variable { space: Space, address: u64 },
    Dynamic,
    Global(usize),
    Label(usize),
    Targets(Vec<String>),
}

/// The names that the kernels of a module can use.
pub(crate) struct Symbols<'a> {
    syntax: &'a Syntax,
    pub(crate) globals: Vec<&'a Variable>,
    pub(crate) constants: Vec<(&'a Variable, u32)>,
}

/// A variable in global memory.
pub(crate) struct GlobalVariable {
    /// Its initial bytes. Those without a value are zeros.
    pub(crate) data: Vec<u8>,
    /// The addresses in it: the offset, the other variable's number, what is added.
    pub(crate) addresses: Vec<(usize, usize, i64)>,
}

impl<'a> Symbols<'a> {
    pub(crate) fn new(syntax: &'a Syntax) -> Result<Symbols<'a>, ParseError> {
        let of = |space| syntax.variables.iter().filter(move |variable| variable.space == space);
        let mut constants: Vec<(&Variable, u32)> = Vec::new();
        let mut next = 0u32;
        for variable in of(Space::Constant) {
            let offset = next.next_multiple_of(variable.align);
            next = offset.checked_add(variable.bytes).filter(|end| *end <= MOST_CONSTANTS).ok_or_else(|| {
                ParseError::new(variable.line, format!("constants take more than {MOST_CONSTANTS} bytes"))
            })?;
            constants.push((variable, offset));
        }
        let known = [Space::Constant, Space::Global, Space::Shared];
        if let Some(variable) = syntax.variables.iter().find(|variable| !known.contains(&variable.space)) {
            return Err(ParseError::new(variable.line, "a variable of this space outside functions is not known here"));
        }
        Ok(Symbols { syntax, globals: of(Space::Global).collect(), constants })
    }

    pub(crate) fn function(&self, name: &str) -> Option<&'a Function> {
        let of_name = |function: &&Function| function.name == name && !function.is_kernel;
        let with_body = self.syntax.functions.iter().find(|function| of_name(function) && function.body.is_some());
        with_body.or_else(|| self.syntax.functions.iter().find(of_name))
    }

    /// Returns a variable of the module that has the same place for all kernels.
    pub(crate) fn entity(&self, name: &str) -> Option<Entity> {
        if let Some(at) = self.globals.iter().position(|variable| variable.name == name) {
            return Some(Entity::Global(at));
        }
        let (_, offset) = self.constants.iter().find(|(variable, _)| variable.name == name)?;
        Some(Entity::Variable { space: Space::Constant, address: (*offset).into() })
    }

    /// Returns a shared variable of the module, which has its place in each kernel.
    pub(crate) fn shared(&self, name: &str) -> Option<&'a Variable> {
        self.syntax.variables.iter().find(|variable| variable.space == Space::Shared && variable.name == name)
    }

    pub(crate) fn global(&self, variable: &Variable) -> Result<GlobalVariable, ParseError> {
        let mut global = GlobalVariable { data: vec![0; variable.bytes as usize], addresses: Vec::new() };
        let size = variable.scalar.bytes() as usize;
        for (at, initial) in variable.initial.iter().enumerate() {
            let bits = match initial {
                Initial::Number(bits) => *bits,
                Initial::Address(name, offset) => {
                    match self.entity(name) {
                        Some(Entity::Global(other)) if size == 8 => global.addresses.push((at * size, other, *offset)),
                        _ => {
                            let what = format!("`{name}` is no variable whose address is known here");
                            return Err(ParseError::new(variable.line, what));
                        }
                    }
                    0
                }
            };
            global.data[at * size..][..size].copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        Ok(global)
    }
}

/// The bytes of constants that a module can have.
const MOST_CONSTANTS: u32 = 65_536;
