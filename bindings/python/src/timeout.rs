//! Timeouts as programs pass them.

use crate::{arguments::Given, failure::Bad};
use consonance::{CommunicationOptions, Communicator, ProcessGroupBuilder, Result};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDelta};
use std::time::Duration;

/// A time in seconds, or a `timedelta`: above 0, and at most a day.
pub(crate) struct Timeout(pub(crate) Duration);

impl Timeout {
    /// A valid timeout, in words.
    const EXPECTED: &'static str = "seconds above 0, at most a day";

    const MAX: Duration = Duration::from_secs(24 * 60 * 60);
}

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Timeout> {
        let timeout = if object.is_instance_of::<PyDelta>() {
            object.extract().ok()
        } else {
            Duration::try_from_secs_f64(object.extract()?).ok()
        };
        let timeout = timeout.filter(|timeout: &Duration| !timeout.is_zero() && *timeout <= Timeout::MAX);
        let invalid = || PyValueError::new_err(format!("timeout: expected {}, found {}", Timeout::EXPECTED, *object));
        timeout.map(Timeout).ok_or_else(invalid)
    }
}

/// Returns the timeout of a call, and whether it is right. A call whose timeout is wrong has none.
pub(crate) fn given(timeout: Option<Given<Timeout>>) -> (Option<Timeout>, Result<(), Bad>) {
    let timeout = timeout.map(|timeout| timeout.get("timeout", Timeout::EXPECTED)).transpose();
    timeout.map_or_else(|bad| (None, Err(bad)), |timeout| (timeout, Ok(())))
}

/// Joins a group with these timeouts: of calls, and of the meeting.
pub(crate) fn join(
    mut group: ProcessGroupBuilder,
    timeout: Option<Timeout>,
    join_timeout: Option<Timeout>,
) -> Result<Communicator> {
    if let Some(Timeout(limit)) = timeout {
        group = group.options(CommunicationOptions::new().timeout(limit)?);
    }
    if let Some(Timeout(limit)) = join_timeout {
        group = group.timeout(limit)?;
    }
    Ok(group.join()?.communicators().remove(0))
}
