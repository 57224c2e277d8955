//! How collectives are carried out: nothing here changes a result by a bit.

use crate::{Error, Result};
use std::time::Duration;

/// Options of a strategy's collectives, or of one call, where they override the strategy's field by
/// field.
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
    carriers: Option<bool>,
}

/// How calls are carried out. Results do not depend on it by a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// How long a rank waits for another.
    pub timeout: Duration,
    /// How an all-reduce is done.
    pub implementation: Implementation,
}

/// How an all-reduce is done. The result is the same, bit for bit.
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
    /// By size, as measured.
    #[default]
    Auto,
    /// Every rank reads all data and reduces all of it.
    OneShot,
    /// Every rank reduces its block of all data and writes it to all.
    TwoShot,
}

/// How long a replica waits for another where nothing else is said: long beside any step of a
/// training loop, and an end.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Tensors are fused up to this many bytes where nothing else is said: a copy of so little costs
/// less than a step.
const DEFAULT_BYTES_PER_PACK: usize = 64 << 10;

impl CommunicationOptions {
    /// Nothing said: everything as the strategy has it, or by default.
    pub fn new() -> CommunicationOptions {
        CommunicationOptions::default()
    }

    /// Small tensors of a nest are fused, by dtype, into packs of up to so many bytes; a larger
    /// tensor goes alone, without a copy. 0 fuses all tensors of a dtype. By default 64 KiB.
    pub fn bytes_per_pack(mut self, bytes: usize) -> Self {
        self.bytes_per_pack = Some(bytes);
        self
    }

    /// How long one call of a replica waits for the others before it fails and names who is
    /// missing. The bound is on all waits of the call together; the time in which it copies or
    /// computes does not count. By default 5 minutes; there is no infinite timeout.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a timeout of zero, or of more than a day.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self> {
        self.timeout = Some(check_timeout("CommunicationOptions::timeout", timeout)?);
        Ok(self)
    }

    /// How an all-reduce is done. By default as measured to be fastest for its size.
    pub fn implementation(mut self, implementation: Implementation) -> Self {
        self.implementation = Some(implementation);
        self
    }

    /// Whether threads of their own carry out what replicas
    /// [overlap](crate::ReplicaContext::overlap) with their computing; else each replica does it
    /// itself when it waits. By default they do where this process may use more cores than there
    /// are replicas, and these are not bound to cores. Say so where replicas wait for something
    /// else than a core, as a device.
    pub fn carriers(mut self, carriers: bool) -> Self {
        self.carriers = Some(carriers);
        self
    }

    /// These options where they say something, else `base`'s.
    pub(crate) fn over(self, base: CommunicationOptions) -> CommunicationOptions {
        CommunicationOptions {
            bytes_per_pack: self.bytes_per_pack.or(base.bytes_per_pack),
            timeout: self.timeout.or(base.timeout),
            implementation: self.implementation.or(base.implementation),
            carriers: self.carriers.or(base.carriers),
        }
    }

    pub(crate) fn pack_limit(&self) -> usize {
        self.bytes_per_pack.unwrap_or(DEFAULT_BYTES_PER_PACK)
    }

    pub(crate) fn has_carriers(&self) -> Option<bool> {
        self.carriers
    }

    pub(crate) fn configuration(&self) -> Configuration {
        Configuration {
            timeout: self.timeout.unwrap_or(DEFAULT_TIMEOUT),
            implementation: self.implementation.unwrap_or_default(),
        }
    }
}

/// The longest timeout: what waits longer than a day waits for ever.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The timeout, if it is one that ends.
pub(crate) fn check_timeout(call: &'static str, timeout: Duration) -> Result<Duration> {
    if !timeout.is_zero() && timeout <= MAX_TIMEOUT {
        return Ok(timeout);
    }
    Err(Error::invalid(call, "timeout", format!("more than zero and at most {MAX_TIMEOUT:?}"), format!("{timeout:?}")))
}
