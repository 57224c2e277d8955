//! Memory that all ranks of a group read and write in place.

use crate::array::address;
use consonance::SharedMemory;
use pyo3::{prelude::*, types::PyDict};

/// The owner of the memory of an array that `Communicator.empty` made.
#[pyclass(module = "consonance", frozen)]
pub(crate) struct Block {
    memory: SharedMemory<u64>,
    bytes: usize,
}

impl Block {
    pub(crate) fn new(memory: SharedMemory<u64>, bytes: usize) -> Block {
        Block { memory, bytes }
    }
}

#[pymethods]
impl Block {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("data", (address(&self.memory), false))?;
        Ok(interface)
    }
}
