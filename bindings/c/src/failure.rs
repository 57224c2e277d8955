//! The reason why a function failed.

use crate::codes;
use consonance::Error;
use std::ffi::c_int;

/// The reason why a function failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure(pub(crate) Box<Details>);

/// The details of a failure.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    pub(crate) code: c_int,
    pub(crate) call: String,
    pub(crate) argument: String,
    pub(crate) replica: Option<usize>,
    pub(crate) expected: String,
    pub(crate) found: String,
    pub(crate) missing: Vec<usize>,
    pub(crate) text: String,
}

impl Failure {
    /// Makes the failure of a function's argument.
    pub(crate) fn argument(argument: &str, expected: impl Into<String>, found: impl Into<String>) -> Failure {
        let (expected, found) = (expected.into(), found.into());
        let text = format!("{argument}: expected {expected}, found {found}");
        let mut boxed = Failure::new(codes::CONS_ERR_ARGUMENT, text);
        let failure = &mut *boxed.0;
        (failure.argument, failure.expected, failure.found) = (argument.to_owned(), expected, found);
        boxed
    }

    /// Makes a failure that has no more details.
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
            Error::Meeting { call, missing, .. } => {
                (failure.call, failure.replica) = ((*call).to_owned(), missing.first().copied());
                failure.missing.clone_from(missing);
            }
            Error::WrongContext { call, .. } => failure.call = (*call).to_owned(),
            Error::UnknownReduceOp { call, replica, source } => {
                (failure.call, failure.replica) = (call.unwrap_or_default().to_owned(), *replica);
                (failure.argument, failure.found) = ("op".to_owned(), source.0.clone());
            }
            _ => {}
        }
        // There are no types of the runtime here: messages are those of a communicator.
        for words in [&mut failure.call, &mut failure.text] {
            *words = words.replace("Mailbox::", "").replace("Accumulator::", "");
        }
        boxed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance::{Communicator, Queue};

    #[test]
    fn a_message_is_named_as_a_call_of_the_library() {
        let queues: Vec<Queue> = Communicator::threads(2).into_iter().map(Queue::new).collect();
        let mailbox = queues[0].mailbox().unwrap();
        let error = mailbox.recv(&mut [0u8][..], Some(1), 0, Some(std::time::Duration::from_millis(1))).unwrap_err();
        let Failure(failure) = error.into();
        assert_eq!((failure.code, failure.call.as_str()), (codes::CONS_ERR_TIMEOUT, "recv"));
        assert!(failure.text.starts_with("recv: "), "{}", failure.text);
    }
}
