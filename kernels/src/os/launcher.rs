//! What a process tells the launcher that started it.

use rustix::{
    fs::{Mode, OFlags, open},
    io::write,
};
use std::{
    env, process,
    sync::{Mutex, PoisonError},
};

/// The variable with the path of a launcher's pipe, into which a process writes its own id and the
/// id of the process that its error names, as a line.
pub const CULPRITS: &str = "CONSONANCE_CULPRITS";

/// Tells the launcher, if there is one, that an error of this process names `culprit`. Never waits.
pub fn tell_culprit(culprit: u32) {
    static LAST: Mutex<Option<u32>> = Mutex::new(None);
    let own = process::id();
    let Some(path) = env::var_os(CULPRITS).filter(|_| culprit != own) else { return };
    // A program may go on after an error, and see the same one many times.
    if LAST.lock().unwrap_or_else(PoisonError::into_inner).replace(culprit) == Some(culprit) {
        return;
    }
    // If the launcher is gone or its pipe is full, nobody needs the line.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if let Ok(pipe) = open(path, flags, Mode::empty()) {
        let _ = write(&pipe, format!("{own} {culprit}\n").as_bytes());
    }
}
