//! Errors as exceptions of Python.

use consonance::Error;
use pyo3::{
    exceptions::{PyOSError, PyRuntimeError, PyTypeError, PyValueError},
    prelude::*,
    types::PyType,
};

/// The reason why an argument was refused.
pub(crate) enum Bad {
    /// A value that no call takes.
    Value { argument: String, expected: String, found: String },
    /// An object or element type that no call takes.
    Type { argument: &'static str, expected: &'static str, found: String },
    /// The exception that an object raised.
    Raised(PyErr),
}

impl Bad {
    pub(crate) fn value(argument: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Bad {
        Bad::Value { argument: argument.into(), expected: expected.into(), found: found.into() }
    }

    pub(crate) fn object(argument: &'static str, found: &Bound<'_, PyAny>) -> Bad {
        let expected = "a NumPy array, or an array with __dlpack__";
        Bad::Type { argument, expected, found: name_of_type(found) }
    }

    pub(crate) fn list(argument: &'static str, found: &Bound<'_, PyAny>) -> Bad {
        Bad::Type { argument, expected: "a list of arrays", found: name_of_type(found) }
    }

    pub(crate) fn traced(argument: &'static str, found: &Bound<'_, PyAny>) -> Bad {
        Bad::Type { argument, expected: "an array with values, outside jax.jit", found: name_of_type(found) }
    }

    pub(crate) fn masked(argument: &'static str) -> Bad {
        let (expected, found) = ("an array without a mask: pass its data", "a masked array".to_owned());
        Bad::Type { argument, expected, found }
    }

    pub(crate) fn dtype(argument: &'static str, found: String) -> Bad {
        let expected = "an array of bools, integers, floats or complex numbers: others move as bytes, by view('u1')";
        Bad::Type { argument, expected, found }
    }

    /// Says of an object that is no array that it is in a list.
    pub(crate) fn in_list(self) -> Bad {
        match self {
            Bad::Type { argument, expected, found } => {
                Bad::Type { argument, expected, found: format!("{found} in a list") }
            }
            bad => bad,
        }
    }

    /// Returns the error for the other ranks, which wait for the call.
    pub(crate) fn error(&self, call: &'static str) -> Error {
        let invalid = |argument: &str, expected: String, found: &String| Error::InvalidCall {
            call,
            argument: argument.to_owned(),
            replica: None,
            expected,
            found: found.clone(),
        };
        match self {
            Bad::Value { argument, expected, found } => invalid(argument, expected.clone(), found),
            Bad::Type { argument, expected, found } => invalid(argument, (*expected).to_owned(), found),
            Bad::Raised(error) => Error::other(error.to_string()),
        }
    }

    /// Returns the exception for this rank.
    pub(crate) fn exception(self, py: Python<'_>, call: &'static str) -> PyErr {
        let error = self.error(call);
        match self {
            Bad::Value { .. } => exception(py, &error),
            Bad::Type { .. } => with_fields(py, PyTypeError::new_err(error.to_string()), &error),
            Bad::Raised(raised) => raised,
        }
    }
}

fn name_of_type(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "another object".to_owned(), |name| name.to_string())
}

impl From<PyErr> for Bad {
    fn from(error: PyErr) -> Bad {
        Bad::Raised(error)
    }
}

/// Returns an error of the caller in the words of this package, whose arguments have other names
/// than those of the runtime; `None` for others.
fn in_own_words(error: &Error) -> Option<Error> {
    let Error::InvalidCall { call, argument, replica, expected, found } = error.root() else { return None };
    let argument = match argument.as_str() {
        "send" | "last" => "data",
        "recv" => "out",
        "from" => "source",
        same => same,
    };
    let (argument, expected, found) = (argument.to_owned(), expected.clone(), found.clone());
    Some(Error::InvalidCall { call, argument, replica: *replica, expected, found })
}

/// Returns the name of a call here, without the type of the runtime: messages are those of a
/// communicator.
fn own(call: &str) -> &str {
    TYPES.iter().find_map(|of| call.strip_prefix(of)).unwrap_or(call)
}

const TYPES: [&str; 3] = ["Mailbox::", "Accumulator::", "Communicator::"];

