//! The table of kernels: which kernel does what, with which geometry and parameters.
//!
//! Each function makes a [`Launch`] of plain device addresses. It checks what a value can tell:
//! that the operation is defined, that numbers are within limits, that addresses are aligned. The
//! caller vouches for the memory at the addresses. Kernels read no memory beyond what the function
//! documents, and their results have the bits that the spec defines.
//!
//! The sources are in `kernels/cuda/`. A kernel's structure of parameters there has the fields that
//! its function here encodes.

mod launch;
mod module;
mod fold;
mod along;
mod rows;
mod concat;
mod convert;

pub use along::{BLOCK, along, tree, tree_groups};
pub use concat::concat;
pub use convert::{cast, compare, fill, scale};
pub use fold::{Accumulator, MOST, Stage, finish, fold, keep, reduce};
pub use launch::{Kernel, Launch, Unsupported};
pub use module::{Module, modules};
pub use rows::{Rows, sum_rows};
