//! The Python package `consonance`, on top of the crate `consonance`. It translates and decides
//! nothing.
//!
//! `array` turns arrays of Python into buffers: the only folder with unsafe code. `types.rs` has
//! their element types. `failure.rs` turns errors into exceptions. `waiting.rs` waits so that
//! Ctrl-C is heard. `collective.rs` executes a call or starts it. `jobs.rs` makes it of the
//! arguments, with `arguments.rs`. The other files have the classes.
//!
//! The package in `consonance/` adds the names that Python programs import, and PyTorch's backend.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod types;
#[allow(unsafe_code, reason = "the addresses in arrays of Python come in here")]
mod array;
mod failure;
mod timeout;
mod waiting;
mod collective;
mod arguments;
mod jobs;
mod id;
mod request;
mod pool;
mod block;
mod communicator;

use pyo3::{exceptions::PyValueError, prelude::*};
use std::{ffi::OsString, path::PathBuf};

/// Makes a group of threads of this process: returns its communicators in rank order, each for one
/// thread.
///
/// >>> import consonance as cs
/// >>> [comm.rank for comm in cs.threads(3)]
/// [0, 1, 2]
#[pyfunction]
fn threads(size: usize) -> PyResult<Vec<communicator::Communicator>> {
    if size == 0 {
        return Err(PyValueError::new_err("threads: size: expected 1 or more, found 0"));
    }
    Ok(consonance::Communicator::threads(size).into_iter().map(communicator::Communicator::of).collect())
}

/// Runs the command `consonance` with these arguments, the first of which is its own name. It
/// starts further processes of itself by `starter`. Returns its exit status.
#[pyfunction]
fn command(py: Python<'_>, arguments: Vec<OsString>, starter: Vec<PathBuf>) -> u8 {
    consonance_cli::carried_by(starter);
    py.detach(|| consonance_cli::status(arguments))
}

/// Consonance's collectives and messages for Python.
#[pymodule]
#[pyo3(name = "_native", gil_used = true)]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<id::UniqueId>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<block::Block>()?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(command, module)?)
}
