//! The command `consonance`, as a library: the binary of that name, and whoever carries the command
//! in a program of their own, calls [`main`], and says by [`carried_by`] how it is started.
//!
//! `command` reads the arguments. What a subcommand does has a module of its own: [`launcher`] for
//! `consonance run`, [`mod@bench`], [`explain`], [`doctor`], and `soak`, whose cases are the
//! harness's, by processes that are stopped and killed.

#![forbid(unsafe_code)]

mod command;
mod itself;
pub mod launcher;
pub mod bench;
pub mod explain;
pub mod doctor;
#[cfg(target_os = "linux")]
pub mod soak;

pub use command::main;
pub use itself::carried_by;
