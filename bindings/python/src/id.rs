//! Ids of groups.

use crate::failure::exception;
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyBytes};

/// The id of a group. Without arguments makes a new one. One process makes an id and passes it to
/// the others by any means: as bytes, as text, or pickled.
///
/// >>> import consonance as cs
/// >>> id = cs.UniqueId()
/// >>> cs.UniqueId(bytes(id)) == id == cs.UniqueId(str(id))
/// True
#[pyclass(module = "consonance", frozen, eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UniqueId(pub(crate) consonance::UniqueId);

#[pymethods]
impl UniqueId {
    #[new]
    #[pyo3(signature = (data=None))]
    fn new(data: Option<&Bound<'_, PyAny>>) -> PyResult<UniqueId> {
        let py = data.map(Bound::py);
        let fail = |error| Python::attach(|py| exception(py, &error));
        let Some((data, _)) = data.zip(py) else {
            return consonance::UniqueId::new().map(UniqueId).map_err(fail);
        };
        if let Ok(text) = data.extract::<String>() {
            return text.parse().map(UniqueId).map_err(fail);
        }
        let bytes: Vec<u8> =
            data.extract().map_err(|_| PyTypeError::new_err("UniqueId: data: expected bytes or a str"))?;
        let expected = consonance::UniqueId::BYTES;
        let bytes = <[u8; consonance::UniqueId::BYTES]>::try_from(bytes).map_err(|bytes| {
            let found = bytes.len();
            pyo3::exceptions::PyValueError::new_err(format!("UniqueId: data: expected {expected} bytes, found {found}"))
        })?;
        consonance::UniqueId::from_bytes(bytes).map(UniqueId).map_err(fail)
    }

    /// Makes an id of a text: the same one in each process of this host that passes the same text.
    /// Two groups at a time need different texts.
    #[staticmethod]
    fn derived(py: Python<'_>, text: &str) -> PyResult<UniqueId> {
        consonance::UniqueId::derived(text).map(UniqueId).map_err(|error| exception(py, &error))
    }

    /// Makes an id for processes of several hosts. This process listens for them until the group is
    /// formed. An id is good for one group, which sends over UCX. On one host `UniqueId()` makes
    /// the faster groups.
    #[staticmethod]
    fn across_hosts(py: Python<'_>) -> PyResult<UniqueId> {
        consonance::UniqueId::across_hosts().map(UniqueId).map_err(|error| exception(py, &error))
    }

    /// The host where the id was made, and the network of it: the beginning of `place`.
    #[getter]
    fn host_id(&self) -> String {
        self.0.host_id()
    }

    /// The place where the id was made: the same text in all processes that can share memory.
    #[getter]
    fn place(&self) -> String {
        self.0.place()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.as_bytes())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("UniqueId({:?})", self.0.to_string())
    }

    fn __getnewargs__(&self) -> (String,) {
        (self.0.to_string(),)
    }
}
