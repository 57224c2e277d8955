//! The reason why a text is no module.

use std::fmt;

/// A part of a module's text that this crate cannot run, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: u32,
    /// The text of this line.
    pub text: String,
    /// The fault, in words.
    pub what: String,
}

impl ParseError {
    /// Returns an error; the text of its line is added by [`ParseError::with_text`].
    pub(crate) fn new(line: u32, what: impl Into<String>) -> ParseError {
        ParseError { line, text: String::new(), what: what.into() }
    }

    /// Adds the text of the line.
    pub(crate) fn with_text(mut self, module: &str) -> ParseError {
        let line = module.lines().nth((self.line as usize).saturating_sub(1));
        self.text = line.unwrap_or_default().trim().to_owned();
        self
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: `{}`", self.line, self.what, self.text)
    }
}

impl std::error::Error for ParseError {}
