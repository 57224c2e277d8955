//! Events of streams.

use std::time::Instant;

/// An event: the stream on which it was recorded, and when the stream came to it.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) stream: Option<u64>,
    pub(crate) time: Option<Instant>,
}

impl Event {
    pub(crate) fn end(&mut self, time: Instant) {
        self.time = Some(time);
    }
}
