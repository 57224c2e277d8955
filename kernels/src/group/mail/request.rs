//! Requests of a mailbox, and how they end.

use super::ring::Envelope;
use crate::{
    group::end::abort::Fault,
    memory::{HostBuf, HostBufMut},
};
use std::time::{Duration, Instant};

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailFault {
    /// A message does not fit its receive. Both ranks get this fault: the sender at the latest when
    /// it sends to that rank or receives from it and has got the faults of earlier messages. Of
    /// messages that were taken as a whole, and of whose refusals it has not heard, it gets 15.
    Unlike {
        /// The rank that sent.
        from: usize,
        /// The rank that received.
        to: usize,
        /// The envelope of the message.
        sent: Envelope,
        /// The envelope that the receive expected.
        expected: Envelope,
    },
    /// The deadline passed. The group goes on.
    Late {
        /// The ranks that did not send or receive.
        awaited: Vec<usize>,
        /// The ranks that hold them up, if they wait for others in turn; else the same ranks.
        missing: Vec<usize>,
    },
    /// The sender gave up in the middle of the message.
    Withdrawn(usize),
    /// The fault of the group.
    Fault(Fault),
}

/// A function that a request calls at its end, with the rank that sent the message or received it.
pub type Finish = Box<dyn FnOnce(Result<usize, MailFault>) + Send>;

/// A request that has ended, and how.
pub(super) type Finished = (Finish, Result<usize, MailFault>);

/// The time at which a request ends that has not ended before.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    pub(super) at: Instant,
    limit: Duration,
}

impl Deadline {
    /// Returns the deadline of a request that begins now and waits for so long; `None` if that is
    /// past the end of the clock.
    pub fn after(limit: Duration) -> Option<Deadline> {
        Some(Deadline { at: Instant::now().checked_add(limit)?, limit })
    }
}

/// A message to send.
pub(super) struct Sending {
    pub(super) data: HostBuf<'static>,
    pub(super) label: u8,
    pub(super) tag: u64,
    pub(super) deadline: Option<Deadline>,
    pub(super) finish: Finish,
}

/// A receive.
pub(super) struct Receive {
    pub(super) data: HostBufMut<'static>,
    pub(super) label: u8,
    /// The rank that sends; `None` for any.
    pub(super) from: Option<usize>,
    pub(super) tag: u64,
    pub(super) deadline: Option<Deadline>,
    pub(super) finish: Finish,
}

impl Sending {
    pub(super) fn envelope(&self) -> Envelope {
        Envelope { dtype: self.data.dtype(), label: self.label, bytes: self.data.bytes(), tag: self.tag }
    }
}

impl Receive {
    pub(super) fn envelope(&self) -> Envelope {
        Envelope { dtype: self.data.dtype(), label: self.label, bytes: self.data.bytes(), tag: self.tag }
    }

    /// Whether a message from this rank with this tag belongs to the receive.
    pub(super) fn takes(&self, from: usize, tag: u64) -> bool {
        self.tag == tag && self.from.is_none_or(|rank| rank == from)
    }
}

/// Whether a deadline has passed.
pub(super) fn is_past(deadline: Option<Deadline>, now: Instant) -> bool {
    deadline.is_some_and(|deadline| deadline.at <= now)
}

/// Returns how long a request waits until its deadline.
pub(super) fn limit(deadline: Option<Deadline>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.limit)
}
