//! Timeouts as programs pass them.

use pyo3::{exceptions::PyValueError, prelude::*, types::PyDelta};
use std::time::Duration;

/// A time in seconds, or a `timedelta`.
pub(crate) struct Timeout(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Timeout> {
        if object.is_instance_of::<PyDelta>() {
            return object.extract().map(Timeout);
        }
        let seconds: f64 = object.extract()?;
        let invalid = || format!("timeout: expected seconds above 0, at most a day, found {seconds}");
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        timeout.map(Timeout).ok_or_else(|| PyValueError::new_err(invalid()))
    }
}
