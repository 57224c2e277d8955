//! Starts a program once for each worker of a cluster on this machine. When one worker fails, ends
//! all of them, unless `keep_going` is set.
//!
//! Four files are its parts: `cluster.rs` (addresses and job id), `worker.rs` (a process and its
//! start), `output.rs` (the workers' output) and `profile.rs` (the timeline of their calls). This
//! file waits for the workers. Two threads send it events over a channel: one receives the signals
//! of the launcher, `SIGCHLD` among them, the other passes on the workers' output. Neither thread
//! blocks the other. So a launch with a timeout ends in time even if nobody reads its output: it
//! drops the output that its reader has not taken within [`READING`] of the end.
//!
//! A launch goes through these stages:
//!
//! 1. *Running.* Lasts until all workers have ended, one has failed (without `keep_going`) or the
//!    time is up. Signals are forwarded to all workers.
//! 2. *Asked.* All workers have got `SIGTERM`. A worker that does not end within [`GRACE`] gets
//!    `SIGKILL`.
//! 3. *Killed.* The system ends the workers. The launcher no longer waits for a process that is
//!    left after another [`GRACE`].
//!
//! Each worker leads a process group. So the launcher also reaches the processes that a worker has
//! started, and a terminal's Ctrl-C reaches the workers only once, through the launcher. Workers
//! that have ended remain zombies until the launch ends, so that the system does not give their
//! process and group ids to other processes.

pub(crate) mod cluster;
mod output;
mod profile;
pub(crate) mod signals;
mod worker;

pub use profile::Profiled;
pub(crate) use worker::become_worker_of;
pub use worker::{End, become_worker};

use self::{
    cluster::Cluster,
    output::Stream,
    profile::Profile,
    signals::Signals,
    worker::{Ends, Worker},
};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::{
    ffi::OsString,
    fmt, io,
    num::NonZeroUsize,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

/// The time that workers have to end after `SIGTERM`: enough to report and to close files.
pub const GRACE: Duration = Duration::from_secs(2);

/// The time that the reader of the output has at the end of a launch with a timeout. A program
/// reads the rest, a few full pipes, in far less. Without a timeout the launcher waits as long as
/// the reader takes, such as a pager.
pub const READING: Duration = Duration::from_secs(5);

/// The status of a launch if the launcher itself failed. The command `timeout` uses the same.
const FAILED: i32 = 125;

/// The status of a launch whose time was up. The command `timeout` uses the same.
const TIMED_OUT: i32 = 124;

/// The status of a process that a signal ended is this plus the signal's number, as in shells.
const BY_SIGNAL: i32 = 128;

/// A program, and how to start it as workers.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The number of workers.
    pub workers: NonZeroUsize,
    /// The number of replicas of each worker, which it gets in `CONSONANCE_REPLICAS`.
    pub replicas: Option<NonZeroUsize>,
    /// The time from the start after which all workers are ended.
    pub timeout: Option<Duration>,
    /// Whether the other workers go on when one fails.
    pub keep_going: bool,
    /// The file for the timeline of all workers' calls, if there is to be one.
    pub profile: Option<PathBuf>,
    /// The program. It is searched in `PATH`, as shells do.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How a launch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What ended the launch.
    pub outcome: Outcome,
    /// The workers that got `SIGKILL` because they had not ended within [`GRACE`], in order.
    pub killed: Vec<usize>,
    /// The workers that did not end after `SIGKILL` either, in order.
    pub left: Vec<usize>,
    /// Whether output was dropped, because its reader did not take it within [`READING`] of the end
    /// of a launch with a timeout.
    pub unread: bool,
    /// What became of the profile, if there was to be one: an error in words if it was not written.
    pub profiled: Option<Result<Profiled, String>>,
}

