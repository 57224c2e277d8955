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
    mem,
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
            let failure = Failure::new(codes::CONS_ERR_INTERNAL, format!("a panic: {}", message(&*panic)));
            // Its drop may panic.
            mem::forget(panic);
            keep(name, comm, failure)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        collectives::{cons_barrier, cons_ibarrier, start},
        comm::{ConsId, cons_comm_init, cons_unique_id, run},
        requests::{Handle, cons_on_done, cons_wait},
    };
    use consonance::{Communicator, raw::Kind};
    use std::{
        ffi::{CStr, c_void},
        mem::MaybeUninit,
        panic, ptr,
        sync::atomic::{AtomicI32, Ordering},
        thread,
    };

    /// A payload whose drop panics.
    struct Sharp;

    impl Drop for Sharp {
        fn drop(&mut self) {
            panic::panic_any(0);
        }
    }

    extern "C" fn panics(how: c_int) -> c_int {
        guard("panics", 0, || match how {
            0 => panic!("a text"),
            1 => panic!("the number {how}"),
            2 => panic::panic_any(how),
            _ => panic::panic_any(Sharp),
        })
    }

    extern "C" fn panics_in_a_call(comm: Comm) -> c_int {
        guard("panics_in_a_call", comm, || {
            run(comm, "barrier", Kind::Barrier, |_| Ok(|_: &mut Communicator| panic!("in a call")))
        })
    }

    extern "C" fn starts_a_panic(comm: Comm, request: *mut Handle) -> c_int {
        let panics = |_| Ok(|_: &mut Communicator| panic!("in a call that was started"));
        // SAFETY: the caller passes a valid pointer.
        guard("starts_a_panic", comm, || unsafe { start(comm, "barrier", Kind::Barrier, request, panics) })
    }

    unsafe extern "C" fn tell(told: *mut c_void, code: c_int) {
        // SAFETY: the test passes this.
        unsafe { &*told.cast::<AtomicI32>() }.store(code, Ordering::SeqCst);
    }

    fn last_error(comm: Comm) -> ConsError {
        // SAFETY: zeros are numbers and texts.
        let mut error: ConsError = unsafe { std::mem::zeroed() };
        error.size = size_of::<ConsError>();
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { cons_last_error(comm, &raw mut error) }, codes::CONS_OK);
        error
    }

    fn text(of: &[c_char]) -> &str {
        // SAFETY: a text of the library ends with 0.
        unsafe { CStr::from_ptr(of.as_ptr()) }.to_str().expect("text in UTF-8")
    }

    // A panic that crosses the border would end this process.
    #[test]
    fn a_panic_becomes_a_code_and_the_details_of_the_last_error() {
        for (how, message) in ["a text", "the number 1", "without words", "without words"].into_iter().enumerate() {
            assert_eq!(panics(how as c_int), codes::CONS_ERR_INTERNAL, "{message}");
            let error = last_error(0);
            assert_eq!((error.code, error.replica, error.missing_count), (codes::CONS_ERR_INTERNAL, -1, 0));
            assert_eq!((text(&error.call), text(&error.text)), ("panics", &*format!("a panic: {message}")));
        }
        // The details are this thread's.
        assert_eq!(thread::spawn(|| last_error(0).code).join().unwrap(), codes::CONS_OK);
    }

    #[test]
    fn a_panic_in_a_call_ends_the_group() {
        let mut id = MaybeUninit::<ConsId>::uninit();
        // SAFETY: the pointer is valid for writes.
        assert_eq!(unsafe { cons_unique_id(id.as_mut_ptr()) }, codes::CONS_OK);
        // SAFETY: it was written.
        let id = unsafe { id.assume_init() };
        let join = |rank| {
            let mut comm = 0;
            // SAFETY: the pointers are null or valid.
            assert_eq!(unsafe { cons_comm_init(&raw mut comm, &raw const id, 2, rank, ptr::null()) }, codes::CONS_OK);
            comm
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let comm = join(1);
                // SAFETY: there is no pointer.
                assert_eq!(unsafe { cons_barrier(comm) }, codes::CONS_ERR_ABORTED);
                assert_eq!(last_error(comm).replica, 0);
            });
            let comm = join(0);
            assert_eq!(panics_in_a_call(comm), codes::CONS_ERR_INTERNAL);
            let error = last_error(comm);
            assert_eq!((text(&error.call), text(&error.text)), ("panics_in_a_call", "a panic: in a call"));
            // SAFETY: there is no pointer.
            assert_eq!(unsafe { cons_barrier(comm) }, codes::CONS_ERR_ABORTED);
            // A call that was started ends, and its callback is called. The thread of such calls
            // serves the next one.
            let (mut request, mut next, told) = (0, 0, AtomicI32::new(-1));
            assert_eq!(starts_a_panic(comm, &raw mut request), codes::CONS_OK);
            // SAFETY: the pointers are null or valid: the request ends before `told` does.
            unsafe {
                assert_eq!(cons_on_done(request, Some(tell), (&raw const told).cast_mut().cast()), codes::CONS_OK);
                assert_eq!(cons_wait(request, 0, ptr::null_mut()), codes::CONS_ERR_INTERNAL);
                assert_eq!(cons_ibarrier(comm, &raw mut next), codes::CONS_OK);
                assert_eq!(cons_wait(next, 0, ptr::null_mut()), codes::CONS_ERR_ABORTED);
            }
            assert_eq!(told.into_inner(), codes::CONS_ERR_INTERNAL);
        });
    }
}
