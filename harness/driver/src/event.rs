//! Events of streams.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

/// An event: where it was recorded last.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) recorded: Option<Record>,
}

/// A point in the work of a stream. It outlives the event, and what records that anew.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) stream: u64,
    time: Arc<OnceLock<Instant>>,
}

impl Record {
    pub(crate) fn new(stream: u64) -> Record {
        Record { stream, time: Arc::default() }
    }

    /// Notes that the stream has come to it.
    pub(crate) fn end(&self) {
        _ = self.time.set(Instant::now());
    }

    /// Returns when the stream came to it.
    pub(crate) fn time(&self) -> Option<Instant> {
        self.time.get().copied()
    }
}
