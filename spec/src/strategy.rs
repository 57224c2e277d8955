//! The numbering of replicas, and the values that a strategy makes for them.

use std::ops::Range;

/// Returns the replica ids of `worker`. Ids are consecutive in worker order. Workers may have
/// different numbers of replicas.
///
/// # Panics
/// If there is no such worker.
pub fn replica_ids(replicas_per_worker: &[usize], worker: usize) -> Range<usize> {
    let first = replicas_per_worker[..worker].iter().sum();
    first..first + replicas_per_worker[worker]
}

/// The argument of the function that makes a replica's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueContext {
    /// The replica id, counted over all workers.
    pub replica_id_in_sync_group: usize,
    /// The number of replicas of all workers.
    pub num_replicas_in_sync: usize,
}

/// Returns the values that `worker` makes. `value_fn` is called once for each of its replicas, in
/// order.
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
