//! Memory that all ranks of a group read and write in place.

use crate::{array::address, collective::Open};
use consonance::SharedMemory;
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyTuple},
};

/// The owner of the memory of an array that `Communicator.empty` made.
#[pyclass(module = "consonance", frozen)]
pub(crate) struct Block {
    memory: SharedMemory<u64>,
    bytes: usize,
}

impl Block {
    /// Makes a NumPy array in new memory of the group.
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
        let words = bytes.div_ceil(size_of::<u64>()).max(1);
        let memory = open.with(py, None, |communicator| communicator.alloc::<u64>(words))?;
        let block = Block { memory, bytes }.into_pyobject(py)?;
        let array = numpy.call_method1("asarray", (block,))?;
        array.call_method1("view", (dtype,))?.call_method1("reshape", (PyTuple::new(py, sizes)?,))
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
