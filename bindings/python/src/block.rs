//! Memory that all ranks of a group read and write in place.

use crate::{array::address, collective::Open, pool::Pool, waiting};
use consonance::SharedMemory;
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::sync::Arc;

/// The owner of the memory of an array that `Communicator.empty` made.
#[pyclass(module = "consonance", frozen)]
pub(crate) struct Block {
    /// `None` while it is dropped.
    memory: Option<SharedMemory<u64>>,
    bytes: usize,
    pool: Arc<Pool>,
}

impl Block {
    /// Makes a NumPy array in memory of the group.
    pub(crate) fn array<'py>(
        py: Python<'py>,
        open: &Open,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let dtype = match dtype {
            None => numpy.getattr("float32")?,
            Some(dtype) => dtype.clone(),
        };
        let dtype = numpy.call_method1("dtype", (dtype,))?;
        let sizes: Vec<usize> = shape.extract::<usize>().map(|size| vec![size]).or_else(|_| shape.extract())?;
        let width: usize = dtype.getattr("itemsize")?.extract()?;
        let bytes = sizes.iter().try_fold(width, |bytes, &size| bytes.checked_mul(size));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
            PyValueError::new_err("empty: shape: expected one that fits the address space, found more")
        })?;
        // A fork does not have the pages of blocks that are kept.
        waiting::check_origin(py, open.origin, "empty")?;
        let pool = open.pool.clone();
        let words = bytes.div_ceil(size_of::<u64>());
        let memory =
            Some(pool.take(words, |words| open.with(py, None, |communicator| communicator.alloc::<u64>(words)))?);
        let block = Block { memory, bytes, pool }.into_pyobject(py)?;
        let array = numpy.call_method1("asarray", (block,))?;
        array.call_method1("view", (dtype,))?.call_method1("reshape", (PyTuple::new(py, sizes)?,))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give(memory);
        }
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
        let memory = self.memory.as_ref().expect("there until the drop");
        interface.set_item("data", (address(memory), false))?;
        Ok(interface)
    }
}
