//! The last error of a communicator or a thread, as C sees it.

use crate::{
    codes,
    comm::{COMMS, Comm},
    failure::Failure,
    handles,
};
use std::{
    any::Any,
    cell::RefCell,
    ffi::{c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
};

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

/// The layout of the struct, for the test of the header.
pub(crate) const LAYOUT: &[(&str, usize)] = layout!(
    ConsError,
    "cons_error",
    [size, code, replica, call, argument, expected, found, text, missing_count, missing]
);

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Runs the body of the function `name` for the communicator `comm`, or for none if it is 0.
/// Returns its code, and keeps the details of its error.
pub(crate) fn guard(name: &str, comm: Comm, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // In a fork any lock may be held for ever.
    if handles::forked() {
        let problem = "this process is a fork of the one that uses the library";
        return keep(name, 0, Failure::new(codes::CONS_ERR_FORKED, problem));
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => codes::CONS_OK,
        Ok(Err(failure)) => keep(name, comm, failure),
        Err(panic) => {
            keep(name, comm, Failure::new(codes::CONS_ERR_INTERNAL, format!("a panic: {}", message(&*panic))))
        }
    }
}

#[cold]
fn keep(name: &str, comm: Comm, mut failure: Failure) -> c_int {
    let code = failure.0.code;
    if failure.0.call.is_empty() {
        name.clone_into(&mut failure.0.call);
    }
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
            return Err(Failure::argument("error", "a pointer", "null"));
        };
        if error.size != size_of::<ConsError>() {
            let expected = format!("a struct of {} bytes", size_of::<ConsError>());
            return Err(Failure::argument("error", expected, error.size.to_string()));
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
