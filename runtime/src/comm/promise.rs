//! Results that come later. [`Pending`](crate::Pending), [`PendingNest`](crate::PendingNest) and
//! [`Request`](crate::Request) are made of them.

use crate::{Error, Result, panics};
use std::{
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// The duty to give a result. If it is dropped before, as that of a message with its mailbox, the
/// result is an error.
pub(crate) struct Promise<V>(Arc<Shared<V>>);

/// A result that comes later. A clone is the same result. Nobody has to wait for it.
pub(crate) struct Promised<V>(Arc<Shared<V>>);

struct Shared<V> {
    state: Mutex<State<V>>,
    changed: Condvar,
}

struct State<V> {
    outcome: Outcome<V>,
    /// The functions to call when the result has come.
    then: Vec<Then>,
    /// The thread that calls it, while it does.
    teller: Option<ThreadId>,
}

enum Outcome<V> {
    Awaited,
    Given(Result<V>),
    Taken,
}

type Then = Box<dyn FnOnce(&Result<()>) + Send>;

/// Makes a promise.
pub(crate) fn promise<V>() -> (Promise<V>, Promised<V>) {
    let state = State { outcome: Outcome::Awaited, then: Vec::new(), teller: None };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Promise(shared.clone()), Promised(shared))
}

impl<V> Promise<V> {
    /// Gives the result, and calls what [`then`](Promised::then) was given.
    pub(crate) fn keep(self, result: Result<V>) {
        self.0.give(result);
    }
}

impl<V> Drop for Promise<V> {
    fn drop(&mut self) {
        if matches!(self.0.lock().outcome, Outcome::Awaited) {
            let problem = "it was given up, because its group was dropped, or its thread panicked".to_owned();
            self.0.give(Err(Error::WrongContext { call: "Request", problem }));
        }
    }
}

impl<V> Promised<V> {
    /// Waits for the result, and takes it.
    ///
    /// # Errors
    /// That of the result; [`Error::Other`] if it was taken before.
    pub(crate) fn take(&self) -> Result<V> {
        let mut state = self.0.ready(None).expect("a wait without a limit");
        match mem::replace(&mut state.outcome, Outcome::Taken) {
            Outcome::Given(result) => result,
            Outcome::Awaited | Outcome::Taken => Err(Error::other("the call's scope has returned its error")),
        }
    }

    /// Waits for the result, at most until `until`, and copies it. `None` if it has not come.
    pub(crate) fn copy(&self, until: Option<Instant>) -> Option<Result<V>>
    where
        V: Clone,
    {
        match &self.0.ready(until)?.outcome {
            Outcome::Given(result) => Some(result.clone()),
            Outcome::Awaited | Outcome::Taken => None,
        }
    }

    /// Returns whether the result was given, even if not all of [`then`](Promised::then) has
    /// returned.
    pub(crate) fn was_given(&self) -> bool {
        !matches!(self.0.lock().outcome, Outcome::Awaited)
    }

    /// Returns whether the result was given, and all of [`then`](Promised::then) has returned.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.lock().is_ready()
    }

    /// Calls `then` once with the result: see [`Request::on_finish`](crate::Request::on_finish).
    pub(crate) fn then(&self, then: impl FnOnce(&Result<()>) + Send + 'static) {
        let mut state = self.0.lock();
        let told = match &state.outcome {
            Outcome::Given(result) if state.teller.is_none() => without_value(result),
            _ => return state.then.push(Box::new(then)),
        };
        drop(state);
        // The panic is printed when it begins.
        let _ = panics::catch(|| then(&told));
    }

    /// Returns the result as one of any type.
    pub(crate) fn unheard<'v>(&self) -> Arc<dyn Unheard + 'v>
    where
        V: Send + 'v,
    {
        self.0.clone()
    }
}

/// A result whose error is of interest if nobody takes it.
pub(crate) trait Unheard: Send + Sync {
    /// Takes the error, if it has come and nobody took it before. A value is left.
    fn error(&self) -> Option<Error>;
}

impl<V: Send> Unheard for Shared<V> {
    fn error(&self) -> Option<Error> {
        let mut state = self.lock();
        match mem::replace(&mut state.outcome, Outcome::Taken) {
            Outcome::Given(Err(error)) => Some(error),
            outcome => {
                state.outcome = outcome;
                None
            }
        }
    }
}

impl<V> Shared<V> {
    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the result is ready, at most until `until`.
    fn ready(&self, until: Option<Instant>) -> Option<MutexGuard<'_, State<V>>> {
        let mut state = self.lock();
        while !state.is_ready() {
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        Some(state)
    }

    fn give(&self, result: Result<V>) {
        let told = without_value(&result);
        let mut state = self.lock();
        state.outcome = Outcome::Given(result);
        state.teller = Some(thread::current().id());
        while !state.then.is_empty() {
            let all = mem::take(&mut state.then);
            drop(state);
            // As in `then`.
            all.into_iter().for_each(|then| _ = panics::catch(|| then(&told)));
            state = self.lock();
        }
        state.teller = None;
        drop(state);
        self.changed.notify_all();
    }
}

impl<V> State<V> {
    /// Whether all was told of the result; for the thread that tells, whether there is one.
    fn is_ready(&self) -> bool {
        let is_told = self.teller.is_none_or(|teller| teller == thread::current().id());
        is_told && !matches!(self.outcome, Outcome::Awaited)
    }
}

impl<V> Clone for Promised<V> {
    fn clone(&self) -> Promised<V> {
        Promised(self.0.clone())
    }
}

fn without_value<V>(result: &Result<V>) -> Result<()> {
    result.as_ref().map(|_| ()).map_err(Error::clone)
}
