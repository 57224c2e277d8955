//! Values of each worker, which it makes and keeps.

use super::{ClusterCoordinator, argument::Argument, context::WorkerContext, worker_state::Named};
use crate::Result;
use std::{any::type_name, fmt, sync::Arc};

/// A value that each worker makes for itself and keeps from closure to closure: TensorFlow's
/// per-worker resource. A clone is the same.
///
/// For a value that the chief has, see [`PerWorker`](super::PerWorker).
pub struct PerWorkerValues<V> {
    declared: Named,
    workers: usize,
    make: Arc<Make<V>>,
}

type Make<V> = dyn Fn(usize) -> Result<V> + Send + Sync;

impl ClusterCoordinator {
    /// Declares a value of each worker, by a name that no other one of the strategy has. A worker
    /// makes its own, from its number, when a closure first asks for it, and keeps it. A process in
    /// the place of a lost worker makes it anew. It does not travel, so it can be of any type.
    ///
    /// Changes of it, by a lock or an atomic, are no effects: they do not commit with closures, and
    /// are lost with the worker.
    ///
    /// ```
    /// use consonance::{ClusterCoordinator, ParameterServerStrategy};
    /// use std::{collections::HashMap, time::Duration};
    /// let coordinator = ClusterCoordinator::new(&ParameterServerStrategy::threads(2, 1)?);
    /// let places = coordinator.create_per_worker_values("places", |_| Ok(HashMap::from([(4711u64, 0u64), (7, 1)])))?;
    /// let place = coordinator.function("place", move |worker, id| Ok(worker.value(&places)?.get(&id).copied()))?;
    /// let [known, unknown] = [coordinator.schedule(&place, 7)?, coordinator.schedule(&place, 8)?];
    /// let limit = Duration::from_secs(60);
    /// assert_eq!((known.fetch(limit)?, unknown.fetch(limit)?), (Some(1), None));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) for a name that is taken;
    /// [`Error::WrongContext`](crate::Error::WrongContext) after the first closure was scheduled.
    pub fn create_per_worker_values<V: Send + Sync + 'static>(
        &self,
        name: &str,
        make: impl Fn(usize) -> Result<V> + Send + Sync + 'static,
    ) -> Result<PerWorkerValues<V>> {
        let call = "ClusterCoordinator::create_per_worker_values";
        let of = type_name::<V>();
        let declared = self
            .strategy
            .inner()
            .declare(call, |program| Named::add(&mut program.known.worker_values, call, name, of))?;
        Ok(PerWorkerValues { declared, workers: self.strategy.num_workers(), make: Arc::new(make) })
    }
}

impl WorkerContext<'_> {
    /// Returns the value of this worker, which is made in the first call.
    ///
    /// In [`Order::Scheduled`](super::Order::Scheduled) any worker may run a closure, unless it has
    /// an argument with a value for each worker. If the values differ in what a closure uses, give
    /// it [these](PerWorkerValues) as an argument: `coordinator.schedule(&step, &values)`.
    ///
    /// # Errors
    /// That of the function that makes it, which the next call calls again.
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) for values of another strategy.
    pub fn value<V: Send + Sync + 'static>(&self, values: &PerWorkerValues<V>) -> Result<Arc<V>> {
        let number = values.declared.number_in(&self.known.worker_values, "WorkerContext::value", "values")?;
        let mut kept = self.own.kept.values[number].borrow_mut();
        let value = match &*kept {
            Some(value) => value.clone(),
            None => kept.insert(Arc::new((values.make)(self.worker)?)).clone(),
        };
        Ok(value.downcast().expect("its number has one type"))
    }
}

/// Makes an argument whose value is `()`, and is a value for each worker all the same.
impl<V> From<&PerWorkerValues<V>> for Argument<()> {
    fn from(values: &PerWorkerValues<V>) -> Argument<()> {
        Argument::of_each_worker(values.workers)
    }
}

impl<V> Clone for PerWorkerValues<V> {
    fn clone(&self) -> PerWorkerValues<V> {
        PerWorkerValues { declared: self.declared.clone(), workers: self.workers, make: self.make.clone() }
    }
}

impl<V> fmt::Debug for PerWorkerValues<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerWorkerValues").field("declared", &self.declared).finish_non_exhaustive()
    }
}
