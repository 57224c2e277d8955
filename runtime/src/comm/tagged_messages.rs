//! The seam between a mailbox and the messages with tags on which it stands.

use crate::Error;
use consonance_kernels::{
    group::Envelope,
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::World;
use std::time::{Duration, Instant};

/// The messages with tags of one rank: the requests of a [`Mailbox`](crate::Mailbox), which checks
/// their arguments and makes their errors. An engine returns its mailbox by
/// [`Engine::mailbox`](crate::raw::Engine::mailbox).
///
/// A receive takes the first message of its rank, or of any, that has its tag. A message of another
/// element type, label or size ends both requests with [`MessageFault::Unlike`]; if the send has
/// ended by then, the sender gets the fault in a later request with that rank. A request that has
/// not ended after `limit` ends with [`MessageFault::Late`], and the group goes on: no other bound
/// ends the wait for it.
///
/// `finish` calls methods of this trait. An implementation holds no lock that they take when it
/// calls `finish`.
pub trait TaggedMessages: Send + Sync {
    /// Returns this rank and the number of ranks.
    fn world(&self) -> World;

    /// Sends `data` to rank `to`, and waits until the send has ended. Returns `to`.
    ///
    /// # Errors
    /// See [`MessageFault`].
    fn send(&self, data: HostBuf<'_>, to: usize, tag: Tag, limit: Duration) -> Result<usize, MessageFault>;

    /// Receives a message of rank `from`, or of any, and waits until it has come. Returns the rank
    /// that sent it.
    ///
    /// # Errors
    /// See [`MessageFault`].
    fn recv(&self, data: HostBufMut<'_>, from: Option<usize>, tag: Tag, limit: Duration)
    -> Result<usize, MessageFault>;

    /// Starts a [`send`](TaggedMessages::send). Calls `finish` once, on any thread, when it has
    /// ended: perhaps before this returns.
    fn start_send(&self, data: HostBuf<'static>, to: usize, tag: Tag, limit: Duration, finish: FinishMessage);

    /// Starts a [`recv`](TaggedMessages::recv). Calls `finish` as
    /// [`start_send`](TaggedMessages::start_send) does.
    fn start_recv(
        &self,
        data: HostBufMut<'static>,
        from: Option<usize>,
        tag: Tag,
        limit: Duration,
        finish: FinishMessage,
    );

    /// Waits until `done`, and advances all requests of this rank meanwhile. Returns false once
    /// `until` has passed. `peer` is the rank that is waited for, if it is one.
    fn wait(&self, peer: Option<usize>, until: Option<Instant>, done: &dyn Fn() -> bool) -> bool;

    /// Advances all requests until `until`, a [`wake`](TaggedMessages::wake) or an event. A thread
    /// calls this while requests are open for which no thread waits.
    fn rest(&self, until: Instant);

    /// Wakes the threads that wait or rest.
    fn wake(&self);

    /// Returns whether a request has not ended.
    fn is_busy(&self) -> bool;

    /// Describes the process of a rank in words, for errors. By default there are none.
    fn describe(&self, _rank: usize) -> Option<String> {
        None
    }

    /// Notes that an error says of this rank that its message differs from the receive. By default
    /// this does nothing.
    fn blame(&self, _rank: usize) {}
}

/// The tag of a message, and the number of its type of the caller; 0 for an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The tag.
    pub tag: u64,
    /// The number of the type.
    pub label: u8,
}

/// The reason why a request of a mailbox failed.
#[derive(Clone, Debug)]
pub enum MessageFault {
    /// A message does not fit its receive. Both ranks get this.
    Unlike {
        /// The rank that sent.
        from: usize,
        /// The rank that received.
        to: usize,
        /// The message.
        sent: Envelope,
        /// The message that the receive expected.
        expected: Envelope,
    },
    /// The limit has passed. The group goes on.
    Late {
        /// The ranks that did not send or receive.
        awaited: Vec<usize>,
        /// The ranks that hold them up, if they wait for others in turn; else the same ranks.
        missing: Vec<usize>,
    },
    /// This rank gave up in the middle of its message.
    Withdrawn(usize),
    /// Any other error, as of a group that was aborted.
    Error(Error),
}

/// The end of a request: takes the rank that sent the message or received it.
pub type FinishMessage = Box<dyn FnOnce(Result<usize, MessageFault>) + Send>;
