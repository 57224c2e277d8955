//! Requests that were started and end later.

use crate::{Error, Result, panics};
use consonance_kernels::{group::Mail, sync::fork::Origin};
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
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
pub struct Request(Arc<Shared>);

/// The other end of a [`Request`]. If it is dropped, the request ends with an error.
pub(crate) struct Completion(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The mailbox that a waiting thread advances, and the rank that sends or receives, if it is
    /// one.
    mail: Option<(Mail, Option<usize>)>,
    origin: Origin,
}

struct State {
    /// The result, with the rank that sent a message that was received. `None` while it goes on.
    outcome: Option<Outcome>,
    /// What is called at the end.
    then: Vec<Then>,
    /// The thread that calls it, while it does.
    teller: Option<ThreadId>,
}

type Outcome = Result<Option<usize>>;

/// What is called at the end of a request.
type Then = Box<dyn FnOnce(&Result<()>) + Send>;

/// Makes a request. A thread that waits for it, and so for the rank in `mail`, advances that
/// mailbox meanwhile.
pub(crate) fn request(mail: Option<(Mail, Option<usize>)>) -> (Completion, Request) {
    let state = Mutex::new(State { outcome: None, then: Vec::new(), teller: None });
    let shared = Arc::new(Shared { state, changed: Condvar::new(), mail, origin: Origin::here() });
    (Completion(shared.clone()), Request(shared))
}

impl Request {
    /// Waits until the request has ended and what [`on_finish`](Request::on_finish) was given has
    /// returned, at most for `limit`. Returns whether it has. A request that has not ended goes on.
    ///
    /// # Errors
    /// The error of the request, each time that this is called; [`Error::WrongContext`] in a child
    /// made by `fork` after the request was started.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        // In a fork nobody ends the request, and its lock may be held for ever.
        if self.0.origin.forked() {
            let problem = "a wait in a process made by fork after the request was started".to_owned();
            return Err(Error::WrongContext { call: "Request::wait", problem });
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if let Some((mail, peer)) = &self.0.mail {
            mail.wait(*peer, until, || self.0.lock().outcome.is_some());
        }
        let mut state = self.0.lock();
        loop {
            if let Some(result) = state.outcome() {
                return result.as_ref().map(|_| true).map_err(Error::clone);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Ok(false),
                Some(left) => self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Returns whether the request has ended and what [`on_finish`](Request::on_finish) was given
    /// has returned.
    pub fn is_finished(&self) -> bool {
        self.0.lock().outcome().is_some()
    }

    /// Calls `then` once with the result, on the thread that ends the request, or now if it has
    /// ended. Each thread that waits for the request goes on after `then` has returned. `then` must
    /// not wait for another request. A panic of `then` is printed, and has no other effect.
    pub fn on_finish(&self, then: impl FnOnce(&Result<()>) + Send + 'static) {
        let mut state = self.0.lock();
        let result = match &state.outcome {
            Some(outcome) if state.teller.is_none() => outcome.as_ref().map(|_| ()).map_err(Error::clone),
            _ => return state.then.push(Box::new(then)),
        };
        drop(state);
        // The panic is printed when it begins.
        let _ = panics::catch(|| then(&result));
    }

    /// Returns the rank that sent the message, for a receive that has ended without an error.
    pub fn source(&self) -> Option<usize> {
        self.0.lock().outcome().and_then(|outcome| *outcome.as_ref().ok()?)
    }
}

impl Completion {
    /// Ends the request.
    pub(crate) fn end(self, result: Result<Option<usize>>) {
        self.0.end(result);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.0.lock().outcome.is_none() {
            let problem = "the request was given up, because its group was dropped".to_owned();
            self.0.end(Err(Error::WrongContext { call: "Request", problem }));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, result: Result<Option<usize>>) {
        let told = result.as_ref().map(|_| ()).map_err(Error::clone);
        let mut state = self.lock();
        state.outcome = Some(result);
        state.teller = Some(thread::current().id());
        while !state.then.is_empty() {
            let all = std::mem::take(&mut state.then);
            drop(state);
            // As in `on_finish`.
            all.into_iter().for_each(|then| _ = panics::catch(|| then(&told)));
            state = self.lock();
        }
        state.teller = None;
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// Returns the outcome after all was told of it; to the thread that tells, before.
    fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref().filter(|_| self.teller.is_none_or(|teller| teller == thread::current().id()))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request(finished: {})", self.is_finished())
    }
}
