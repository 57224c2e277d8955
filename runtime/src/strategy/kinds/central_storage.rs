//! Several replicas in one process, and one copy of every variable.

use crate::{Device, Error, Result, Strategy, execution::Builder};
use std::ops::Deref;

/// Replicas on several devices of one process, with one copy of every variable, on the parameter
/// device.
///
/// ```
/// use consonance::CentralStorageStrategy;
/// let strategy = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0")?;
/// assert_eq!(strategy.parameter_devices().len(), 1);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct CentralStorageStrategy(Strategy);

impl CentralStorageStrategy {
    /// Makes a strategy with a replica on each of `compute_devices` and the variables on
    /// `parameter_device`. Devices are given as [`Device`]s or by name.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for an empty list, a device that does not exist, or one that is
    /// listed twice.
    pub fn new<D>(compute_devices: impl IntoIterator<Item = D>, parameter_device: D) -> Result<CentralStorageStrategy>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        Self::builder(compute_devices, parameter_device).build()
    }

    /// Starts a strategy with options.
    pub fn builder<D>(
        compute_devices: impl IntoIterator<Item = D>,
        parameter_device: D,
    ) -> Builder<CentralStorageStrategy>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        Builder::new("CentralStorageStrategy", compute_devices, CentralStorageStrategy).central(parameter_device)
    }
}

impl Deref for CentralStorageStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.0
    }
}
