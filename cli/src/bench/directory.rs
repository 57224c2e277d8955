//! The directory for the bench's files.

use super::BenchError;
use crate::launcher::signals::not_ignored;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::{Handle, Signals},
    low_level::emulate_default_handler,
};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
    thread::{self, JoinHandle},
};

/// Number of names to try for a bench's directory. A name is taken if a bench with the same process
/// id was killed and left its directory, which is rare.
const NAMES: usize = 16;

/// A directory for sockets and programs. It is removed when this is dropped, and when a signal ends
/// this process.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    signals: Handle,
    /// The thread that receives signals.
    listener: Option<JoinHandle<()>>,
}

impl Directory {
    pub(super) fn new() -> Result<Directory, BenchError> {
        let mut signals = Signals::new(not_ignored(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM])?)?;
        let path = create()?;
        let mut directory = Directory { path: path.clone(), signals: signals.handle(), listener: None };
        directory.listener = Some(thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                remove(&path);
                // Ends this process with the default action of the signal.
                let _ = emulate_default_handler(signal);
            }
        })?);
        Ok(directory)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.signals.close();
        // If a signal has come, this waits until the signal ends the process. So a bench that fails
        // because the signal removed its directory is ended by the signal, and not by its error.
        let _ = self.listener.take().map(JoinHandle::join);
        remove(&self.path);
    }
}

/// Creates a new directory for temporary files.
fn create() -> Result<PathBuf, BenchError> {
    let name = |index| match index {
        0 => format!("consonance-bench-{}", process::id()),
        _ => format!("consonance-bench-{}-{index}", process::id()),
    };
    let mut index = 0;
    loop {
        let path = env::temp_dir().join(name(index));
        index += 1;
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && index < NAMES => {}
            Err(error) => return Err(BenchError::Failed(format!("cannot make {}: {error}", path.display()))),
        }
    }
}

fn remove(directory: &Path) {
    // Tries again if a file was made in the directory meanwhile. If this fails, the system removes
    // the rest with its temporary files.
    let gone = |_| fs::remove_dir_all(directory).is_ok() || !directory.exists();
    let _ = (0..100).any(gone);
}
