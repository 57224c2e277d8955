//! Strategies: where replicas run and where values live.

mod cross;
mod kinds;
mod run;

pub use cross::Destinations;
pub use kinds::{
    CentralStorageStrategy, MirroredStrategy, MultiWorkerBuilder, MultiWorkerMirroredStrategy, OneDeviceStrategy,
};

use crate::{Mirrored, PerReplica, Result, Strategy, Tensor, execution::context};

impl Strategy {
    /// Calls `value_fn` once for each replica of this process and returns the results.
    ///
    /// # Errors
    /// [`Error::WrongContext`](crate::Error::WrongContext) in a replica, or in another strategy's
    /// scope.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let array = [3.0, 2.0, 1.0];
    /// let values = strategy.distribute_values_from_function(|context| array[context.replica_id_in_sync_group])?;
    /// assert_eq!(strategy.local_results(&values), [3.0, 2.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_values_from_function<T>(&self, value_fn: impl FnMut(ValueContext) -> T) -> Result<PerReplica<T>> {
        context::require_cross_replica("Strategy::distribute_values_from_function", self)?;
        let num_replicas_in_sync = self.num_replicas_in_sync();
        let contexts = self
            .local_replicas()
            .map(|replica_id_in_sync_group| ValueContext { replica_id_in_sync_group, num_replicas_in_sync });
        Ok(PerReplica::new(contexts.map(value_fn).collect()))
    }

    /// Returns the values of this process's replicas in replica order. A single tensor gives
    /// itself.
    pub fn local_results<V: LocalResults>(&self, value: &V) -> Vec<V::Value> {
        value.local_results()
    }

    /// Wraps `value` as one value that is the same on all devices.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// assert_eq!(strategy.local_results(&strategy.mirror("x")), ["x", "x"]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn mirror<T>(&self, value: T) -> Mirrored<T> {
        Mirrored::new(value, self.worker_devices().to_vec())
    }
}

/// The argument of the function that makes a replica's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueContext {
    /// The replica id, from 0, over all processes.
    pub replica_id_in_sync_group: usize,
    /// The number of replicas, over all processes.
    pub num_replicas_in_sync: usize,
}

/// A value that [`Strategy::local_results`] accepts.
pub trait LocalResults {
    /// One replica's value.
    type Value;

    /// Returns the values of this process's replicas.
    fn local_results(&self) -> Vec<Self::Value>;
}

impl<T: Clone> LocalResults for PerReplica<T> {
    type Value = T;

    fn local_results(&self) -> Vec<T> {
        self.values().to_vec()
    }
}

/// The value on each of its devices.
impl<T: Clone> LocalResults for Mirrored<T> {
    type Value = T;

    fn local_results(&self) -> Vec<T> {
        vec![self.value().clone(); self.devices().len()]
    }
}

/// The tensor itself.
impl LocalResults for Tensor {
    type Value = Tensor;

    fn local_results(&self) -> Vec<Tensor> {
        vec![self.clone()]
    }
}
