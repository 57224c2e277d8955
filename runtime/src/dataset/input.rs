//! Options of distributed data sets, and the argument of a function that makes one.

use crate::{Error, Result};
use std::fmt;

/// Options of a distributed data set.
///
/// ```
/// use consonance::dataset::{AutoShardPolicy, Deal, InputOptions};
/// let options = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off).deal(Deal::Balanced).prefetch(4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputOptions {
    auto_shard_policy: AutoShardPolicy,
    deal: Option<Deal>,
    pub(super) prefetch: usize,
}

impl InputOptions {
    /// Returns the default options.
    pub fn new() -> InputOptions {
        InputOptions { auto_shard_policy: AutoShardPolicy::Auto, deal: None, prefetch: 2 }
    }

    /// Sets how data are divided among processes. As in TensorFlow it also determines how a batch
    /// is divided among replicas. By default [`AutoShardPolicy::Auto`].
    pub fn auto_shard_policy(mut self, policy: AutoShardPolicy) -> InputOptions {
        self.auto_shard_policy = policy;
        self
    }

    /// Sets how a batch is divided among replicas, overriding the shard policy.
    pub fn deal(mut self, deal: Deal) -> InputOptions {
        self.deal = Some(deal);
        self
    }

    /// Sets how many batches a separate thread reads ahead, at most 4096. By default 2. With 0
    /// there is no thread, and a batch is read when it is requested.
    pub fn prefetch(mut self, batches: usize) -> InputOptions {
        self.prefetch = batches;
        self
    }
}

impl InputOptions {
    pub(crate) fn shard_policy(&self) -> AutoShardPolicy {
        self.auto_shard_policy
    }

    /// Returns how batches are divided, `by_policy` if the option is not set.
    pub(crate) fn deal_or(&self, by_policy: Deal) -> Deal {
        self.deal.unwrap_or(by_policy)
    }
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions::new()
    }
}

/// The division of data among workers. As in TensorFlow it also determines the [`Deal`].
///
/// Under all policies but `Off` the workers have the same data set, in the same order, and each
/// takes the parts of its replicas. A replica gets the same elements as with all replicas in one
/// process. (TensorFlow gives worker `i` of `n` every `n`-th file or element instead.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoShardPolicy {
    /// `File` if the data set reads files, else `Data`.
    #[default]
    Auto,
    /// [`Deal::Packed`], for a data set that reads files.
    File,
    /// [`Deal::Chunked`].
    Data,
    /// Not divided among workers: [`Deal::Packed`]. Each worker has its own data set, whose
    /// elements all go to its replicas. Batches are still sized for all replicas: the worker gives
    /// the parts of a batch to its replicas one after the other.
    Off,
}

/// The division of a batch among replicas. Each element goes to one replica, in order. If no
/// elements are left for a replica, it gets tensors without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// Repacks the elements of all batches into full batches, divided into even blocks. A batch
    /// that is not full is filled from the next one; the last one fills the blocks of the first
    /// replicas. Eight elements in batches of 4 for 3 replicas give 2, 1 and 1 twice. Six elements
    /// in a batch of 8 for 2 replicas give 4 and 2. If the size of a full batch is not known, this
    /// is `Chunked`.
    Packed,
    /// Each batch in chunks of `elements / replicas`, rounded up. In the same examples: 2, 2 and 0;
    /// 3 and 3.
    Chunked,
    /// Each batch in even blocks. In the same examples: 2, 1 and 1; 3 and 3.
    Balanced,
}

/// The argument of a function that makes a data set: the replicas that it is for.
///
/// ```
/// use consonance::dataset::InputContext;
/// let context = InputContext::new(1, 0, 4);
/// assert_eq!(context.get_per_replica_batch_size(32)?, 8);
/// assert!(context.get_per_replica_batch_size(30).is_err());
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputContext {
    /// The number of calls of the function: one for each process.
    pub num_input_pipelines: usize,
    /// The index of this call, from 0.
    pub input_pipeline_id: usize,
    /// The number of replicas of all processes.
    pub num_replicas_in_sync: usize,
}

impl InputContext {
    /// Makes the context of one of `num_input_pipelines` calls, for `num_replicas_in_sync`
    /// replicas.
    pub fn new(num_input_pipelines: usize, input_pipeline_id: usize, num_replicas_in_sync: usize) -> InputContext {
        InputContext { num_input_pipelines, input_pipeline_id, num_replicas_in_sync }
    }

    /// Returns the number of rows of each replica's batch, if the batches of all replicas together
    /// have `global_batch_size` rows.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the rows cannot be divided evenly.
    pub fn get_per_replica_batch_size(&self, global_batch_size: usize) -> Result<usize> {
        let replicas = self.num_replicas_in_sync;
        if replicas > 0 && global_batch_size.is_multiple_of(replicas) {
            return Ok(global_batch_size / replicas);
        }
        let call = "InputContext::get_per_replica_batch_size";
        let expected = format!("a multiple of the {replicas} replicas");
        Err(Error::invalid(call, "global_batch_size", expected, global_batch_size.to_string()))
    }
}

/// Prints the words that TensorFlow prints.
impl fmt::Display for InputContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InputContext { num_input_pipelines, input_pipeline_id, .. } = self;
        write!(f, "InputContext(input pipeline id {input_pipeline_id}, total: {num_input_pipelines})")
    }
}
