//! Translates a module: its variables and its kernels.

use super::{
    kernel::Translator,
    symbols::{GlobalVariable, Symbols},
};
use crate::{
    parse::{ParseError, Syntax},
    program::Program,
};

/// A translated module.
pub(crate) struct Translation {
    pub(crate) kernels: Vec<Program>,
    /// The variables in global memory.
    pub(crate) globals: Vec<GlobalVariable>,
    /// The constants, one behind the other.
    pub(crate) constants: Vec<u8>,
}

/// Translates a module.
pub(crate) fn translate(syntax: &Syntax) -> Result<Translation, ParseError> {
    let symbols = Symbols::new(syntax)?;
    let mut constants = Vec::new();
    for (variable, offset) in &symbols.constants {
        let global = symbols.global(variable)?;
        if !global.addresses.is_empty() {
            return Err(ParseError::new(variable.line, "a constant with the address of a variable is not known here"));
        }
        constants.resize(*offset as usize, 0);
        constants.extend(global.data);
    }
    let globals = symbols.globals.iter().map(|variable| symbols.global(variable)).collect::<Result<_, _>>()?;
    let kernels = syntax.functions.iter().filter(|function| function.is_kernel && function.body.is_some());
    let kernels = kernels.map(|function| Translator::kernel(&symbols, function)).collect::<Result<_, _>>()?;
    Ok(Translation { kernels, globals, constants })
}
