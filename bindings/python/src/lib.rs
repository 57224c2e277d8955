//! The Python package `consonance`, on top of the crate `consonance`. It translates and decides
//! nothing.
//!
//! `array` turns arrays of Python into buffers: the only folder with unsafe code. `types.rs` has
//! their element types. `failure.rs` turns errors into exceptions. `waiting.rs` waits so that
//! Ctrl-C is heard. `collective.rs` executes a call or starts it. `jobs.rs` makes it of the
//! arguments, with `arguments.rs`. `outcome.rs` makes arrays for results. The other files have the
//! classes.
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
mod outcome;
mod arguments;
mod jobs;
mod id;
mod request;
mod pool;
mod block;
mod communicator;
mod accumulator;

use arguments::Given;
use consonance::{Device, raw::Kind};
use failure::Bad;
use pyo3::prelude::*;
use std::{ffi::OsString, path::PathBuf};

/// Makes a group of threads of this process: returns its communicators in rank order, each for one
/// thread. With `device="cuda:0"` they share that GPU, and also take arrays in its memory.
///
/// >>> import consonance as cs
/// >>> [comm.rank for comm in cs.threads(3)]
/// [0, 1, 2]
#[pyfunction]
#[pyo3(signature = (size, *, device=None))]
fn threads(py: Python<'_>, size: Given<usize>, device: Option<&str>) -> PyResult<Vec<communicator::Communicator>> {
    const EXPECTED: &str = "a number of ranks from 1 to 1024";
    let size = size.get("size", EXPECTED).and_then(|size| match size {
        // As many as processes can be of a group.
        1..=1024 => Ok(size),
        _ => Err(Bad::value("size", EXPECTED, size.to_string())),
    });
    let size = size.map_err(|bad| bad.exception(py, "threads"))?;
    // Each rank is a logical device of the GPU.
    let own = |device, rank| match device {
        Device::Cuda { gpu, .. } => Device::Cuda { gpu, logical: rank },
        device => device,
    };
    let ranks = match device.map(str::parse).transpose() {
        Ok(None) => Ok(consonance::Communicator::threads(size)),
        Ok(Some(device)) => consonance::Communicator::on_devices((0..size).map(|rank| own(device, rank))),
        Err(error) => Err(error),
    };
    let ranks = ranks.map_err(|error| failure::exception(py, &error))?;
    Ok(ranks.into_iter().map(communicator::Communicator::of).collect())
}

/// Tells the other ranks of `communicator` that this rank's argument of the collective `call` is
/// wrong, and raises `ValueError`: for code of the package that looks at arguments of its own.
#[pyfunction]
#[pyo3(signature = (communicator, call, argument, expected, found, *, async_op=false))]
fn refuse(
    py: Python<'_>,
    communicator: &communicator::Communicator,
    call: &str,
    argument: &str,
    expected: &str,
    found: &str,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let kind = Kind::ALL.iter().copied().find(|kind| kind.name() == call);
    let kind = kind.ok_or_else(|| Bad::value("call", "a collective", call).exception(py, "refuse"))?;
    let refused = Bad::value(argument, expected, found);
    communicator.call(py, (kind.name(), kind), (async_op, None), |_, _| Err(refused))
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
    module.add_class::<accumulator::Accumulator>()?;
    module.add_class::<id::UniqueId>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<block::Block>()?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(refuse, module)?)?;
    module.add_function(wrap_pyfunction!(command, module)?)
}
