//! Waits that hear Ctrl-C, without the interpreter's lock.

use crate::failure::exception;
use consonance::{
    Error, Request, Result,
    raw::{KeepWaiting, Origin},
};
use pyo3::prelude::*;
use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// The time between two looks for a signal during a wait.
const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    /// The exception from a signal's handler while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Returns what a communicator asks while it waits: whether no handler of a signal has raised.
/// Python runs such handlers on its main thread only, so other threads always go on.
pub(crate) fn keep_waiting() -> KeepWaiting {
    Arc::new(|| {
        // There is no interpreter any more while the process exits.
        let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
        let goes_on = raised.is_none();
        RAISED.set(raised);
        goes_on
    })
}

/// Returns the exception that ended the last wait of this thread.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Checks that this process is no fork of the origin: there a lock may be held for ever, and the
/// memory that ranks share is absent.
pub(crate) fn check_origin(py: Python<'_>, origin: Origin, call: &'static str) -> PyResult<()> {
    if !origin.forked() {
        return Ok(());
    }
    let problem = "a call in a process made by fork: join anew in the new process".to_owned();
    Err(exception(py, &Error::WrongContext { call, problem }))
}

/// Waits for a request. Returns false if `limit` has passed.
pub(crate) fn wait(py: Python<'_>, request: &Request, limit: Option<Duration>) -> PyResult<Result<bool>> {
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()).min(SLICE));
        match py.detach(|| request.wait(Some(left))) {
            Ok(false) if until.is_none_or(|until| Instant::now() < until) => py.check_signals()?,
            ended => return Ok(ended),
        }
    }
}

/// Runs `work` on a thread, and waits for it. A signal ends the wait; the thread goes on until its
/// own timeout.
pub(crate) fn apart<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<Result<T>> {
    let (sender, receiver) = mpsc::channel();
    let started = thread::Builder::new().name("join".to_owned()).spawn(move || {
        // Nobody waits any more after a signal.
        let _ = sender.send(work());
    });
    if let Err(source) = started {
        return Ok(Err(Error::system("start a thread", source)));
    }
    let receiver = Mutex::new(receiver);
    loop {
        let received = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv_timeout(SLICE)
        });
        match received {
            Ok(result) => return Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Ok(Err(Error::other("the thread that joins the group panicked")));
            }
        }
    }
}
