//! Requests that were started and end later.

use crate::{
    Error, Result,
    comm::{
        promise::{Promise, Promised, promise},
        tagged_messages::TaggedMessages,
    },
};
use consonance_kernels::sync::fork::Origin;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// A request that was started: calls of a [`Queue`](crate::Queue), or a message of a
/// [`Mailbox`](crate::Mailbox). It ends by itself, at the latest at its timeout. A clone is the
/// same request.
///
/// ```
/// use consonance::{Communicator, Queue, raw::Call};
/// let queue = Queue::new(Communicator::threads(1).remove(0));
/// let request = queue.start(vec![Call::Barrier], None);
/// request.on_finish(|result| assert!(result.is_ok()));
/// assert!(request.wait(None)? && request.is_finished());
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone)]
pub struct Request {
    /// The rank that sent the message, for a receive.
    result: Promised<Option<usize>>,
    /// The mailbox that a waiting thread advances, and the rank that sends or receives, if it is
    /// one.
    messages: Option<(Arc<dyn TaggedMessages>, Option<usize>)>,
    origin: Origin,
}

impl Request {
    /// Makes a request. A thread that waits for it, and so for the rank beside `messages`, advances
    /// these meanwhile.
    pub(crate) fn new(messages: Option<(Arc<dyn TaggedMessages>, Option<usize>)>) -> (Promise<Option<usize>>, Request) {
        let (promise, result) = promise();
        (promise, Request { result, messages, origin: Origin::here() })
    }

    /// Waits until the request has ended and what [`on_finish`](Request::on_finish) was given has
    /// returned, at most for `limit`. Returns whether it has. A request that has not ended goes on.
    ///
    /// # Errors
    /// The error of the request, each time that this is called; [`Error::WrongContext`] in a child
    /// made by `fork` after the request was started.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        // In a fork nobody ends the request, and its lock may be held for ever.
        if self.origin.forked() {
            let problem = "a wait in a process made by fork after the request was started".to_owned();
            return Err(Error::WrongContext { call: "Request::wait", problem });
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if let Some((messages, peer)) = &self.messages {
            messages.wait(*peer, until, &|| self.result.was_given());
        }
        self.result.copy(until).map_or(Ok(false), |result| result.map(|_| true))
    }

    /// Returns whether the request has ended and what [`on_finish`](Request::on_finish) was given
    /// has returned.
    pub fn is_finished(&self) -> bool {
        self.result.is_ready()
    }

    /// Calls `then` once with the result, on the thread that ends the request, or now if it has
    /// ended. Each thread that waits for the request goes on after `then` has returned. `then` must
    /// not wait for another request. A panic of `then` is printed, and has no other effect.
    pub fn on_finish(&self, then: impl FnOnce(&Result<()>) + Send + 'static) {
        self.result.then(then);
    }

    /// Returns the rank that sent the message, for a receive that has ended without an error.
    pub fn source(&self) -> Option<usize> {
        self.result.copy(Some(Instant::now()))?.ok()?
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request(finished: {})", self.is_finished())
    }
}
