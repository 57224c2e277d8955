//! The coordinator: what the chief's program calls.

use super::{
    argument::Argument,
    chief::{Awaits, LostWorker, State},
    context::WorkerContext,
    program::Function,
    remote_value::RemoteValue,
    schedule::Next,
    strategy::ParameterServerStrategy,
};
use crate::{ClosureFailure, Error, Nest, Result};
use std::{marker::PhantomData, time::Duration};

/// Schedules functions on the workers of a
/// [`ParameterServerStrategy`](crate::ParameterServerStrategy): TensorFlow's `ClusterCoordinator`.
///
/// A *closure* is a function with its argument. Workers run closures one at a time, in the order in
/// which they were scheduled, as far as their arguments are there. The effects of a closure commit
/// once and as a whole, whatever becomes of workers; a closure that fails leaves none.
///
/// All processes make a coordinator and declare the same functions in the same order. Then the
/// chief goes on, and all others [`serve`](crate::ParameterServerStrategy::serve).
///
/// ```
/// use consonance::{ClusterCoordinator, ParameterServerStrategy, Tensor};
/// use std::time::Duration;
/// let strategy = ParameterServerStrategy::threads(2, 1)?;
/// let total = strategy.variable(|| Tensor::from(0i64))?;
/// let coordinator = ClusterCoordinator::new(&strategy);
/// let add = coordinator.function("add", {
///     let total = total.clone();
///     move |worker, number: i64| {
///         worker.assign_add(&total, &Tensor::from(number))?;
///         Ok(2 * number)
///     }
/// })?;
/// # if !strategy.is_chief() { return strategy.serve(); }
/// let doubled = (1..=100).map(|number| coordinator.schedule(&add, number)).collect::<Result<Vec<_>, _>>()?;
/// coordinator.join(Duration::from_secs(60))?;
/// assert_eq!(total.read()?, Tensor::from(5050i64));
/// assert_eq!(doubled[99].fetch(Duration::from_secs(60))?, 200);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClusterCoordinator {
    pub(super) strategy: ParameterServerStrategy,
}

/// The events since the last [`join`](ClusterCoordinator::join).
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// The workers that were lost. Other workers have run their closures.
    pub lost: Vec<LostWorker>,
}

impl ClusterCoordinator {
    /// Makes a coordinator of a strategy. All coordinators of a strategy are one.
    pub fn new(strategy: &ParameterServerStrategy) -> ClusterCoordinator {
        ClusterCoordinator { strategy: strategy.clone() }
    }

    /// Declares a function, by a name that no other function of the strategy has. It gets the
    /// [context](WorkerContext) of its worker, and its argument, and may run on several workers at
    /// once.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a name that is taken; [`Error::WrongContext`] after the first
    /// closure was scheduled.
    pub fn function<A: Nest, R: Nest>(
        &self,
        name: &str,
        run: impl Fn(&WorkerContext<'_>, A) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Function<A, R>> {
        self.strategy.inner().declare("ClusterCoordinator::function", |program| program.function(name, run))
    }

    /// Schedules a function with an argument, and returns its result to come. The argument is a
    /// value, a [`RemoteValue`], for which the closure waits, a [`PerWorker`](super::PerWorker), or
    /// [several](Argument::and). Waits only if as many closures wait for workers as the strategy
    /// allows.
    ///
    /// The first call meets the other processes.
    ///
    /// # Errors
    /// * [`Error::Closures`] if closures have failed that no call has returned, unless the order is
    ///   [`Scheduled`](super::Order::Scheduled) or errors let others
    ///   [continue](super::OnError::Continue). Then nothing is scheduled.
    /// * [`Error::WrongContext`] in a worker or a server.
    /// * [`Error::InvalidCall`] for a function or a result of another strategy, and for an argument
    ///   that cannot be sent.
    /// * [`Error::Timeout`] if there is no room for long; [`Error::Meeting`] if processes do not
    ///   meet or differ; [`Error::Aborted`] if a server was lost.
    pub fn schedule<A: Nest, R: Nest>(
        &self,
        function: &Function<A, R>,
        argument: impl Into<Argument<A>>,
    ) -> Result<RemoteValue<R>> {
        let call = "ClusterCoordinator::schedule";
        let chief = self.strategy.inner().chief(call)?;
        chief.program.check(call, function)?;
        let parts = argument.into().parts(call, &chief)?;
        let limits = chief.limits();
        let fail = |failures| Err(Error::Closures { call, failures });
        let has_room = |state: &mut State| match state.schedule.fail_early() {
            Err(failures) => Some(fail(failures)),
            Ok(()) => (state.schedule.waiting() < limits.queue).then_some(Ok(())),
        };
        chief.wait(call, limits.timeout, Awaits::Each, has_room)??;
        let slot = chief.change(|state| state.schedule.schedule((function.number, function.name.clone()), parts))?;
        Ok(RemoteValue { slot, chief, types: PhantomData })
    }

    /// Waits until all closures have ended.
    ///
    /// # Errors
    /// [`Error::Closures`] with all failures that no call has returned; the first one has
    /// cancelled the closures that had not begun, unless errors let others
    /// [continue](super::OnError::Continue). [`Error::Timeout`] with what each worker runs. As
    /// [`schedule`](Self::schedule) otherwise.
    pub fn join(&self, timeout: Duration) -> Result<Joined> {
        let call = "ClusterCoordinator::join";
        let chief = self.strategy.inner().chief(call)?;
        chief.wait_for_all(call, timeout)?;
        let (failures, lost) =
            chief.change(|state| ((state.schedule.take_failures(), state.take_losses()), Next::Nothing))?;
        failures.map(|()| Joined { lost }).map_err(|failures| Error::Closures { call, failures })
    }

    /// Returns whether all closures have ended, without waiting.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule).
    pub fn done(&self) -> Result<bool> {
        let call = "ClusterCoordinator::done";
        let chief = self.strategy.inner().chief(call)?;
        let done = |state: &mut State| -> (std::result::Result<bool, Vec<ClosureFailure>>, Next) {
            (state.schedule.fail_early().map(|()| state.schedule.is_idle()), Next::Nothing)
        };
        chief.change(done)?.map_err(|failures| Error::Closures { call, failures })
    }
}
