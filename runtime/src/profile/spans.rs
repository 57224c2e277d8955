//! Spans of calls and runs for subscribers of the crate `tracing`. Without the feature `tracing`
//! nothing of it is compiled.

use super::{CallRecord, GpuRecord};
use crate::Error;

/// The span of a call. It ends when it is dropped.
pub(crate) struct CallSpan(#[cfg(feature = "tracing")] tracing::span::EnteredSpan);

/// The span of a run on a replica.
pub(crate) struct RunSpan {
    #[cfg(feature = "tracing")]
    entered: Option<tracing::span::EnteredSpan>,
}

/// Returns whether a subscriber wants the spans of calls.
#[inline]
#[cfg(not(feature = "tracing"))]
pub(crate) const fn are_wanted() -> bool {
    false
}

#[cfg(not(feature = "tracing"))]
impl CallSpan {
    pub(crate) fn begin(_: usize, _: usize, _: &CallRecord, _: Option<GpuRecord>) -> CallSpan {
        CallSpan()
    }

    pub(crate) fn end(self, _: &CallRecord, _: Option<&Error>) {}
}

#[cfg(not(feature = "tracing"))]
impl RunSpan {
    pub(crate) fn begin(_: usize, _: usize) -> RunSpan {
        RunSpan {}
    }

    pub(crate) fn end(self) {}
}

/// Returns whether a subscriber wants the spans of calls.
#[inline]
#[cfg(feature = "tracing")]
pub(crate) fn are_wanted() -> bool {
    tracing::enabled!(target: "consonance", tracing::Level::DEBUG)
}

#[cfg(feature = "tracing")]
impl CallSpan {
    /// Begins and enters the span of a call, whose data are on `gpu` if on one.
    pub(crate) fn begin(replica: usize, replicas: usize, call: &CallRecord, gpu: Option<GpuRecord>) -> CallSpan {
        let span = tracing::debug_span!(
            target: "consonance",
            "call",
            kind = call.name.name(),
            step = (call.step != call.name).then(|| call.step.name()),
            op = call.op.map(|op| op.name()),
            dtype = call.dtype.map(|dtype| dtype.name()),
            bytes = call.bytes,
            replica,
            replicas,
            transport = call.transport.map(|transport| transport.name()),
            gpu = gpu.map(|gpu| format!("cuda:{}", gpu.ordinal)),
            gpu_uuid = gpu.map(|gpu| gpu.uuid.to_string()),
            path = tracing::field::Empty,
            waited_us = tracing::field::Empty,
            error = tracing::field::Empty,
        );
        CallSpan(span.entered())
    }

    /// Records how the call ended, as fields of the span and as an event in it.
    pub(crate) fn end(self, call: &CallRecord, error: Option<&Error>) {
        if let Some(waited) = call.waited {
            self.0.record("waited_us", 1e6 * waited.as_secs_f64());
        }
        if let Some(path) = call.path {
            self.0.record("path", path.name());
        }
        match error {
            None => tracing::debug!(target: "consonance", "finished"),
            Some(error) => {
                self.0.record("error", tracing::field::display(error));
                tracing::debug!(target: "consonance", "failed");
            }
        }
    }
}

#[cfg(feature = "tracing")]
impl RunSpan {
    /// Begins and enters the span of a run.
    pub(crate) fn begin(replica: usize, replicas: usize) -> RunSpan {
        let enter = || tracing::debug_span!(target: "consonance", "run", replica, replicas).entered();
        RunSpan { entered: are_wanted().then(enter) }
    }

    /// Leaves the span.
    pub(crate) fn end(self) {
        drop(self.entered);
    }
}
