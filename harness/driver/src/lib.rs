//! A library with the functions of NVIDIA's CUDA driver, for tests on machines without a GPU. Its
//! one device is the interpreter of PTX, and says so: its name is
//! [`INTERPRETER`](consonance_kernels::cuda::INTERPRETER).
//!
//! `exports.rs` has the driver's functions, and `control.rs` those by which a test controls them.
//! A [`Plan`] says which calls fail and which work is late. `objects.rs` has the objects that are
//! alive; a call that a program with a real driver must not make is noted there as *misuse*.
//! `work.rs` has what streams have to do. Work is not done when it is enqueued but when the stream
//! is asked, so that memory which was freed too early is no longer there.
//!
//! `other_library.rs` plays a library beside this one, with a stream and memory of its own.
//!
//! The functions have the types that `consonance_kernels::cuda::sys` declares:
//! [`FUNCTIONS`](exports::FUNCTIONS) is a table of that type.

mod plan;
mod machine;
mod pinned_memory;
mod event;
mod work;
mod objects;
mod texts;
pub mod exports;
pub mod control;
pub mod other_library;

pub use plan::Plan;
