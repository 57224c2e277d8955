//! Devices by name.

use crate::{Error, Result};
use consonance_kernels::{
    cuda::Gpu,
    memory::{Buf, Space},
};
use std::{
    fmt, io,
    str::FromStr,
    sync::{Arc, OnceLock},
    thread,
};

/// A device on which a replica computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Device {
    /// A logical CPU device: a thread. There may be more CPU devices than cores.
    Cpu(usize),
    /// A logical device of a GPU: NVIDIA's driver gives the GPU its number. Several replicas share
    /// a GPU, each as a logical device of its own: `cuda:0.0`, `cuda:0.1`.
    Cuda {
        /// The number of the GPU.
        gpu: usize,
        /// The number of the logical device on it.
        logical: usize,
    },
}

/// The limit on CPU devices, and on the logical devices of a GPU. A larger index is taken for a
/// mistake.
const MAX_CPUS: usize = 1024;

impl Device {
    /// Returns whether the device exists.
    pub(crate) fn exists(self) -> bool {
        match self {
            Device::Cpu(index) => index < MAX_CPUS,
            Device::Cuda { gpu, logical } => logical < MAX_CPUS && Gpu::count().is_ok_and(|count| gpu < count),
        }
    }

    /// Returns the number of the GPU that the device is of; `None` for a processor's.
    pub(crate) fn gpu(self) -> Option<usize> {
        match self {
            Device::Cpu(_) => None,
            Device::Cuda { gpu, .. } => Some(gpu),
        }
    }

    /// Returns the memory of the device.
    pub(crate) fn space(self) -> Space {
        match self {
            Device::Cpu(_) => Space::Host,
            Device::Cuda { gpu, .. } => Space::Cuda(gpu as u32),
        }
    }

    /// Returns the GPUs that the CUDA driver shows this process (`CUDA_VISIBLE_DEVICES` chooses
    /// them). Without a driver or a GPU, returns one CPU device for each core that this process may
    /// use.
    ///
    /// ```
    /// use consonance::Device;
    /// let all = Device::all();
    /// assert!([Device::Cpu(0), Device::Cuda { gpu: 0, logical: 0 }].contains(&all[0]));
    /// ```
    pub fn all() -> Vec<Device> {
        match Gpu::count() {
            Ok(gpus) if gpus > 0 => (0..gpus).map(|gpu| Device::Cuda { gpu, logical: 0 }).collect(),
            Ok(_) | Err(_) => (0..cores()).map(Device::Cpu).collect(),
        }
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
    // A processor that does not exist is not about GPUs.
    if found.to_lowercase().contains("cpu") {
        return Error::invalid(call, "device", format!("cpu:0 to cpu:{}", MAX_CPUS - 1), found);
    }
    let gpus = match Gpu::count() {
        Ok(0) => " (the CUDA driver sees no GPU)".to_owned(),
        Ok(1) => " or cuda:0".to_owned(),
        Ok(count) => format!(" or cuda:0 to cuda:{}", count - 1),
        Err(absent) => format!(" ({absent})"),
    };
    Error::invalid(call, "device", format!("cpu:0 to cpu:{}{gpus}", MAX_CPUS - 1), found)
}

/// Whether processors are among the devices, and GPUs.
pub(crate) fn are_mixed(devices: &[Device]) -> bool {
    let gpus = devices.iter().filter(|device| device.gpu().is_some()).count();
    gpus > 0 && gpus < devices.len()
}

/// Opens a GPU for `call`, once a process.
///
/// # Errors
/// [`Error::WrongContext`] in a child that was forked after the driver was loaded;
/// [`Error::System`] if the GPU cannot be opened.
pub(crate) fn open(call: &'static str, gpu: usize) -> Result<Arc<Gpu>> {
    Gpu::get(gpu).map_err(|source| match source.kind() {
        io::ErrorKind::Unsupported => Error::WrongContext { call, problem: source.to_string() },
        _ => Error::system(format!("open cuda:{gpu}"), source),
    })
}

/// Opens the GPU that has this memory, as [`open`] does.
///
/// # Errors
/// As [`open`].
///
/// # Panics
/// If the memory is the host's.
pub(crate) fn open_space(call: &'static str, space: Space) -> Result<Arc<Gpu>> {
    match space {
        Space::Host => unreachable!("{call}: no GPU has the host's memory"),
        Space::Cuda(gpu) => open(call, gpu as usize),
    }
}

/// Returns the address of a buffer in the memory of a GPU.
pub(crate) fn address(buf: &Buf<'_>) -> u64 {
    buf.start().addr().get() as u64
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

/// Parses `cpu:1`, `cuda:0`, `gpu:0` or `cuda:0.1`, in any letter case, with or without a leading
/// slash, or TensorFlow's full name (`/job:localhost/replica:0/task:0/device:CPU:1`). `cuda:0` is
/// `cuda:0.0`. A GPU must exist.
///
/// ```
/// use consonance::Device;
/// assert_eq!("CPU:1".parse::<Device>()?, Device::Cpu(1));
/// assert_eq!("/job:localhost/replica:0/task:0/device:CPU:1".parse::<Device>()?, Device::Cpu(1));
/// // Without a driver or a GPU the error says what is missing.
/// if let Ok(device) = "gpu:0".parse::<Device>() {
///     assert_eq!(device, Device::Cuda { gpu: 0, logical: 0 });
/// }
/// # Ok::<(), consonance::Error>(())
/// ```
impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let lower = text.to_ascii_lowercase();
        let name = lower.rsplit('/').next().unwrap_or(&lower);
        let name = name.strip_prefix("device:").unwrap_or(name);
        let cpu = || Some(Device::Cpu(name.strip_prefix("cpu:").and_then(index_of)?));
        let cuda = || {
            let index = name.strip_prefix("cuda:").or_else(|| name.strip_prefix("gpu:"))?;
            let (gpu, logical) = index.split_once('.').unwrap_or((index, "0"));
            Some(Device::Cuda { gpu: index_of(gpu)?, logical: index_of(logical)? })
        };
        let device = cpu().or_else(cuda).filter(|device| device.exists());
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
            Device::Cuda { gpu, logical } => write!(f, "cuda:{gpu}.{logical}"),
        }
    }
}
