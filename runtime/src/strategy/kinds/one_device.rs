//! One replica.

use crate::{Device, Error, Result, Strategy, execution::Builder};
use std::ops::Deref;

/// One replica on one device, to try a program that is written for several replicas. Every call
/// checks its arguments and returns the same types as with several replicas.
///
/// ```
/// use consonance::OneDeviceStrategy;
/// let strategy = OneDeviceStrategy::new("cpu:0")?;
/// assert_eq!(strategy.run(|replica| Ok(replica.num_replicas_in_sync()))?.values(), [1]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct OneDeviceStrategy(Strategy);

impl OneDeviceStrategy {
    /// Makes a strategy with one replica on this device, given as a [`Device`] or by name.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a device that does not exist.
    pub fn new<D>(device: D) -> Result<OneDeviceStrategy>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        Self::builder(device).build()
    }

    /// Starts a strategy with options.
    pub fn builder<D>(device: D) -> Builder<OneDeviceStrategy>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        Builder::new("OneDeviceStrategy", [device], OneDeviceStrategy).on_first_device()
    }
}

impl Deref for OneDeviceStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.0
    }
}
