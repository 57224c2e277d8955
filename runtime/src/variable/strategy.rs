//! Creating and updating variables of a strategy.

use super::{Variable, VariableMut};
use crate::{Error, Result, Strategy, Tensor, execution::context, kind};

impl Strategy {
    /// Creates a [`Variable`] of this strategy; `initial_value` is called once. For other
    /// synchronization or aggregation see [`Variable::builder`].
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, or in another strategy's scope.
    pub fn variable(&self, initial_value: impl FnOnce() -> Tensor) -> Result<Variable> {
        let call = "Strategy::variable";
        self.or_refuse(kind::NEW_VARIABLE, context::require_cross_replica(call, self))?;
        Variable::builder(initial_value).build_in(call, self.clone())
    }

    /// Calls `update` with the value of `variable`, to write it in place, and returns the results.
    /// A variable that is synchronised on writing has one value: after `update` its copies in all
    /// memories get the new bits. If the variable is synchronised on reading there is a component
    /// for each replica, in replica order: see [`Variable`].
    ///
    /// The closure may set the components of a variable that is synchronised on reading to
    /// different values. What an update wrote before it failed or panicked stays in a component,
    /// and if all devices are processors. If some are GPUs, the copies do not change then.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, in another strategy's scope or in an update of the
    /// same variable; [`Error::InvalidCall`] for a variable of another strategy; [`Error::Timeout`]
    /// if an update on another thread does not end; the first error of `update`.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let weights = strategy.variable(|| Tensor::from([1.0f32, 2.0]))?;
    /// strategy.update(&weights, |copy| {
    ///     copy.as_mut_slice::<f32>()?.iter_mut().for_each(|weight| *weight *= 0.5);
    ///     Ok(())
    /// })?;
    /// assert_eq!(weights.read()?, Tensor::from([0.5f32, 1.0]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn update<R>(
        &self,
        variable: &Variable,
        update: impl FnMut(&mut VariableMut<'_>) -> Result<R>,
    ) -> Result<Vec<R>> {
        let call = "Strategy::update";
        context::require_cross_replica(call, self)?;
        if variable.strategy() != self {
            return Err(Error::invalid(
                call,
                "variable",
                format!("one of this strategy, {self}"),
                format!("one of another, {}", variable.strategy()),
            ));
        }
        variable.update_copies(call, update)
    }
}
