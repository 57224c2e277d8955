//! The directory for the bench's files.

use super::BenchError;
use crate::launcher::signals::not_ignored;
use consonance_kernels::os::process_state::{ProcessState, process_state};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::{Handle, Signals},
    low_level::emulate_default_handler,
};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Number of names to try for a bench's directory. A name is taken if a bench with the same process
/// id was killed and left its directory, which is rare.
const NAMES: usize = 16;

/// The beginning of the name of a bench's directory. Its process id follows.
const PREFIX: &str = "consonance-bench-";

/// The age from which a directory of a process that seems to have ended is removed.
const OLD: Duration = Duration::from_secs(60 * 60);

/// The directories that [`remove_all`] removes.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the directories of this process, which is about to end without a drop.
pub(crate) fn remove_all() {
    open().drain(..).for_each(|path| remove(&path));
}

fn open() -> MutexGuard<'static, Vec<PathBuf>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory for sockets and programs. It is removed when this is dropped, and when a signal or
/// [`remove_all`] ends this process. What a process leaves that was killed, a later one removes.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    signals: Handle,
    /// The thread that receives signals.
    listener: Option<JoinHandle<()>>,
}

impl Directory {
    /// Makes the directory. If a signal ends this process, calls `last` before.
    pub(super) fn new(last: impl FnOnce() + Send + 'static) -> Result<Directory, BenchError> {
        let mut signals = Signals::new(not_ignored(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM])?)?;
        remove_stale();
        let path = create()?;
        open().push(path.clone());
        let mut last = Some(last);
        let mut directory = Directory { path: path.clone(), signals: signals.handle(), listener: None };
        directory.listener = Some(thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                remove(&path);
                last.take().into_iter().for_each(|last| last());
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
        open().retain(|path| *path != self.path);
    }
}

/// Removes the directories of processes that have ended. Those of other users stay.
fn remove_stale() {
    let entries = fs::read_dir(env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok());
        let is_old = || entry.metadata().ok().and_then(|of| of.modified().ok()?.elapsed().ok()) > Some(OLD);
        // A process of another PID namespace that shares the folder looks as if it had ended.
        if pid.is_some_and(|pid| process_state(pid) == ProcessState::Gone) && is_old() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Creates a new directory for temporary files.
fn create() -> Result<PathBuf, BenchError> {
    let name = |index| match index {
        0 => format!("{PREFIX}{}", process::id()),
        _ => format!("{PREFIX}{}-{index}", process::id()),
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
