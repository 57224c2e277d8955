//! Other programs, run for a bounded time.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};
use std::{
    env,
    io::{self, PipeReader, Read, pipe},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The time in which a program has to tell its version.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);

/// A process. Dropping it kills it: after an error it might wait for others for long.
pub(crate) struct OwnedChild(pub(crate) Child);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // A process that has ended needs neither.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running program. Dropping it kills the program and its process group.
pub(crate) struct Program {
    child: Child,
    /// Standard output and standard error together.
    output: PipeReader,
}

impl Program {
    /// Starts a program with an empty standard input.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(mut command: Command) -> io::Result<Program> {
        let (output, writer) = pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        // Dropping the command closes our copy of the pipe's write end. Then the output ends with
        // the program.
        Ok(Program { child: command.spawn()?, output })
    }

    /// Waits for the end of the program. Returns whether it succeeded, and its output.
    ///
    /// # Errors
    /// If it has not ended at the deadline.
    pub(crate) fn finish(mut self, deadline: Instant) -> Result<(bool, String), String> {
        let late = || "it gave no answer in time".to_owned();
        let mut text = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|error| error.to_string())?;
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(late()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
                Ok(_) => {}
            }
            let mut bytes = [0; 4096];
            match self.output.read(&mut bytes).map_err(|error| error.to_string())? {
                0 => break,
                count => text.extend(&bytes[..count]),
            }
        }
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok((status.success(), String::from_utf8_lossy(&text).into_owned()));
            }
            if Instant::now() > deadline {
                return Err(late());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Fails if the program has just ended.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Returns the first executable file of this name in `PATH`.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    all_in_path(name).into_iter().next()
}

/// Returns the executable files of this name in `PATH`, in its order.
pub(crate) fn all_in_path(name: &str) -> Vec<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    let folders = env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty());
    folders.map(|folder| folder.join(name)).filter(is_program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, time: Duration) -> Result<(bool, String), String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program::start(command).expect("a shell").finish(Instant::now() + time)
    }

    #[test]
    fn output_is_taken_whole_and_in_order() {
        let (success, text) = shell("echo a; echo b >&2; exit 3", Duration::from_secs(30)).expect("a shell");
        assert_eq!((success, text.as_str()), (false, "a\nb\n"));
        let script = "i=0; while [ $i -lt 30000 ]; do echo 1234567; i=$((i + 1)); done";
        assert_eq!(shell(script, Duration::from_secs(30)).expect("a shell").1.len(), 240_000);
    }

    #[test]
    fn nobody_is_waited_for_without_an_end() {
        for script in ["sleep 60", "sleep 60 & exit 0", "exec >&- 2>&-; sleep 60"] {
            let begin = Instant::now();
            shell(script, Duration::from_millis(100)).expect_err("a program that hangs");
            assert!(begin.elapsed() < Duration::from_secs(30), "{script}");
        }
        Program::start(Command::new("/no/such/program")).err().expect("no such program");
    }
}
