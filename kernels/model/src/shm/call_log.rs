//! A call log that records nothing: in the model of the protocol it would only add steps.
//! `shm/call_log.rs` has a model of its own.

pub(crate) use super::call_log_text::{Entry, Outcome};

pub(crate) struct CallLog;

impl CallLog {
    pub(crate) fn claim(&self) {}

    pub(crate) fn say_gpu(&self, _ordinal: usize, _identity: [u8; 16]) {}

    pub(crate) fn begin(&self, _number: u64, _head: u32, _bytes: u64) -> u64 {
        0
    }

    pub(crate) fn end(&self, _ticket: u64, _outcome: Outcome) {}

    pub(crate) fn read(&self) -> Vec<Entry> {
        Vec::new()
    }
}
