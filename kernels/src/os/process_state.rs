//! The state of another process, for error messages.

use std::fs;

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or waits for something.
    Running,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// No process has this id; or the process has ended, and its parent has not waited for it; or
    /// the system is ending it, and it runs none of its code any more.
    Gone,
}

/// The flags of a task that the system ends: `PF_EXITING`, `PF_DUMPCORE` and `PF_SIGNALED`.
const ENDING: u64 = 0x4 | 0x200 | 0x400;

/// The place of a task's flags in a line of `/proc/<pid>/stat`, counted from the state.
const FLAGS: usize = 6;

/// Returns the current state of the process with this id. A process whose state cannot be read
/// counts as running.
pub fn process_state(pid: u32) -> ProcessState {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => match state_in(&stat).unwrap_or(ProcessState::Running) {
            ProcessState::Running if is_killed(pid) => ProcessState::Gone,
            state => state,
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => ProcessState::Gone,
        // ESRCH: the process ended during the read. Any other error says nothing about the state.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => ProcessState::Gone,
        Err(_) => ProcessState::Running,
    }
}

/// Returns the state in a line of `/proc/<pid>/stat`: the letter after the program's name, and the
/// flags. The name is in parentheses, and may contain others.
pub fn state_in(stat: &[u8]) -> Option<ProcessState> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let flags = str::from_utf8(&stat[end + 1..]).ok().and_then(|rest| rest.split_ascii_whitespace().nth(FLAGS));
    let is_ending = flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & ENDING != 0);
    match stat[end..].get(2)? {
        b'Z' | b'X' | b'x' => Some(ProcessState::Gone),
        letter if letter.is_ascii_alphabetic() && is_ending => Some(ProcessState::Gone),
        b'T' | b't' => Some(ProcessState::Stopped),
        letter if letter.is_ascii_alphabetic() => Some(ProcessState::Running),
        _ => None,
    }
}

/// Whether a signal that nothing withstands waits for the first thread of a process: the thread has
/// not yet had a core since the signal came.
fn is_killed(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let signals = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    signals
        .filter_map(|signals| u64::from_str_radix(signals.trim(), 16).ok())
        .any(|set| set >> (libc::SIGKILL - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_the_letter_after_the_name() {
        for (line, state) in [
            ("12 (a) R 1 12", Some(ProcessState::Running)),
            ("12 (a) S 1 12", Some(ProcessState::Running)),
            ("12 (a) T 1 12", Some(ProcessState::Stopped)),
            ("12 (a) t 1 12", Some(ProcessState::Stopped)),
            ("12 (a) Z 1 12", Some(ProcessState::Gone)),
            ("12 (a) R 1 12 12 0 -1 4194304 4", Some(ProcessState::Running)),
            ("12 (a) R 1 12 12 0 -1 4194308 0", Some(ProcessState::Gone)),
            ("12 (4 4 4) T 1 12 12 0 -1 4195328 0", Some(ProcessState::Gone)),
            ("12 (T) R) (Z) D 1 12", Some(ProcessState::Running)),
            ("12 (\n) T", Some(ProcessState::Stopped)),
            ("12 (a)", None),
            ("12 (a) 4", None),
            ("12 a R", None),
            ("", None),
        ] {
            assert_eq!(state_in(line.as_bytes()), state, "{line:?}");
        }
    }

    #[test]
    fn this_process_runs_and_an_unused_id_is_gone() {
        assert_eq!(process_state(std::process::id()), ProcessState::Running);
        assert_eq!(process_state(u32::MAX), ProcessState::Gone);
    }
}
