//! Requests that were started.

use crate::{failure::exception, outcome::Outcome, timeout::Timeout, waiting};
use consonance::raw::Origin;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// A call that was started with `async_op=True`. It ends by itself, at the latest at its timeout.
/// Its arrays must not be used before.
///
/// >>> import consonance as cs, numpy as np
/// >>> comm = cs.threads(1)[0]
/// >>> request = comm.all_reduce(np.ones(2), async_op=True)
/// >>> request.wait()
/// True
/// >>> request.result
/// array([1., 1.])
#[pyclass(module = "consonance", frozen)]
pub(crate) struct Request {
    request: consonance::Request,
    outcome: Mutex<Option<Arc<Outcome>>>,
    /// The process that started it.
    origin: Origin,
}

impl Request {
    pub(crate) fn new(request: consonance::Request, outcome: Option<Outcome>) -> Request {
        Request { request, outcome: Mutex::new(outcome.map(Arc::new)), origin: Origin::here() }
    }

    /// Returns the request, unless this process is a fork of the one that started it.
    fn here(&self, py: Python<'_>) -> PyResult<&consonance::Request> {
        waiting::check_origin(py, self.origin, "Request")?;
        Ok(&self.request)
    }
}

#[pymethods]
impl Request {
    /// Waits until the call has ended, at most for `timeout` seconds. Returns whether it has.
    ///
    /// Raises the error of the call.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<bool> {
        let limit = timeout.map(|Timeout(limit)| limit);
        waiting::wait(py, self.here(py)?, limit)?.map_err(|error| exception(py, &error))
    }

    /// Returns whether the call has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.is_finished())
    }

    /// Returns the error of the call as an exception, or None if there is none. Waits for the end.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        Ok(waiting::wait(py, self.here(py)?, None)?.err().map(|error| exception(py, &error)))
    }

    /// Calls `function(error)` once, when the call has ended, on another thread; now if it has. The
    /// argument is an exception, or None. The function must not wait for another request.
    fn add_done_callback(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<()> {
        let request = self.here(py)?;
        py.detach(|| {
            request.on_finish(move |result| {
                // There is no interpreter any more while the process exits.
                Python::try_attach(|py| {
                    let error = result.as_ref().err().map(|error| exception(py, error));
                    if let Err(raised) = function.call1(py, (error,)) {
                        raised.write_unraisable(py, Some(function.bind(py)));
                    }
                });
            });
        });
        Ok(())
    }

    /// The array with the result, where the call has one. A new array of JAX is there once the call
    /// has ended without an error.
    #[getter]
    fn result(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        // Not locked while code of another package runs.
        let lock = || self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(outcome) = lock().clone() else { return Ok(None) };
        let is_ready = || self.request.is_finished() && matches!(self.request.wait(None), Ok(true));
        if !outcome.is_written() && !is_ready() {
            return Ok(None);
        }
        let array = outcome.give(py)?;
        *lock() = Some(Arc::new(Outcome::Written(array.clone_ref(py))));
        Ok(Some(array))
    }

    /// The rank that sent the message, for a receive that has ended; else None.
    #[getter]
    fn source(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        Ok(self.here(py)?.source())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let done = match self.done(py) {
            Ok(true) => "True",
            Ok(false) => "False",
            Err(_) => "?",
        };
        format!("Request(done={done})")
    }
}
