//! A launch of a kernel as a value.

use consonance_spec::{DType, ReduceOp};
use std::fmt;

/// A kernel: an entry of a PTX module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// The PTX text of the module. One module has the kernels that are used together.
    pub module: &'static str,
    /// The name of the entry.
    pub name: &'static str,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}

/// A kernel with its geometry and parameters, ready to be launched.
///
/// All kernels stride over their work: any `grid` from 1 on gives the same bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// The number of blocks, along the only axis.
    pub grid: u32,
    /// The number of threads of a block, along the only axis: a multiple of 32.
    pub block: u32,
    /// The bytes of shared memory beyond what the kernel declares.
    pub shared_bytes: u32,
    /// The bytes of the kernel's only parameter.
    pub parameters: Vec<u8>,
}

/// The number of threads of a block.
pub(super) const BLOCK: u32 = 256;

/// Limit on the blocks of a grid: more than any device runs at a time.
const GRID: u64 = 8192;

impl Launch {
    /// Returns the launch of enough threads for `items`, each of which has `threads` threads.
    pub(super) fn new(kernel: Kernel, items: u64, threads: u64, parameters: Parameters) -> Launch {
        let blocks = items.div_ceil((u64::from(BLOCK) / threads).max(1)).clamp(1, GRID);
        Launch { kernel, grid: blocks as u32, block: BLOCK, shared_bytes: 0, parameters: parameters.0 }
    }

    /// Returns the launch with at most `blocks` blocks. The results have the same bits.
    pub fn at_most(mut self, blocks: u32) -> Launch {
        self.grid = self.grid.min(blocks.max(1));
        self
    }
}

/// The bytes of a parameter, in the layout of C on the device.
pub(super) struct Parameters(Vec<u8>);

impl Parameters {
    pub(super) fn new() -> Parameters {
        Parameters(Vec::with_capacity(512))
    }

    pub(super) fn u32(mut self, value: u32) -> Parameters {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Parameters {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn f32(self, value: f32) -> Parameters {
        self.u32(value.to_bits())
    }

    pub(super) fn f64(self, value: f64) -> Parameters {
        self.u64(value.to_bits())
    }

    /// Appends an array with room for `room` numbers.
    pub(super) fn array(mut self, values: impl ExactSizeIterator<Item = u64>, room: usize) -> Parameters {
        let end = self.0.len() + 8 * room;
        assert!(values.len() <= room, "{} numbers in an array of {room}", values.len());
        values.for_each(|value| self.0.extend(value.to_le_bytes()));
        self.0.resize(end, 0);
        self
    }
}

/// The reason why there is no launch for some arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The operation is not defined on the element type.
    Undefined {
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// There is no kernel for this element type.
    Type {
        /// The kernel's work, in words.
        what: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// An argument has another number of items than a launch can take.
    Number {
        /// The argument.
        what: &'static str,
        /// The numbers that a launch can take.
        expected: std::ops::RangeInclusive<u64>,
        /// The number found.
        found: u64,
    },
    /// An address is not a multiple of the size of the elements there.
    Unaligned {
        /// The argument.
        what: &'static str,
        /// The address.
        address: u64,
        /// The size of an element.
        bytes: usize,
    },
    /// The elements do not fit the address space.
    TooLarge,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Undefined { op, dtype } => write!(f, "{op} is not defined on {dtype}"),
            Unsupported::Type { what, dtype } => write!(f, "no kernel for {what} has the element type {dtype}"),
            Unsupported::Number { what, expected, found } => {
                write!(f, "expected {} to {} {what}, found {found}", expected.start(), expected.end())
            }
            Unsupported::Unaligned { what, address, bytes } => {
                write!(f, "expected {what} at a multiple of {bytes} bytes, found one at {address:#x}")
            }
            Unsupported::TooLarge => write!(f, "the elements do not fit the address space"),
        }
    }
}

impl std::error::Error for Unsupported {}

/// Checks that the addresses are multiples of the size of an element.
pub(super) fn aligned(what: &'static str, addresses: &[u64], bytes: usize) -> Result<(), Unsupported> {
    match addresses.iter().find(|address| !address.is_multiple_of(bytes as u64)) {
        Some(&address) => Err(Unsupported::Unaligned { what, address, bytes }),
        None => Ok(()),
    }
}

/// Checks that `found` is a number that a launch can take.
pub(super) fn number(
    what: &'static str,
    expected: std::ops::RangeInclusive<u64>,
    found: usize,
) -> Result<(), Unsupported> {
    let found = found as u64;
    if expected.contains(&found) { Ok(()) } else { Err(Unsupported::Number { what, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_texts() {
        for (error, text) in [
            (Unsupported::Undefined { op: ReduceOp::Xor, dtype: DType::F32 }, "xor is not defined on f32"),
            (Unsupported::Type { what: "scaling", dtype: DType::I8 }, "no kernel for scaling has the element type i8"),
            (
                Unsupported::Number { what: "sources", expected: 1..=16, found: 17 },
                "expected 1 to 16 sources, found 17",
            ),
            (
                Unsupported::Unaligned { what: "sources", address: 6, bytes: 4 },
                "expected sources at a multiple of 4 bytes, found one at 0x6",
            ),
            (Unsupported::TooLarge, "the elements do not fit the address space"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
