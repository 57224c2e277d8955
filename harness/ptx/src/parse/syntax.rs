//! The parts of a module as they are written.

use super::scalar::Scalar;

/// A module: its variables and functions, in their order.
#[derive(Debug, Default)]
pub(crate) struct Syntax {
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
}

/// The state spaces of variables and accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Constant,
    Parameter,
    Register,
}

/// A declared variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) scalar: Scalar,
    pub(crate) align: u32,
    pub(crate) bytes: u32,
    /// Whether the launch sets the size: an array without bounds.
    pub(crate) is_dynamic: bool,
    pub(crate) initial: Vec<Initial>,
    pub(crate) line: u32,
}

/// An element of an initial value.
#[derive(Clone, Debug)]
pub(crate) enum Initial {
    /// The bits of a number.
    Number(u64),
    /// The address of a variable, plus an offset. It is generic where `generic(…)` is written.
    Address(String, i64),
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) results: Vec<Variable>,
    pub(crate) parameters: Vec<Variable>,
    /// The threads of a block that the kernel demands (`.reqntid`) or allows (`.maxntid`).
    pub(crate) required_block: Option<[u32; 3]>,
    pub(crate) largest_block: Option<u32>,
    /// None for a declaration without a body.
    pub(crate) body: Option<Vec<Statement>>,
    pub(crate) line: u32,
}

/// A part of a body.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// `{ … }`, with names of its own.
    Block(Vec<Statement>),
    Label(String),
    /// `.reg .b32 %r<9>;` declares `%r0` to `%r8`.
    Registers {
        scalar: Scalar,
        name: String,
        count: Option<u32>,
        line: u32,
    },
    Variable(Variable),
    /// `name: .branchtargets a, b;`
    Targets(String, Vec<String>),
    Instruction(Instruction),
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The register after `@`, and whether `!` is between.
    pub(crate) guard: Option<(String, bool)>,
    /// The name before the first dot.
    pub(crate) name: String,
    /// The parts after it, without their dots.
    pub(crate) modifiers: Vec<String>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) line: u32,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A register, variable, label or function.
    Name(String),
    /// `!p`
    Not(String),
    /// `d|p`
    Pair(Box<Operand>, Box<Operand>),
    Integer(u64),
    Single(u32),
    Double(u64),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `[base+offset]`; without a base, the offset is the address.
    Address(Option<String>, i64),
    /// `name+offset`
    Sum(String, i64),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
}
