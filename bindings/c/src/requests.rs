//! Requests that were started.

use crate::{
    codes,
    comm::{Comm, timeout, write},
    failure::Failure,
    handles::Table,
};
use consonance::{Request, Result};
use std::ffi::{c_int, c_void};

/// The handle of a request.
pub type Handle = u64;

/// The type of a function that is called at the end of a request, with its argument and the code.
pub type ConsDone = Option<unsafe extern "C" fn(argument: *mut c_void, code: c_int)>;

/// The object behind a handle of a request.
pub(crate) struct Started {
    request: Request,
    comm: Comm,
}

static REQUESTS: Table<Started> = Table::new(2, "request");

/// Gives out the handle of a request of a communicator.
///
/// # Safety
/// The pointer is null or valid for writes.
pub(crate) unsafe fn give(to: *mut Handle, comm: Comm, request: Request) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { write("request", to, REQUESTS.add(Started { request, comm })) }
}

/// An argument for a function of the user, which may be used on any thread.
struct Argument(*mut c_void);

// SAFETY: the user promises that the function may be called on any thread.
unsafe impl Send for Argument {}

/// Returns the communicator of a request, for the details of its error.
fn comm_of(request: Handle) -> Comm {
    REQUESTS.get(request).map_or(0, |started| started.comm)
}

functions! {
    /// Waits until the request has ended, at most for some time.
    fn cons_wait(request: Handle, timeout_ms: i64, done: *mut c_int) of comm_of(request); {
        let started = REQUESTS.get(request)?;
        let has_ended = started.request.wait(timeout("timeout_ms", timeout_ms)?);
        if !done.is_null() {
            // SAFETY: the pointer is valid.
            unsafe { done.write((!matches!(has_ended, Ok(false))).into()) };
        }
        Ok(has_ended.map(drop)?)
    }

    /// Writes whether the request has ended. Returns the code of its result, if it has.
    fn cons_test(request: Handle, done: *mut c_int) of comm_of(request); {
        let started = REQUESTS.get(request)?;
        let has_ended = started.request.is_finished();
        // SAFETY: the pointer is null or valid.
        unsafe { write("done", done, has_ended.into()) }?;
        if has_ended {
            started.request.wait(None)?;
        }
        Ok(())
    }

    /// Calls a function once, when the request has ended.
    fn cons_on_done(request: Handle, function: ConsDone, argument: *mut c_void) of comm_of(request); {
        let started = REQUESTS.get(request)?;
        let function = function.ok_or_else(|| Failure::argument("function", "a pointer", "null"))?;
        let argument = Argument(argument);
        started.request.on_finish(move |result| {
            let Argument(pointer) = { argument };
            // SAFETY: the user passed the function for this argument.
            unsafe { function(pointer, result.as_ref().err().map_or(codes::CONS_OK, codes::of)) }
        });
        Ok(())
    }

    /// Writes the rank that sent the message of a receive; -1 for other requests.
    fn cons_request_source(request: Handle, source: *mut c_int) of comm_of(request); {
        let from = REQUESTS.get(request)?.request.source().map_or(-1, |rank| rank as c_int);
        // SAFETY: the pointer is null or valid.
        unsafe { write("source", source, from) }
    }

    /// Frees the handle. The request goes on.
    fn cons_request_free(request: Handle) of comm_of(request); {
        REQUESTS.remove(request).map(drop)
    }
}
