//! The text of a module as its parts.

mod error;
mod token;
mod scalar;
mod syntax;
mod parser;
mod statement;

pub use error::ParseError;
pub(crate) use parser::Parser;
pub(crate) use scalar::Scalar;
pub(crate) use syntax::{Function, Initial, Instruction, Operand, Space, Statement, Syntax, Variable};
