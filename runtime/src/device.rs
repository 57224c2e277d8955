//! Devices by name.

use crate::{Error, Result};
use std::{fmt, str::FromStr, sync::OnceLock, thread};

/// A device on which a replica computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Device {
    /// A logical CPU device: a thread. There may be more CPU devices than cores.
    Cpu(usize),
}

/// The limit on CPU devices. A larger index is taken for a mistake.
const MAX_CPUS: usize = 1024;

impl Device {
    /// Returns whether the device exists.
    pub(crate) fn exists(self) -> bool {
        match self {
            Device::Cpu(index) => index < MAX_CPUS,
        }
    }

    /// Returns one CPU device for each core that this process may use.
    ///
    /// ```
    /// use consonance::Device;
    /// assert_eq!(Device::all()[0], Device::Cpu(0));
    /// ```
    pub fn all() -> Vec<Device> {
        (0..cores()).map(Device::Cpu).collect()
    }
}

/// Converts a device argument of `call`, a value or a name.
pub(crate) fn resolve<D>(call: &'static str, device: D) -> Result<Device>
where
    D: TryInto<Device>,
    Error: From<D::Error>,
{
    let device = device.try_into().map_err(|error| match Error::from(error) {
        Error::InvalidCall { found, .. } => unknown(call, &found),
        error => error,
    })?;
    if device.exists() { Ok(device) } else { Err(unknown(call, &device.to_string())) }
}

fn unknown(call: &'static str, found: &str) -> Error {
    let hint = if found.to_lowercase().contains("cpu") { "" } else { " (this version has no GPUs)" };
    Error::invalid(call, "device", format!("cpu:0 to cpu:{}{hint}", MAX_CPUS - 1), found)
}

/// Returns the number of cores that this process may use. The number of the first call is kept,
/// because the system reads three files for it.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Parses an index without sign or leading zeros, so that each device has only one name.
pub(crate) fn index_of(text: &str) -> Option<usize> {
    text.parse().ok().filter(|index: &usize| index.to_string() == text)
}

/// Parses `cpu:1`, in any letter case, with or without a leading slash, or TensorFlow's full name
/// (`/job:localhost/replica:0/task:0/device:CPU:1`).
///
/// ```
/// use consonance::Device;
/// assert_eq!("CPU:1".parse::<Device>()?, Device::Cpu(1));
/// assert_eq!("/job:localhost/replica:0/task:0/device:CPU:1".parse::<Device>()?, Device::Cpu(1));
/// assert!("gpu:0".parse::<Device>().unwrap_err().to_string().contains("cpu:0"));
/// # Ok::<(), consonance::Error>(())
/// ```
impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let lower = text.to_ascii_lowercase();
        let name = lower.rsplit('/').next().unwrap_or(&lower);
        let name = name.strip_prefix("device:").unwrap_or(name);
        let index = name.strip_prefix("cpu:").and_then(index_of);
        let device = index.map(Device::Cpu).filter(|device| device.exists());
        device.ok_or_else(|| unknown("Device::from_str", &format!("{text:?}")))
    }
}

impl TryFrom<&str> for Device {
    type Error = Error;

    fn try_from(text: &str) -> Result<Device> {
        text.parse()
    }
}

impl TryFrom<String> for Device {
    type Error = Error;

    fn try_from(text: String) -> Result<Device> {
        text.parse()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu(index) => write!(f, "cpu:{index}"),
        }
    }
}
