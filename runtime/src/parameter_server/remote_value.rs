//! Results of closures.

use super::{
    chief::{Awaits, Chief},
    schedule::{Outcome, Slot},
};
use crate::{Error, Nest, Result, value::nest::sent};
use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

/// The result of a closure, which may not have ended. A clone is the same result.
///
/// ```
/// use consonance::{ClusterCoordinator, Error, ParameterServerStrategy};
/// use std::time::Duration;
/// let limit = Duration::from_secs(60);
/// let coordinator = ClusterCoordinator::new(&ParameterServerStrategy::threads(1, 1)?);
/// let half = coordinator.function("half", |_, number: u32| match number % 2 {
///     0 => Ok(number / 2),
///     _ => Err(Error::other("it is odd")),
/// })?;
/// assert_eq!(coordinator.schedule(&half, 8)?.fetch(limit)?, 4);
/// let Err(Error::Closures { failures, .. }) = coordinator.schedule(&half, 9)?.fetch(limit) else { panic!() };
/// assert_eq!(failures[0].to_string(), "closure 1 of \"half\" on worker 0: it is odd");
/// # Ok::<(), Error>(())
/// ```
pub struct RemoteValue<R> {
    pub(super) slot: Arc<Slot>,
    pub(super) chief: Arc<Chief>,
    pub(super) types: PhantomData<fn() -> R>,
}

impl<R> RemoteValue<R> {
    /// Returns the number of the closure.
    pub fn number(&self) -> u64 {
        self.slot.number
    }

    /// Returns whether the closure has ended.
    pub fn is_ready(&self) -> bool {
        self.slot.outcome.get().is_some()
    }
}

impl<R: Nest> RemoteValue<R> {
    /// Waits until the closure has ended, and returns its result.
    ///
    /// # Errors
    /// [`Error::Closures`] if it has failed or was cancelled, in each call; [`Error::Timeout`] at
    /// the deadline; [`Error::Aborted`] if a server was lost.
    pub fn fetch(&self, timeout: Duration) -> Result<R> {
        let call = "RemoteValue::fetch";
        let outcome = match self.slot.outcome.get() {
            Some(outcome) => outcome.clone(),
            None => self.chief.wait(call, timeout, Awaits::Each, |_| self.slot.outcome.get().cloned())?,
        };
        match outcome {
            Outcome::Ready(bytes) => sent::from_bytes(&bytes, &self.chief.program.known),
            Outcome::Failed(failure) => Err(Error::Closures { call, failures: vec![failure] }),
            Outcome::Cancelled(cause) => Err(Error::WrongContext {
                call,
                problem: format!(
                    "closure {} of {:?} was cancelled; {cause}; schedule it again",
                    self.slot.number, self.slot.function
                ),
            }),
        }
    }
}

impl<R> Clone for RemoteValue<R> {
    fn clone(&self) -> RemoteValue<R> {
        RemoteValue { slot: self.slot.clone(), chief: self.chief.clone(), types: PhantomData }
    }
}

impl<R> fmt::Debug for RemoteValue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteValue").field("slot", &self.slot).finish_non_exhaustive()
    }
}