/// What ended a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every worker ended with status 0.
    Done,
    /// A worker failed; this is the first that did. The other workers were ended, or went on to
    /// their own end.
    Failed {
        /// Its index.
        worker: usize,
        /// Its process id.
        pid: i32,
        /// How it ended.
        end: End,
    },
    /// The time was up.
    TimedOut {
        /// The timeout.
        timeout: Duration,
        /// The workers that still ran, in order.
        running: Vec<usize>,
    },
    /// The launcher got `SIGINT` after an earlier `SIGINT` or `SIGTERM`.
    Interrupted,
}

/// Why a launch did not begin. No process that it started is left.
#[derive(Debug)]
pub enum StartError {
    /// The program cannot be started.
    Program {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher itself failed.
    Launcher {
        /// What it was doing.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// An event that the launcher receives.
#[derive(Debug)]
enum Event {
    /// The launcher got a signal.
    Signal(i32),
    /// The whole output of the workers has been passed on.
    Drained,
}

/// The stage of a launch: see the module documentation.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    Asked { kill_at: Instant },
    Killed { leave_at: Instant },
}

impl Launch {
    /// Starts the workers and waits for their end. The calling program must begin with
    /// [`become_worker`].
    ///
    /// Only a process that does nothing else should call this: it takes over the process's signals
    /// and does not give them back.
    ///
    /// # Errors
    ///
    /// [`StartError`], if not all workers can be started. The report tells what happens to workers
    /// later.
    pub fn run(&self) -> Result<Report, StartError> {
        let cannot = |doing| move |source| StartError::Launcher { doing, source };
        let profile = self.profile.as_ref().map(|path| Profile::begin(path, self.workers.get()));
        let mut profile = profile.transpose().map_err(cannot("write the profile"))?;
        let cluster = Cluster::local(self.workers.get()).map_err(cannot("choose addresses"))?;
        let (tell, events) = mpsc::channel();
        let _signals = Signals::listen(tell.clone()).map_err(cannot("listen to signals"))?;
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));

        let mut ends = Ends::new().map_err(cannot("watch workers"))?;
        let mut workers = Vec::new();
        for index in 0..self.workers.get() {
            let worker = Worker::start(index, self, &cluster, profile.as_ref())?;
            ends.watch(&worker).map_err(cannot("watch a worker"))?;
            workers.push(worker);
        }
        let streams = workers.iter_mut().flat_map(Worker::streams).collect();
        let output = pass_on(streams, tell).map_err(cannot("pass on output"))?;

        let mut supervisor = Supervisor {
            workers,
            ends,
            stage: Stage::Running,
            deadline,
            timeout: self.timeout.unwrap_or_default(),
            keep_going: self.keep_going,
            asked: false,
            report: Report {
                outcome: Outcome::Done,
                killed: Vec::new(),
                left: Vec::new(),
                unread: false,
                profiled: None,
            },
        };
        supervisor.supervise(&events);
        drop(output);
        supervisor.report.unread = !drain(&events, self.reading());
        supervisor.report.profiled = profile.as_mut().map(|profile| profile.write(self.workers.get()));
        Ok(supervisor.report)
    }

    /// Runs [`Launch::run`] as a command: reports failures on standard error. Returns the exit
    /// status.
    pub fn run_and_tell(&self) -> i32 {
        let (text, status) = match self.run() {
            Ok(report) => (report.to_string(), report.status()),
            Err(error) => (error.to_string(), error.status()),
        };
        let Some(reading) = self.reading() else {
            say(&text);
            return status;
        };
        let (tell, told) = mpsc::channel::<()>();
        let later = text.clone();
        let thread = thread::Builder::new().name("report".to_owned()).spawn(move || {
            say(&later);
            drop(tell);
        });
        match thread {
            Ok(_) => drop(told.recv_timeout(reading)),
            // The failure to report may be that the system gives no thread.
            Err(_) => say(&text),
        }
        status
    }

    /// Returns how long to wait for the output at the end. `None`: as long as its reader takes.
    fn reading(&self) -> Option<Duration> {
        self.timeout.map(|_| READING)
    }
}

