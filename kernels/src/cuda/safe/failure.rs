//! Why work on a device failed.

use crate::cuda::result::DriverError;
use std::{error, fmt, time::Duration};

/// Why work on a device failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver returned an error.
    Driver {
        /// The device.
        device: usize,
        /// The error.
        error: DriverError,
    },
    /// The work did not end in time. It may still end later.
    Timeout {
        /// The device.
        device: usize,
        /// The last work on the stream.
        work: String,
        /// The time that it had.
        time: Duration,
    },
    /// The arguments were refused before the driver saw them.
    Refused {
        /// The device.
        device: usize,
        /// The argument, what was expected, and what was found.
        why: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Driver { device, error } => write!(f, "cuda:{device}: {error}"),
            Failure::Timeout { device, work, time } => {
                write!(f, "cuda:{device}: {work} did not end within {time:?}")
            }
            Failure::Refused { device, why } => write!(f, "cuda:{device}: {why}"),
        }
    }
}

impl error::Error for Failure {}

/// Why a module was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The failure.
    pub failure: Failure,
    /// What the compiler in the driver said; empty if it said nothing.
    pub log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.failure)?;
        if !self.log.is_empty() {
            write!(f, "; the driver's compiler said:\n{}", self.log)?;
        }
        Ok(())
    }
}

impl error::Error for LoadError {}
