//! Panics of user's code, of which nothing is left when they are caught.

use std::{
    any::Any,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// What `body` returns, or the message of its panic.
pub(crate) fn catch<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
        let message = message(&*payload);
        // What was thrown may panic when it is dropped, and so may what that throws, which is kept
        // for ever.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(again);
        }
        message
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}
