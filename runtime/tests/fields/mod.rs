//! The fields of errors, for tests to compare. `error_texts.txt` has the words.

#![allow(dead_code, reason = "no test uses all of them")]

use consonance::{Error, raw::Reason};

/// Returns the call, the argument and the replica of an argument that was refused.
#[track_caller]
pub(crate) fn refusal(error: &Error) -> (&str, &str, Option<usize>) {
    match error {
        Error::InvalidCall { call, argument, replica, .. } => (call, argument, *replica),
        error => panic!("{error}: no argument was refused"),
    }
}

/// Returns what was found in the place of a valid value, without advice after it.
#[track_caller]
pub(crate) fn found(error: &Error) -> &str {
    match error {
        Error::InvalidCall { found, .. } => without_advice(found),
        error => panic!("{error}: no argument was refused"),
    }
}

/// Returns the call, the replica and the text of an operation that does not exist.
#[track_caller]
pub(crate) fn unknown_op(error: &Error) -> (Option<&str>, Option<usize>, &str) {
    match error {
        Error::UnknownReduceOp { call, replica, source } => (*call, *replica, &source.0),
        error => panic!("{error}: no operation was unknown"),
    }
}

/// Returns the call, the argument, the replica, what was expected and what was found, without
/// advice after it.
#[track_caller]
pub(crate) fn mismatch(error: &Error) -> (&str, &str, usize, &str, &str) {
    match error {
        Error::Mismatch { call, argument, replica, expected, found } => {
            (call, argument, *replica, expected, without_advice(found))
        }
        error => panic!("{error}: no mismatch"),
    }
}

/// Returns the call, the replica that could not make it, and the words of the error there.
#[track_caller]
pub(crate) fn told(error: &Error) -> (&str, usize, &str) {
    match error {
        Error::Mismatch { call, argument, replica, found, .. } if argument == "the call" => (call, *replica, found),
        error => panic!("{error}: it tells of no other error"),
    }
}

/// Returns the call, the replica and the reason of an abort.
#[track_caller]
pub(crate) fn abort(error: &Error) -> (&str, usize, Reason) {
    match error {
        Error::Aborted { call, replica, reason: text, .. } => (call, *replica, reason(text).1),
        error => panic!("{error}: no abort"),
    }
}

/// Returns the replica and the text of an error of its own.
#[track_caller]
pub(crate) fn own(error: &Error) -> (usize, String) {
    match error {
        Error::Replica { replica, source } => (*replica, source.to_string()),
        error => panic!("{error}: no replica's own error"),
    }
}

/// Returns the text of an error of user code.
#[track_caller]
pub(crate) fn other(error: &Error) -> String {
    match error {
        Error::Other(own) => own.to_string(),
        error => panic!("{error}: no error of user code"),
    }
}

/// Returns the number, the signature and the bytes of the last call that an error names, if there
/// was one.
#[track_caller]
pub(crate) fn last_call(text: &str) -> Option<(u64, &str, u64)> {
    let (_, call) = text.split_once("its last call was number ")?;
    let of = || {
        let (number, call) = call.split_once(", ")?;
        let (signature, bytes) = call.split_at(call.find(')')? + 1);
        let (bytes, _) = bytes.strip_prefix(", ")?.split_once(" bytes")?;
        Some((number.parse().ok()?, signature, bytes.parse().ok()?))
    };
    Some(of().unwrap_or_else(|| panic!("{text}: no call")))
}

fn without_advice(found: &str) -> &str {
    found.split("; ").next().unwrap_or(found)
}

/// Returns whether an abort was of a group that this one was split from, its reason, and the lost
/// process, if it is named.
#[track_caller]
pub(crate) fn reason(text: &str) -> (bool, Reason, &str) {
    // A process of another host.
    if let Some((group, process)) = text.split_once("was lost (") {
        return (!group.is_empty(), Reason::Death, process);
    }
    // The words of one reason begin those of another.
    let told = Reason::ALL.into_iter().filter(|&reason| text.contains(&words_of(reason)));
    let told = told.max_by_key(|&reason| words_of(reason).len()).unwrap_or_else(|| panic!("{text}: no reason"));
    let (group, process) = text.split_once(&words_of(told)).expect("the words of the reason");
    (!group.is_empty(), told, process.trim_start())
}

fn words_of(reason: Reason) -> String {
    match Error::aborted("", 0, reason) {
        Error::Aborted { reason, .. } => reason,
        error => unreachable!("{error}"),
    }
}
