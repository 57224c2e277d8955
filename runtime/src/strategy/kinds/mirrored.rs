//! Several replicas in one process, each with a copy of every variable.

use crate::{Device, Error, Result, Strategy, execution::Builder};
use std::ops::Deref;

/// Replicas in one process, one on each device, each with a copy of every variable.
///
/// CPU devices are logical: `cpu:0` to `cpu:7` are eight threads on any machine.
///
/// ```
/// use consonance::{CommunicationOptions, MirroredStrategy};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// assert_eq!(strategy.num_replicas_in_sync(), 2);
/// let pinned = MirroredStrategy::builder(["cpu:0", "cpu:1"]).pin_threads(true).build()?;
/// assert!(MirroredStrategy::new(["cpu:0", "cpu:0"]).is_err());
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct MirroredStrategy(Strategy);

impl MirroredStrategy {
    /// Makes a strategy with a replica on each device. Devices are given as [`Device`]s or by name.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for an empty list, a device that does not exist, or one that is
    /// listed twice.
    pub fn new<D>(devices: impl IntoIterator<Item = D>) -> Result<MirroredStrategy>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        Self::builder(devices).build()
    }

    /// Makes a strategy with a replica on each of [all devices](Device::all): on each GPU, or
    /// without one on each core.
    ///
    /// # Errors
    /// None on a machine with a core.
    pub fn on_all_devices() -> Result<MirroredStrategy> {
        Self::new(Device::all())
    }

    /// Starts a strategy with options.
    pub fn builder<D>(devices: impl IntoIterator<Item = D>) -> Builder<MirroredStrategy>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        Builder::new("MirroredStrategy", devices, MirroredStrategy)
    }
}

impl Deref for MirroredStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.0
    }
}
