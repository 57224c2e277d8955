//! A process of a soak, as its parent sees it.

use super::{Starter, plan::Plan, worker::Told};
use crate::launcher::hosts::Host;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{self, BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::Sender,
    thread,
    time::Instant,
};

/// A process. Dropping it kills it.
pub(super) struct Process {
    /// The position in the order of all process starts.
    pub(super) number: u64,
    /// Its index in the cluster.
    pub(super) index: usize,
    /// Its id on its host.
    pub(super) inner: u32,
    /// Whether it is in a group, by its last report.
    pub(super) formed: bool,
    pub(super) stopped: bool,
    /// The last round for which it reported a loss.
    pub(super) lost: u64,
    /// Bytes that it has contributed so far.
    pub(super) bytes: u64,
    /// The time at which it last reported, or was continued.
    pub(super) heard: Instant,
    child: Child,
}

/// A report of the process with this number; `None` if it has closed its output.
pub(super) struct Event {
    pub(super) number: u64,
    pub(super) told: Option<Result<Told, String>>,
}

impl Process {
    /// Starts a process with this number and index.
    pub(super) fn start(
        mut command: Command,
        host: Option<&Host>,
        (number, index): (u64, usize),
        tell: Sender<Event>,
    ) -> io::Result<Process> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match host {
            Some(host) => host.spawn(&mut command)?,
            None => command.spawn()?,
        };
        let inner = host.and_then(|_| Host::inner(Pid::from_child(&child).as_raw_pid()));
        let inner = inner.map_or(child.id(), i32::unsigned_abs);
        let output = child.stdout.take().expect("asked for above");
        thread::spawn(move || listen(number, output, &tell));
        let heard = Instant::now();
        Ok(Process { number, index, inner, formed: false, stopped: false, lost: 0, bytes: 0, heard, child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks the process to end after its round.
    pub(super) fn ask_to_end(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(super) fn stop(&mut self) {
        self.signal(Signal::STOP);
        self.stopped = true;
    }

    pub(super) fn go_on(&mut self) {
        self.signal(Signal::CONT);
        (self.stopped, self.heard) = (false, Instant::now());
    }

    /// Kills the process, and waits for its end.
    pub(super) fn kill(&mut self) {
        // These fail if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns how the process ended, after it has closed its output.
    pub(super) fn end(&mut self) -> String {
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    fn signal(&self, signal: Signal) {
        // Fails if the process has ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the command of a process with this index, whose first round is `round`.
pub(super) fn command(
    plan: &Plan,
    consonance: Starter,
    host: Option<&Host>,
    (index, round): (usize, u64),
) -> io::Result<Command> {
    let Plan { seed, processes, replicas, hosts, .. } = *plan;
    let own = std::process::id();
    let parent = host.map_or_else(|| own.to_string(), Host::name);
    let numbers = [seed, processes as u64, replicas as u64, hosts as u64, index as u64, round];
    let mut command = consonance()?;
    command.arg("soak-worker").args(numbers.map(|number| number.to_string())).arg(parent);
    if !plan.faults {
        command.arg("--no-faults");
    }
    // This job id differs from every other soak's.
    command.env("CONSONANCE_JOB", format!("soak {own}"));
    Ok(command)
}

/// Passes on the reports of a process.
fn listen(number: u64, output: ChildStdout, tell: &Sender<Event>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let told = line.parse().map_err(|()| line);
        if tell.send(Event { number, told: Some(told) }).is_err() {
            return;
        }
    }
    let _ = tell.send(Event { number, told: None });
}
