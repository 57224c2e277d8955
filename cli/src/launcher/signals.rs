//! The signals that the launcher gets.

use super::Event;
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    iterator::{Handle, Signals as Heard},
    low_level::signal_name,
};
use std::{fs, io, sync::mpsc::Sender, thread};

/// The signals that the launcher forwards to workers.
const FORWARDED: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The file of the system that says which signals this process ignores.
const STATUS: &str = "/proc/self/status";

/// A thread that sends the signals that the process gets as events, until this is dropped.
pub(super) struct Signals {
    handle: Handle,
}

impl Signals {
    /// Listens to `SIGCHLD` and to the forwarded signals. A signal that the parent of the launcher
    /// has set to be ignored (`nohup` does this) stays ignored, also by the workers, which inherit
    /// it.
    pub(super) fn listen(tell: Sender<Event>) -> io::Result<Signals> {
        let heard = not_ignored(&FORWARDED)?;
        let mut signals = Heard::new(heard.chain([SIGCHLD]))?;
        let handle = signals.handle();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            // If an event cannot be sent, the launcher has ended.
            signals.forever().map(Event::Signal).try_for_each(|event| tell.send(event)).ok()
        })?;
        Ok(Signals { handle })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Returns those of `signals` that the parent of this process has not set to be ignored.
pub(crate) fn not_ignored(signals: &[i32]) -> io::Result<impl Iterator<Item = i32>> {
    let status = fs::read_to_string(STATUS).map_err(|error| {
        let why = format!("{STATUS}: {error} (the command needs /proc; in a container, mount it)");
        io::Error::new(error.kind(), why)
    })?;
    // The mask has a bit for each signal: bit 0 is signal 1.
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no SigIgn in /proc/self/status"))?;
    Ok(signals.iter().copied().filter(move |signal| ignored & (1 << (signal - 1)) == 0))
}

/// Returns the name of a signal.
pub(super) fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