/// Prints each line on standard error.
fn say(text: &str) {
    text.lines().for_each(|line| eprintln!("consonance: {line}"));
}

/// Passes on the workers' output, on a thread. The thread ends once the returned socket is dropped
/// and the pipes are empty.
fn pass_on(streams: Vec<Stream>, tell: Sender<Event>) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    thread::Builder::new().name("output".to_owned()).spawn(move || {
        output::pass_on(streams, &theirs);
        // Fails if the launcher has not waited for the rest of the output.
        let _ = tell.send(Event::Drained);
    })?;
    Ok(ours)
}

/// Waits until the output has been passed on, or a signal says to drop it. Returns false if the
/// output's reader takes longer than `reading`.
fn drain(events: &Receiver<Event>, reading: Option<Duration>) -> bool {
    let until = reading.map(|reading| Instant::now() + reading);
    loop {
        match next(events, until) {
            Some(Event::Signal(SIGCHLD)) => {}
            Some(Event::Signal(_) | Event::Drained) => return true,
            None => return false,
        }
    }
}

/// Waits for the workers of a launch, and ends them.
struct Supervisor {
    workers: Vec<Worker>,
    ends: Ends,
    stage: Stage,
    /// The end of the timeout.
    deadline: Option<Instant>,
    /// The timeout.
    timeout: Duration,
    /// Whether the other workers go on when one fails.
    keep_going: bool,
    /// Whether the workers have got a signal that asks them to end.
    asked: bool,
    report: Report,
}

impl Supervisor {
    /// Waits until all workers have ended, or the rest are left to the system.
    fn supervise(&mut self, events: &Receiver<Event>) {
        // One may have ended before its `SIGCHLD` could be heard.
        self.collect();
        while !self.running().is_empty() {
            let until = match self.stage {
                Stage::Running => self.deadline,
                Stage::Asked { kill_at } => Some(kill_at),
                Stage::Killed { leave_at } => Some(leave_at),
            };
            match next(events, until) {
                Some(Event::Signal(SIGCHLD)) => self.collect(),
                Some(Event::Signal(signal)) => self.forward(signal),
                Some(Event::Drained) => unreachable!("output is passed on until `run` says that it ends"),
                None => match self.stage {
                    Stage::Running => self.time_is_up(),
                    Stage::Asked { .. } => {
                        self.report.killed = self.running();
                        self.kill();
                    }
                    Stage::Killed { .. } => {
                        self.report.left = self.running();
                        return;
                    }
                },
            }
        }
    }

    /// Returns the workers that have not ended, in order.
    fn running(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&index| self.workers[index].end.is_none()).collect()
    }

    /// Finds the workers that have ended. The first failure is the outcome of the launch, and ends
    /// the other workers unless `keep_going` is set.
    fn collect(&mut self) {
        let mut ended: Vec<&Worker> = self.workers.iter_mut().filter_map(Worker::look).collect();
        let order = self.ends.order();
        ended.sort_by_key(|worker| order.iter().position(|&index| index == worker.index).unwrap_or(usize::MAX));
        // Among workers that are found ended together, one that a signal killed counts as the
        // first: the others have lost it, perhaps before its end was noted.
        let by_signal = |worker: &&&Worker| matches!(worker.end, Some(End::Signal(_)));
        let first = ended.iter().find(by_signal).or_else(|| ended.iter().find(|worker| worker.failed()));
        let Some(&worker) = first else { return };
        if let (Stage::Running, Outcome::Done, Some(end)) = (self.stage, &self.report.outcome, worker.end) {
            self.report.outcome = Outcome::Failed { worker: worker.index, pid: worker.pid(), end };
            if !self.keep_going {
                self.ask();
            }
        }
    }

    /// Forwards a signal that the launcher got to all workers. Each worker decides what it does
    /// about it.
    fn forward(&mut self, signal: i32) {
        if signal == SIGINT && self.asked {
            if matches!(self.stage, Stage::Running) {
                self.report.outcome = Outcome::Interrupted;
            }
            return self.kill();
        }
        self.asked |= [SIGINT, SIGTERM].contains(&signal);
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signal(signal);
        }
    }

    fn time_is_up(&mut self) {
        self.report.outcome = Outcome::TimedOut { timeout: self.timeout, running: self.running() };
        self.ask();
    }

    /// Asks all workers to end, unless they have been asked before: they may be about to end, and a
    /// second signal would disturb them.
    fn ask(&mut self) {
        if !self.asked {
            self.signal(Signal::TERM);
            self.asked = true;
        }
        self.stage = Stage::Asked { kill_at: Instant::now() + GRACE };
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.stage = Stage::Killed { leave_at: Instant::now() + GRACE };
    }

    fn signal(&self, signal: Signal) {
        for worker in &self.workers {
            worker.signal(signal);
        }
    }
}

