//! Variables on servers, as checkpoints save and restore them.

use super::variable::{Asked, ShardedVariable};
use crate::{Result, Tensor, variable::update::Update};
use std::sync::Arc;

/// A variable whose value can be set: the closures before it have ended.
pub(crate) struct Settled<'v>(&'v ShardedVariable);

impl ShardedVariable {
    /// Returns whether both are the same variable.
    pub(crate) fn is(&self, other: &ShardedVariable) -> bool {
        Arc::ptr_eq(&self.layout, &other.layout)
    }

    /// Returns the number among the variables of its strategy.
    pub(crate) fn number(&self) -> usize {
        self.layout.number
    }

    /// Checks that this process is the chief of its strategy.
    ///
    /// # Errors
    /// [`Error::WrongContext`](crate::Error::WrongContext) if it is not.
    pub(crate) fn check_chief(&self, call: &'static str) -> Result<()> {
        self.of_chief(call).map(drop)
    }

    /// Returns the value, in this call.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn saved(&self, call: &'static str) -> Result<Tensor> {
        self.read_of(call, Asked::All)
    }

    /// Waits for the closures whose place is before an access of the chief.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn settled(&self, call: &'static str) -> Result<Settled<'_>> {
        self.of_chief(call)?.settle(call)?;
        Ok(Settled(self))
    }
}

impl Settled<'_> {
    /// Sets the value.
    ///
    /// # Errors
    /// As [`assign`](ShardedVariable::assign).
    pub(crate) fn set(self, call: &'static str, value: &Tensor) -> Result<()> {
        self.0.update(call, Update::Assign, value)
    }
}
