//! Errors: their codes, and the details of the last one.

use crate::{
    codes,
    comm::{COMMS, Comm},
};
use consonance::Error;
use std::{
    any::Any,
    cell::RefCell,
    ffi::{c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
};

/// Why a function failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    code: c_int,
    call: String,
    argument: String,
    replica: Option<usize>,
    expected: String,
    found: String,
    missing: Vec<usize>,
    text: String,
}

impl Failure {
    /// Makes the failure of an argument that has no more details.
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Failure {
        let [call, argument, expected, found] = Default::default();
        let (missing, text) = (Vec::new(), text.into());
        Failure(Box::new(Details { code, call, argument, replica: None, expected, found, missing, text }))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let mut boxed = Failure::new(codes::of(&error), error.to_string());
        let failure = &mut *boxed.0;
        match error.root() {
            Error::InvalidCall { call, argument, replica, expected, found } => {
                (failure.call, failure.argument, failure.replica) = ((*call).to_owned(), argument.clone(), *replica);
                (failure.expected, failure.found) = (expected.clone(), found.clone());
            }
            Error::Mismatch { call, replica, argument, expected, found } => {
                (failure.call, failure.argument, failure.replica) = (call.clone(), argument.clone(), Some(*replica));
                (failure.expected, failure.found) = (expected.clone(), found.clone());
            }
            Error::Left { call, replica, .. } | Error::Aborted { call, replica, .. } => {
                (failure.call, failure.replica) = (call.clone(), Some(*replica));
            }
            Error::Timeout { call, missing, .. } => {
                failure.missing = missing.iter().map(|&(replica, _)| replica).collect();
                (failure.call, failure.replica) = (call.clone(), failure.missing.first().copied());
            }
            _ => {}
        }
        boxed
    }
}

/// The details of an error, as C sees them.
#[repr(C)]
pub struct ConsError {
    size: usize,
    code: c_int,
    replica: c_int,
    call: [c_char; 64],
    argument: [c_char; 64],
    expected: [c_char; 256],
    found: [c_char; 256],
    text: [c_char; 1024],
    missing_count: c_int,
    missing: [c_int; 64],
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Runs the body of a function for the communicator `comm`, or for none if it is 0. Returns its
/// code, and keeps the details of its error.
pub(crate) fn guard(comm: Comm, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // In a fork any lock may be held for ever.
    if crate::handles::forked() {
        return keep(
            0,
            Failure::new(codes::CONS_ERR_FORKED, "this process is a fork of the one that uses the library"),
        );
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => codes::CONS_OK,
        Ok(Err(failure)) => keep(comm, failure),
        Err(panic) => keep(comm, Failure::new(codes::CONS_ERR_INTERNAL, format!("a panic: {}", message(&*panic)))),
    }
}

#[cold]
fn keep(comm: Comm, failure: Failure) -> c_int {
    let code = failure.0.code;
    if comm != 0
        && let Ok(comm) = COMMS.get(comm)
    {
        *comm.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
    }
    LAST.set(Some(failure));
    code
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// Copies text, cut to the room, with a zero at its end.
fn copy<const ROOM: usize>(text: &str, to: &mut [c_char; ROOM]) {
    let end = text.floor_char_boundary(ROOM - 1);
    *to = [0; ROOM];
    text.bytes().take(end).zip(to).for_each(|(byte, to)| *to = byte as c_char);
}

functions! {
    /// Writes the details of the last error of a communicator, or of this thread if `comm` is 0.
    fn cons_last_error(comm: Comm, error: *mut ConsError) of 0; {
        let failure = match comm {
            0 => LAST.with_borrow(Clone::clone),
            comm => COMMS.get(comm)?.last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        // SAFETY: the pointer is null or valid.
        let Some(error) = (unsafe { error.as_mut() }) else {
            return Err(Failure::new(codes::CONS_ERR_ARGUMENT, "error: expected a pointer, found null"));
        };
        if error.size != size_of::<ConsError>() {
            let text = format!("error: expected a struct of {} bytes, found {}", size_of::<ConsError>(), error.size);
            return Err(Failure::new(codes::CONS_ERR_ARGUMENT, text));
        }
        let Failure(failure) = failure.unwrap_or_else(|| Failure::new(codes::CONS_OK, ""));
        error.code = failure.code;
        error.replica = failure.replica.map_or(-1, |replica| replica as c_int);
        copy(&failure.call, &mut error.call);
        copy(&failure.argument, &mut error.argument);
        copy(&failure.expected, &mut error.expected);
        copy(&failure.found, &mut error.found);
        copy(&failure.text, &mut error.text);
        error.missing_count = failure.missing.len() as c_int;
        error.missing = [0; 64];
        failure.missing.iter().zip(&mut error.missing).for_each(|(&rank, to)| *to = rank as c_int);
        Ok(())
    }
}

/// Returns the name of a code, a constant text.
#[unsafe(no_mangle)]
pub extern "C" fn cons_code_name(code: c_int) -> *const c_char {
    let name = codes::CODES.iter().find(|(number, ..)| *number == code).map(|(_, _, name)| *name);
    name.unwrap_or(c"unknown code").as_ptr()
}
