//! The command `consonance`, as a library. The binary of that name calls [`main`]. Another program
//! that carries the command also calls [`main`] or [`status`], and tells by [`carried_by`] how it
//! is started.
//!
//! `command` reads the arguments. Each subcommand has a module: [`launcher`] for `consonance run`,
//! `timeline`, [`mod@bench`], [`tune`], [`explain`], [`doctor`] and `soak`. `soak` takes its cases
//! from the harness and runs them in processes that it stops and kills.

#![forbid(unsafe_code)]

mod command;
mod executable;
mod subprocess;
mod timeline;
mod writable;
pub mod launcher;
pub mod bench;
pub mod explain;
pub mod tune;
pub mod doctor;
pub mod gpu_check;
#[cfg(target_os = "linux")]
pub mod soak;

pub use command::{main, status};
pub use executable::carried_by;
