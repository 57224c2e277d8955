//! How data sets are distributed: options, and what a function that makes one knows.

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
    /// Everything by default.
    pub fn new() -> InputOptions {
        InputOptions { auto_shard_policy: AutoShardPolicy::Auto, deal: None, prefetch: 2 }
    }

    /// How the data are divided among processes, and with it, as in TensorFlow, how a batch is
    /// divided among replicas. By default [`AutoShardPolicy::Auto`].
    pub fn auto_shard_policy(mut self, policy: AutoShardPolicy) -> InputOptions {
        self.auto_shard_policy = policy;
        self
    }

    /// How a batch is divided among replicas, whatever the shard policy says.
    pub fn deal(mut self, deal: Deal) -> InputOptions {
        self.deal = Some(deal);
        self
    }

    /// How many batches are read ahead, by a thread of their own; more than 4096 count as so many.
    /// By default 2. With 0 there is no thread, and a batch is read when it is asked for.
    pub fn prefetch(mut self, batches: usize) -> InputOptions {
        self.prefetch = batches;
        self
    }
}

impl InputOptions {
    pub(crate) fn shard_policy(&self) -> AutoShardPolicy {
        self.auto_shard_policy
    }

    /// How batches are divided, where the policy says `by_policy`.
    pub(crate) fn deal_or(&self, by_policy: Deal) -> Deal {
        self.deal.unwrap_or(by_policy)
    }
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions::new()
    }
}

/// How the data are divided among workers, and with it, as in TensorFlow, the [`Deal`].
///
/// Under all policies but `Off` the workers have the same data set, in the same order, and each
/// takes the parts of its replicas: what a replica gets is what it would get in one process.
/// (TensorFlow gives a worker every so many-th file, or part, instead.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoShardPolicy {
    /// As `File` if the data set reads files, else as `Data`.
    #[default]
    Auto,
    /// [`Deal::Packed`], of a data set that reads files.
    File,
    /// [`Deal::Chunked`].
    Data,
    /// Not at all: [`Deal::Packed`]. Each worker has a data set of its own, all of which goes to
    /// its replicas: the parts of a batch, which is still one for all replicas, one after the
    /// other.
    Off,
}

/// How a batch is divided among replicas. All ways give each element to one replica, in order; a
/// replica for which none is left gets tensors without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// The elements of all batches are batched anew, as many as a full batch has at a time, in even
    /// blocks: batches that are not full are filled from the next, and the last one fills the first
    /// replicas' blocks. 8 elements by 4 for 3 replicas are 2, 1 and 1 twice; 6 by 8 for 2 are 4
    /// and 2. Where the size of a full batch is not known it is as `Chunked`.
    Packed,
    /// Each batch in chunks of its elements by the replicas, rounded up: 2, 2 and none; 3 and 3.
    Chunked,
    /// Each batch in even blocks: 2, 1 and 1; 3 and 3.
    Balanced,
}

/// What a function that makes a data set knows of the replicas that it is for.
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
    /// How many times the function is called in all: once for each process.
    pub num_input_pipelines: usize,
    /// Which of these calls this is, from 0.
    pub input_pipeline_id: usize,
    /// The number of replicas of all processes.
    pub num_replicas_in_sync: usize,
}

impl InputContext {
    /// The context of one of `num_input_pipelines` calls for so many replicas.
    pub fn new(num_input_pipelines: usize, input_pipeline_id: usize, num_replicas_in_sync: usize) -> InputContext {
        InputContext { num_input_pipelines, input_pipeline_id, num_replicas_in_sync }
    }

    /// The rows of each replica's batch if all replicas' have `global_batch_size` together.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if they cannot all have equally many.
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

/// As TensorFlow prints it.
impl fmt::Display for InputContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InputContext { num_input_pipelines, input_pipeline_id, .. } = self;
        write!(f, "tf.distribute.InputContext(input pipeline id {input_pipeline_id}, total: {num_input_pipelines})")
    }
}
