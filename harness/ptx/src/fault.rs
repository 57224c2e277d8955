//! The reason why a launch ended early.

use std::fmt;

/// The reason why an access or a launch was refused. `line` is a line of the module's text, counted
/// from 1; it is 0 for an access of the host, which no line makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The line of PTX that was executed, 0 if none.
    pub line: u32,
    /// The text of this line.
    pub text: String,
    /// The block (`%ctaid`) whose thread executed it.
    pub block: [u32; 3],
    /// The thread (`%tid`) that executed it. Of several threads, the first.
    pub thread: [u32; 3],
    /// The address, of an access to memory.
    pub address: Option<u64>,
    /// The other side of a race, or of a barrier that not all threads reach.
    pub other: Option<Box<Other>>,
    /// More facts, in words.
    pub detail: String,
}

/// The thread that a faulty thread met, and the line that it executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// The line of PTX.
    pub line: u32,
    /// The text of this line.
    pub text: String,
    /// The block of the thread.
    pub block: [u32; 3],
    /// The thread.
    pub thread: [u32; 3],
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// An access outside the live allocations.
    OutOfBounds,
    /// An access to memory that was freed.
    Freed,
    /// An address that is no multiple of the size of the access.
    Misaligned,
    /// A read of bytes that nothing has written.
    Uninitialised,
    /// A write to memory that can only be read: a constant, a parameter, or what `ld.global.nc`
    /// reads in the same launch.
    ReadOnly,
    /// Two threads touched one byte, one of them wrote, and no barrier was between.
    Race,
    /// A barrier of the block that not all threads reach.
    BarrierDivergence,
    /// An instruction for several lanes of a warp that not all named lanes reach.
    WarpDivergence,
    /// An instruction whose result the manual leaves undefined for these operands.
    Undefined,
    /// The launch executed as many instructions as it may.
    InstructionLimit,
    /// The instruction `trap`.
    Trap,
    /// A launch of a kernel, grid, block or parameters that cannot be.
    InvalidLaunch,
}

impl Fault {
    /// Returns a fault that no thread made.
    pub(crate) fn of_host(kind: FaultKind, address: Option<u64>, detail: impl Into<String>) -> Fault {
        Fault {
            kind,
            line: 0,
            text: String::new(),
            block: [0; 3],
            thread: [0; 3],
            address,
            other: None,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        if let Some(address) = self.address {
            write!(f, " at address {address:#x}")?;
        }
        if self.line > 0 {
            write!(f, ", block {:?}, thread {:?}, line {}: `{}`", self.block, self.thread, self.line, self.text)?;
        }
        if let Some(other) = &self.other {
            write!(f, "; block {:?}, thread {:?}, line {}: `{}`", other.block, other.thread, other.line, other.text)?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
