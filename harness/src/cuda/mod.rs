//! The kernels of CUDA devices against the spec and the host's kernels.
//!
//! A case is a value. It is run on a [`Machine`]: the [`Interpreter`] runs the PTX that ships,
//! without a device, and a driver can run the same cases on one. Results are compared bit for bit;
//! all NaNs are equal.

mod machine;
mod interpreter;
mod buffer;
mod fold;
mod along;
mod rows;
mod moves;
pub(crate) mod convert;
mod fuzzed;
pub mod pairwise;

pub use along::AlongCase;
pub use convert::{cast_all, compare_arrays, scale_all};
pub use fold::{FoldCase, Route};
pub use fuzzed::fuzzed;
pub use interpreter::Interpreter;
pub use machine::Machine;
pub use moves::{ConcatCase, FillCase};
pub use rows::RowsCase;
