//! Options of collectives. No option changes the bits of a result.

use crate::{Error, Result};
use consonance_kernels::tuning;
use std::time::Duration;

/// Options of a strategy's collectives, or of one call. A call's options override the strategy's
/// field by field.
///
/// ```
/// use consonance::{CommunicationOptions, MirroredStrategy};
/// use std::time::Duration;
/// let options = CommunicationOptions::new().bytes_per_pack(1 << 20).timeout(Duration::from_secs(30))?;
/// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).options(options).build()?;
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicationOptions {
    bytes_per_pack: Option<usize>,
    timeout: Option<Duration>,
    implementation: Option<Implementation>,
    background_threads: Option<bool>,
    verify: Option<bool>,
}

/// The configuration of an engine. It does not change the bits of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The limit on the total time for which a call waits for peers.
    pub timeout: Duration,
    /// The algorithm of all-reduces.
    pub implementation: Implementation,
}

/// The algorithm of an all-reduce. The result has the same bits with each.
///
/// ```
/// use consonance::{Communicator, Implementation, ReduceOp};
/// let mut alone = Communicator::threads(1).remove(0);
/// alone.set_implementation(Implementation::OneShot);
/// let mut data = [1.5f32];
/// alone.all_reduce(ReduceOp::Sum, &mut data)?;
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// Chosen by size (measured: PERF.md).
    #[default]
    Auto,
    /// Every rank reads all data and reduces all blocks itself.
    OneShot,
    /// Every rank reduces one block and writes the result to all ranks.
    TwoShot,
}

/// The default timeout of a call: finite, but much longer than a step of a training loop.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The default limit on a pack, in bytes: to copy a tensor of fewer bytes costs less than another
/// step.
const DEFAULT_BYTES_PER_PACK: usize = 64 << 10;

impl CommunicationOptions {
    /// Makes options without any field set: the strategy's options or the defaults apply.
    pub fn new() -> CommunicationOptions {
        CommunicationOptions::default()
    }

    /// Sets the limit on a pack in bytes. Small tensors of a nest with the same dtype are fused
    /// into packs of at most this size. A larger tensor is reduced alone, without a copy. 0 fuses
    /// all tensors of a dtype. The default is 64 KiB.
    pub fn bytes_per_pack(mut self, bytes: usize) -> Self {
        self.bytes_per_pack = Some(bytes);
        self
    }

    /// Sets how long one call of a replica waits for the others before it fails and names the
    /// missing replicas. The limit applies to all waits of the call together; time spent copying or
    /// computing does not count. The default is 5 minutes. There is no infinite timeout.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a timeout of zero, or of more than a day.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self> {
        self.timeout = Some(check_timeout("CommunicationOptions::timeout", timeout)?);
        Ok(self)
    }

    /// Sets the algorithm of all-reduces. The default chooses by size (measured: PERF.md).
    pub fn implementation(mut self, implementation: Implementation) -> Self {
        self.implementation = Some(implementation);
        self
    }

    /// Sets whether separate threads run the all-reduces of an
    /// [overlap](crate::ReplicaContext::overlap). Without such threads each replica runs them
    /// itself when it waits. By default there are threads if this process may use more cores than
    /// there are replicas, and replicas are not pinned to cores. Set it to true if replicas spend
    /// their time waiting for a device instead of computing.
    pub fn background_threads(mut self, background_threads: bool) -> Self {
        self.background_threads = Some(background_threads);
        self
    }

    /// Sets whether mistakes are looked for that are no errors otherwise. The default is not to, as
    /// each check costs a small collective. All replicas set the same.
    ///
    /// * A replica that contributes a NaN to
    ///   [`all_reduce`](crate::ReplicaContext::all_reduce),
    ///   [`reduce_scatter`](crate::ReplicaContext::reduce_scatter), a call of their names on
    ///   slices, or a bucket of an [overlap](crate::ReplicaContext::overlap) is named in an
    ///   [`Error::InvalidCall`] on all replicas, whether or not their result has a NaN.
    /// * Several workers that assign different values to a variable outside of replicas, or add
    ///   different ones, get an [`Error::Mismatch`], and the variable does not change. The
    ///   assignment is then a call that all workers make. Only the strategy's options count. What a
    ///   function of [`update`](crate::Strategy::update) writes is not compared.
    ///
    /// ```
    /// use consonance::{CommunicationOptions, MirroredStrategy};
    /// let options = CommunicationOptions::new().verify(true);
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).options(options).build()?;
    /// let error = strategy.run(|replica| {
    ///     let loss = if replica.replica_id_in_sync_group() == 1 { f32::NAN } else { 0.5 };
    ///     replica.all_reduce("mean", (1.0f32, loss))
    /// });
    /// assert_eq!(
    ///     error.unwrap_err().to_string(),
    ///     "ReplicaContext::all_reduce: value/1 of replica 1: expected no NaN (see CommunicationOptions::verify), found NaN"
    /// );
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = Some(verify);
        self
    }

    /// Returns these options, with unset fields taken from `base`.
    pub(crate) fn over(self, base: CommunicationOptions) -> CommunicationOptions {
        CommunicationOptions {
            bytes_per_pack: self.bytes_per_pack.or(base.bytes_per_pack),
            timeout: self.timeout.or(base.timeout),
            implementation: self.implementation.or(base.implementation),
            background_threads: self.background_threads.or(base.background_threads),
            verify: self.verify.or(base.verify),
        }
    }

    pub(crate) fn pack_limit(&self) -> usize {
        self.bytes_per_pack.unwrap_or(DEFAULT_BYTES_PER_PACK)
    }

    pub(crate) fn verifies(&self) -> bool {
        self.verify.unwrap_or(false)
    }

    pub(crate) fn has_background_threads(&self) -> Option<bool> {
        self.background_threads
    }

    pub(crate) fn configuration(&self) -> Configuration {
        Configuration {
            timeout: self.timeout.unwrap_or(DEFAULT_TIMEOUT),
            implementation: self.implementation.unwrap_or_default(),
        }
    }
}

/// The longest timeout. A longer one is taken for a mistake: it would be as good as infinite.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the timeout if it is valid.
pub(crate) fn check_timeout(call: &'static str, timeout: Duration) -> Result<Duration> {
    if !timeout.is_zero() && timeout <= MAX_TIMEOUT {
        return Ok(timeout);
    }
    Err(Error::invalid(call, "timeout", format!("more than zero and at most {MAX_TIMEOUT:?}"), format!("{timeout:?}")))
}

/// Sets this process's thresholds by the machine, or by the file that the environment variable
/// `CONSONANCE_TUNING` names, before its first group.
///
/// # Errors
/// If the file is malformed or cannot be read.
pub(crate) fn settle(call: &'static str) -> Result<()> {
    tuning::settle().map_err(|error| Error::invalid(call, error.place(), error.expected, error.found))
}
