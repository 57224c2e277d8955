//! How replicas are numbered, and the values a strategy makes for them.

use std::ops::Range;

/// The replicas of `worker`: workers have consecutive ids in worker order, and may have different
/// numbers of replicas.
///
/// # Panics
/// If there is no such worker.
pub fn replica_ids(replicas_per_worker: &[usize], worker: usize) -> Range<usize> {
    let first = replicas_per_worker[..worker].iter().sum();
    first..first + replicas_per_worker[worker]
}

/// What the function that makes a replica's value is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueContext {
    /// The replica, counted over all workers.
    pub replica_id_in_sync_group: usize,
    /// The replicas of all workers.
    pub num_replicas_in_sync: usize,
}

/// The values that `worker` makes: `value_fn` is called once for each of its replicas, in order.
///
/// # Panics
/// If there is no such worker.
pub fn values_from_function<T>(
    replicas_per_worker: &[usize],
    worker: usize,
    value_fn: impl FnMut(ValueContext) -> T,
) -> Vec<T> {
    let num_replicas_in_sync = replicas_per_worker.iter().sum();
    replica_ids(replicas_per_worker, worker)
        .map(|replica_id_in_sync_group| ValueContext { replica_id_in_sync_group, num_replicas_in_sync })
        .map(value_fn)
        .collect()
}
