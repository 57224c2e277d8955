//! The modifiers of an instruction, each used once.

use crate::parse::{Instruction, ParseError, Scalar};

/// The modifiers that were not used yet.
pub(crate) struct Modifiers<'a> {
    line: u32,
    rest: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    pub(crate) fn new(instruction: &'a Instruction) -> Modifiers<'a> {
        let rest = instruction.modifiers.iter().map(String::as_str).collect();
        Modifiers { line: instruction.line, rest }
    }

    /// Uses a modifier, and returns whether it is there.
    pub(crate) fn takes(&mut self, name: &str) -> bool {
        self.take(|modifier| (modifier == name).then_some(())).is_some()
    }

    /// Uses the first modifier that `meaning` knows.
    pub(crate) fn take<T>(&mut self, meaning: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self.rest.iter().enumerate().find_map(|(at, modifier)| Some((at, meaning(modifier)?)))?;
        self.rest.remove(at);
        Some(value)
    }

    /// As [`take`](Self::take), for a modifier that must be there.
    pub(crate) fn need<T>(&mut self, what: &str, meaning: impl Fn(&str) -> Option<T>) -> Result<T, ParseError> {
        let line = self.line;
        self.take(meaning).ok_or_else(|| ParseError::new(line, format!("the instruction needs {what}")))
    }

    /// Uses the next type.
    pub(crate) fn scalar(&mut self) -> Result<Scalar, ParseError> {
        self.need("a type that is known here", Scalar::of_name)
    }

    /// Returns an error if a modifier was not used.
    pub(crate) fn end(self) -> Result<(), ParseError> {
        match self.rest.first() {
            None => Ok(()),
            Some(modifier) => Err(ParseError::new(self.line, format!("the modifier `.{modifier}` is not known here"))),
        }
    }
}
