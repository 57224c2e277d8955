//! The reason why CUDA cannot be used on this machine.

use crate::cuda::result::DriverError;
use std::{error, fmt, path::PathBuf};

/// The reason why CUDA cannot be used on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The driver's library cannot be loaded.
    Library {
        /// The names that were tried.
        tried: Vec<PathBuf>,
        /// The loader's words about the last of them.
        why: String,
    },
    /// The library lacks a function: it is no driver, or too old a one.
    Symbol {
        /// The library.
        library: PathBuf,
        /// The function.
        name: &'static str,
    },
    /// The driver does not start.
    Initialization {
        /// The library.
        library: PathBuf,
        /// The driver's error.
        error: DriverError,
    },
    /// There is no such device.
    Device {
        /// The number of the device that was asked for.
        ordinal: usize,
        /// The number of devices that there are.
        count: usize,
    },
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::Library { tried, why } => {
                let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
                write!(
                    f,
                    "there is no CUDA driver: {} cannot be loaded ({why}); install NVIDIA's driver (Debian: \
                     nvidia-driver), or start the container with its devices",
                    tried.join(" or ")
                )
            }
            Absent::Symbol { library, name } => write!(
                f,
                "{} has no function {name}: it is no CUDA driver, or older than CUDA 12.0; install NVIDIA's driver 525 \
                 or newer",
                library.display()
            ),
            Absent::Initialization { library, error } => write!(
                f,
                "the CUDA driver {} does not start: {error}; nvidia-smi tells whether the driver sees a device, and the \
                 driver's library must be as new as its kernel module",
                library.display()
            ),
            Absent::Device { ordinal, count: 0 } => write!(
                f,
                "there is no CUDA device {ordinal}: the driver sees none; see nvidia-smi and CUDA_VISIBLE_DEVICES"
            ),
            Absent::Device { ordinal, count } => write!(
                f,
                "there is no CUDA device {ordinal}: the driver sees {count}, numbered from 0; see CUDA_VISIBLE_DEVICES"
            ),
        }
    }
}

impl error::Error for Absent {}
