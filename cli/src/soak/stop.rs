//! The reason why a rank of a soak stops.

use consonance::Error;
use std::time::{SystemTime, UNIX_EPOCH};

/// The reason why a rank stops.
pub(super) enum Stop {
    Lost { begin: u64, end: u64, text: String },
    Wrong(String),
}

/// Returns the result of a call that began at `begin`, or [`Stop::Lost`] if the group was
/// aborted, a wait timed out, or a rank left. A rank that gives up a peer in a subgroup of two
/// aborts only the subgroup, and leaves.
pub(super) fn unless_lost(begin: u64, result: Result<(), Error>) -> Result<Result<(), Error>, Stop> {
    match result {
        Err(error @ (Error::Aborted { .. } | Error::Timeout { .. } | Error::Left { .. })) => {
            Err(Stop::Lost { begin, end: now(), text: error.to_string() })
        }
        result => Ok(result),
    }
}

/// Makes a call that can fail only if the group ends.
pub(super) fn timed(call: impl FnOnce() -> Result<(), Error>) -> Result<(), Stop> {
    let begin = now();
    unless_lost(begin, call())?.map_err(|error| Stop::Wrong(error.to_string()))
}

/// Returns the time since 1970 in ns, which is the same clock in all processes.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