/// Returns the next event; `None` if there is none until `until`.
fn next(events: &Receiver<Event>, until: Option<Instant>) -> Option<Event> {
    let ends = "the thread that hears signals sends as long as the launcher listens";
    let Some(until) = until else { return Some(events.recv().expect(ends)) };
    let left = until.checked_duration_since(Instant::now())?;
    match events.recv_timeout(left) {
        Err(RecvTimeoutError::Disconnected) => panic!("{ends}"),
        event => event.ok(),
    }
}

impl Report {
    /// Returns the exit status: 0, or 125 if the profile was not written; the status of the worker
    /// that failed first (128 and the number, for a signal); 124 if the time was up, or 130 after a
    /// second `SIGINT`.
    pub fn status(&self) -> i32 {
        match self.outcome {
            Outcome::Done if matches!(self.profiled, Some(Err(_))) => FAILED,
            Outcome::Done => 0,
            Outcome::Failed { end: End::Status(status), .. } => status,
            Outcome::Failed { end: End::Signal(signal), .. } => BY_SIGNAL + signal,
            Outcome::TimedOut { .. } => TIMED_OUT,
            Outcome::Interrupted => BY_SIGNAL + SIGINT,
        }
    }
}

/// Writes one sentence a line. Writes nothing if every worker ended with status 0, its output was
/// read, and the profile has all calls.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Done => {}
            Outcome::Failed { worker, pid, end } => writeln!(f, "worker {worker} (pid {pid}): {end}")?,
            Outcome::TimedOut { timeout, running } => writeln!(f, "after {timeout:?} {} still ran", name(running))?,
            Outcome::Interrupted => writeln!(f, "killed by a second SIGINT")?,
        }
        if !self.killed.is_empty() {
            writeln!(f, "{} did not end within {GRACE:?} of being asked: SIGKILL", name(&self.killed))?;
        }
        if !self.left.is_empty() {
            writeln!(f, "{} did not end within {GRACE:?} of SIGKILL: left", name(&self.left))?;
        }
        if self.unread {
            writeln!(f, "output was not read within {READING:?} of the end: left")?;
        }
        match &self.profiled {
            Some(profiled) => profile::write_words(profiled, f),
            None => Ok(()),
        }
    }
}

/// Returns `worker 3`, or `workers 0, 3`.
fn name(workers: &[usize]) -> String {
    let list: Vec<String> = workers.iter().map(usize::to_string).collect();
    format!("worker{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", "))
}

impl StartError {
    /// Returns the exit status: 127 for a program that does not exist and 126 for another that
    /// cannot be started, as in shells; 125 for a failure of the launcher, as of the command
    /// `timeout`.
    pub fn status(&self) -> i32 {
        match self {
            StartError::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            StartError::Program { .. } => 126,
            StartError::Launcher { .. } => FAILED,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Program { program, source } => write!(f, "cannot start {}: {source}", program.display()),
            StartError::Launcher { doing, source } => write!(f, "cannot {doing}: {source}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Program { source, .. } | StartError::Launcher { source, .. } => Some(source),
        }
    }
}
