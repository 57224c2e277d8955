//! The reason why work on a device failed.

use crate::cuda::result::DriverError;
use std::{error, fmt, time::Duration};

/// The reason why work on a device failed.
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

/// The reason why a module was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The failure.
    pub failure: Failure,
    /// The words of the compiler in the driver; empty if there are none.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Absent, sys::CUresult};

    #[test]
    fn errors_have_their_texts() {
        let error = |name: &str, text: &str| DriverError {
            function: "cuInit",
            code: CUresult(34),
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let driver = |name, text| Failure::Driver { device: 0, error: error(name, text) };
        for (failure, text) in [
            (driver("", ""), "cuda:0: cuInit failed with code 34"),
            (driver("CUDA_ERROR", ""), "cuda:0: cuInit failed with code 34 (CUDA_ERROR)"),
            (driver("CUDA_ERROR", "no device"), "cuda:0: cuInit failed with code 34 (CUDA_ERROR): no device"),
            (
                Failure::Timeout { device: 1, work: "a copy".to_owned(), time: Duration::from_secs(1) },
                "cuda:1: a copy did not end within 1s",
            ),
            (Failure::Refused { device: 0, why: "0 blocks".to_owned() }, "cuda:0: 0 blocks"),
        ] {
            assert_eq!(failure.to_string(), text);
        }
        let load = |log: &str| LoadError { failure: driver("", ""), log: log.to_owned() };
        assert_eq!(load("").to_string(), "cuda:0: cuInit failed with code 34");
        let said = "cuda:0: cuInit failed with code 34; the driver's compiler said:\nline 1";
        assert_eq!(load("line 1").to_string(), said);
        for (absent, text) in [
            (
                Absent::Library { tried: vec!["a".into(), "b".into()], why: "no file".to_owned() },
                "there is no CUDA driver: a or b cannot be loaded (no file); install NVIDIA's driver (Debian: \
                 nvidia-driver), or start the container with its devices",
            ),
            (
                Absent::Symbol { library: "libc.so.6".into(), name: "cuInit" },
                "libc.so.6 has no function cuInit: it is no CUDA driver, or older than CUDA 12.0; install NVIDIA's \
                 driver 525 or newer",
            ),
            (
                Absent::Initialization { library: "a".into(), error: error("", "") },
                "the CUDA driver a does not start: cuInit failed with code 34; nvidia-smi tells whether the driver \
                 sees a device, and the driver's library must be as new as its kernel module",
            ),
            (
                Absent::Device { ordinal: 1, count: 0 },
                "there is no CUDA device 1: the driver sees none; see nvidia-smi and CUDA_VISIBLE_DEVICES",
            ),
            (
                Absent::Device { ordinal: 2, count: 2 },
                "there is no CUDA device 2: the driver sees 2, numbered from 0; see CUDA_VISIBLE_DEVICES",
            ),
        ] {
            assert_eq!(absent.to_string(), text);
        }
    }
}