/// Returns the exception of an error, with the error's fields.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let in_own_words = in_own_words(error);
    let error = in_own_words.as_ref().unwrap_or(error);
    let text = TYPES.iter().fold(error.to_string(), |text, of| text.replace(of, ""));
    let made = match error.root() {
        Error::InvalidCall { .. } | Error::UnknownReduceOp { .. } => Ok(PyValueError::new_err(text)),
        Error::WrongContext { .. } => Ok(PyRuntimeError::new_err(text)),
        Error::System { source, .. } => Ok(PyOSError::new_err((source.raw_os_error(), text))),
        Error::Mismatch { .. } => ours(py, "MismatchError", text),
        Error::Timeout { .. } => ours(py, "TimeoutError", format!("Timed out: {text}")),
        Error::Left { .. } | Error::Aborted { lost: true, .. } => ours(py, "LostError", text),
        Error::Aborted { .. } => ours(py, "AbortedError", text),
        Error::Meeting { .. } => ours(py, "MeetingError", text),
        _ => ours(py, "Error", text),
    };
    made.map_or_else(|error| error, |made| with_fields(py, made, error))
}

/// Returns an exception with the fields of an error.
fn with_fields(py: Python<'_>, made: PyErr, error: &Error) -> PyErr {
    add_fields(py, &made, error).map_or_else(|error| error, |()| made)
}

/// Makes an exception of a class of the package.
fn ours(py: Python<'_>, class: &str, text: String) -> PyResult<PyErr> {
    let class = py.import("consonance._errors")?.getattr(class)?;
    Ok(PyErr::from_type(class.cast_into::<PyType>()?, text))
}

/// Sets the error's fields on an exception.
fn add_fields(py: Python<'_>, made: &PyErr, error: &Error) -> PyResult<()> {
    let value = made.value(py);
    // The replica that an error names, or else the one whose code returned it.
    let set_replica = |named: Option<usize>| {
        let returned = if let Error::Replica { replica, .. } = error { Some(*replica) } else { None };
        value.setattr("replica", named.or(returned))
    };
    match error.root() {
        Error::InvalidCall { call, argument, replica, expected, found } => {
            value.setattr("call", own(call))?;
            set_replica(*replica)?;
            value.setattr("argument", argument)?;
            value.setattr("expected", expected)?;
            value.setattr("found", found)
        }
        Error::Mismatch { call, replica, argument, expected, found } => {
            value.setattr("call", own(call))?;
            value.setattr("replica", *replica)?;
            value.setattr("argument", argument)?;
            value.setattr("expected", expected)?;
            value.setattr("found", found)
        }
        Error::Timeout { call, waited, missing } => {
            value.setattr("call", own(call))?;
            value.setattr("waited", waited.as_secs_f64())?;
            value.setattr("replica", missing.first().map(|(replica, _)| *replica))?;
            value.setattr("missing", missing.iter().map(|(replica, _)| *replica).collect::<Vec<_>>())?;
            value.setattr("calls", missing.clone())
        }
        Error::Left { call, replica, last, lost } => {
            value.setattr("call", own(call))?;
            value.setattr("replica", *replica)?;
            value.setattr("last", last)?;
            value.setattr("lost", *lost)
        }
        Error::Aborted { call, replica, reason, lost, calls } => {
            value.setattr("call", own(call))?;
            value.setattr("replica", *replica)?;
            value.setattr("reason", reason)?;
            value.setattr("lost", *lost)?;
            value.setattr("calls", calls.clone())
        }
        Error::Meeting { call, task, problem, missing } => {
            value.setattr("call", own(call))?;
            value.setattr("task", task)?;
            value.setattr("problem", problem)?;
            value.setattr("missing", missing.clone())
        }
        Error::WrongContext { call, problem } => {
            value.setattr("call", own(call))?;
            value.setattr("problem", problem)
        }
        Error::Panic { replica, message } => {
            value.setattr("replica", *replica)?;
            value.setattr("message", message)
        }
        Error::UnknownReduceOp { call, replica, source } => {
            value.setattr("call", *call)?;
            set_replica(*replica)?;
            value.setattr("found", &source.0)
        }
        Error::System { what, .. } => value.setattr("what", what),
        Error::Replica { .. } | Error::Other(_) => set_replica(None),
        // Variants that come later have no fields here yet.
        _ => Ok(()),
    }
}
