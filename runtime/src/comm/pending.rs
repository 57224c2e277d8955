//! Asynchronous calls in progress.

use crate::{Communicator, Error, Result};
use std::{
    fmt, mem,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// An asynchronous call in progress, and the buffer that it owns, if any. Dropping it is safe: the
/// call finishes before its scope ends, and the scope returns its error.
pub struct Pending<B = ()> {
    slot: Arc<Slot<B>>,
}

impl<B> Pending<B> {
    /// Waits until the call is finished, and returns the buffer that it owned. The call's deadline
    /// bounds the wait.
    ///
    /// # Errors
    /// The call's. After the end of the scope, which returned this error or another one,
    /// [`Error::Other`].
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let sum = alone.scope(|scope| scope.all_reduce_owned(ReduceOp::Sum, vec![0.5f32; 1000])?.wait())?;
    /// assert_eq!(sum, [0.5; 1000]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn wait(self) -> Result<B> {
        let waited = self.slot.finished.wait_while(self.slot.lock(), |state| matches!(state, State::UnderWay));
        match mem::replace(&mut *waited.expect(UNHARMED), State::Taken) {
            State::Finished(result) => result,
            State::UnderWay | State::Taken => Err(Error::other("the call's scope has returned its error")),
        }
    }

    /// Returns whether the call is finished. Never waits.
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// let (mut alone, mut gradients) = (Communicator::threads(1).remove(0), [0.5f32; 1000]);
    /// alone.scope(|scope| {
    ///     let sum = scope.all_reduce(ReduceOp::Sum, &mut gradients)?;
    ///     while !sum.is_finished() {
    ///         // Compute something else.
    ///     }
    ///     sum.wait()
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        !matches!(*self.slot.lock(), State::UnderWay)
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(finished: {})", self.is_finished())
    }
}

/// Makes a call in progress. `work` executes it on a communicator.
pub(super) fn pending<'env, B: Send + 'env>(
    work: impl FnOnce(&mut Communicator) -> Result<B> + Send + 'env,
) -> (Pending<B>, Arc<dyn Ending + 'env>, impl FnOnce(&mut Communicator) + Send + 'env) {
    let slot = Arc::new(Slot { state: Mutex::new(State::UnderWay), finished: Condvar::new() });
    let promise = Promise(slot.clone());
    let task = move |communicator: &mut Communicator| promise.0.finish(work(communicator));
    (Pending { slot: slot.clone() }, slot, task)
}

/// A call whose error the scope returns if nobody waits for it.
pub(super) trait Ending: Send + Sync {
    /// Takes the error of a finished call, if nobody took it before.
    fn error(&self) -> Option<Error>;
}

/// The slot for a call's result, which is taken once.
struct Slot<B> {
    state: Mutex<State<B>>,
    finished: Condvar,
}

enum State<B> {
    UnderWay,
    Finished(Result<B>),
    Taken,
}

const UNHARMED: &str = "nobody panics while holding the state of a call";

impl<B> Slot<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().expect(UNHARMED)
    }

    fn finish(&self, result: Result<B>) {
        *self.lock() = State::Finished(result);
        self.finished.notify_all();
    }
}

impl<B: Send> Ending for Slot<B> {
    fn error(&self) -> Option<Error> {
        let mut state = self.lock();
        match mem::replace(&mut *state, State::Taken) {
            State::Finished(Err(error)) => Some(error),
            // The buffer is there for a later wait.
            other => {
                *state = other;
                None
            }
        }
    }
}

/// The duty to finish a call. It is dropped unfinished only in a panic; then the waiter gets an
/// error.
struct Promise<B>(Arc<Slot<B>>);

impl<B> Drop for Promise<B> {
    fn drop(&mut self) {
        if matches!(*self.0.lock(), State::UnderWay) {
            self.0.finish(Err(Error::other("the thread of the asynchronous calls panicked")));
        }
    }
}
