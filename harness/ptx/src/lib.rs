//! An interpreter of PTX, for tests: it runs the kernels that ship, without a device, and reports
//! what a device would not.
//!
//! [`Module::parse`] translates a text once; [`Module::launch`] runs one of its kernels on a
//! [`Memory`]. Every access is checked: it must be aligned, inside a live allocation, and read only
//! what was written before. Two threads that touch one byte, one of them writing, without a barrier
//! between them, are a race, whose report has both lines. So are two blocks of one launch, whatever
//! the order in which they ran. A barrier that not all threads of a block reach is a fault, and so
//! is a shuffle or a vote that not all the named lanes reach, or a shuffle that reads a lane that
//! does not take part. The manual lets `ld.global.nc` read only what nothing writes during the
//! launch: a write, even by the same thread, is a fault.
//!
//! The *seed* of a launch chooses the order of the blocks, and how the warps of a block take turns.
//!
//! An instruction, a modifier or a directive that the crate does not know is an error that names
//! its line. Instructions whose result the manual does not define to the bit (`.approx`, `.full`)
//! are among them.
//!
//! # What the manual leaves open
//!
//! * A NaN that an f32, f16 or bf16 instruction computes is the canonical one (`0x7fffffff`,
//!   `0x7fff`). An f64 instruction returns the first operand that is a NaN, made quiet, and
//!   `0xfff8000000000000` for an invalid operation. Conversions to f64 keep the payload. `abs` and
//!   `neg` change the sign only.
//! * Integer division by zero has a result of ones, the remainder is the dividend.
//! * Registers hold a fixed pattern before the first write.
//!
//! # What is not modelled
//!
//! * Memory order between blocks beyond launches: blocks run one after the other. Atomics,
//!   `ld.acquire` and the like are not known; fences have no effect.
//! * The assembler's freedom: `add.f32` and `mul.f32` without a rounding mode may become a fused
//!   multiply-add on a device, but not here.
//! * Barriers of some of the warps, clusters, tensor cores, textures, asynchronous copies.
//! * Timing, caches, and the hardware's limits: registers, shared memory and blocks are as many as
//!   a launch asks for. A block has at most 1,024 threads, a grid at most 2^24 blocks.

#![forbid(unsafe_code)]

mod fault;
mod number;
mod parse;
mod memory_map;
mod memory;
mod program;
mod translate;
mod run;
mod module;

pub use fault::{Fault, FaultKind, Other};
pub use memory::Memory;
pub use module::Module;
pub use parse::ParseError;
pub use program::Parameter;
pub use run::{Launch, Stats};
