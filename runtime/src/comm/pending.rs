//! Asynchronous calls in progress.

use crate::{Result, comm::promise::Promised};
use std::fmt;

/// An asynchronous call in progress, and the buffer that it owns, if any. Dropping it is safe: the
/// call finishes before its scope ends, and the scope returns its error.
pub struct Pending<B = ()>(pub(super) Promised<B>);

impl<B> Pending<B> {
    /// Waits until the call is finished, and returns the buffer that it owned. The call's deadline
    /// bounds the wait.
    ///
    /// # Errors
    /// The call's. After the end of the scope, which returned this error or another one,
    /// [`Error::Other`](crate::Error::Other).
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let sum = alone.scope(|scope| scope.all_reduce_owned(ReduceOp::Sum, vec![0.5f32; 1000])?.wait())?;
    /// assert_eq!(sum, [0.5; 1000]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn wait(self) -> Result<B> {
        self.0.take()
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
        self.0.is_ready()
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(finished: {})", self.is_finished())
    }
}
