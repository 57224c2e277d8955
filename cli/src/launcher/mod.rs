//! Starts a program once for each worker of a cluster on this machine, and ends all of them when
//! one fails, unless they are to go on.
//!
//! Three files are its parts: `cluster.rs` (who is who), `worker.rs` (a process and its start) and
//! `output.rs` (what workers write). This one waits. Two threads tell it what happened by a
//! channel: one takes the signals that the launcher gets, `SIGCHLD` among them, one passes on the
//! workers' output. Since neither makes the other wait, a launch ends in time even if nobody reads
//! its output: where it has a timeout, what its reader has not taken within [`READING`] of the end
//! is left.
//!
//! A launch goes through these stages:
//!
//! 1. *Running.* Until all workers have ended, one has failed (unless the others are to go on) or
//!    the time is up. Signals go to all workers.
//! 2. *Asked.* All have `SIGTERM`. Who does not end within [`GRACE`] gets `SIGKILL`.
//! 3. *Killed.* The system ends them; a process that even it cannot end is left after another
//!    [`GRACE`].
//!
//! Each worker leads a process group, so that the launcher reaches what a worker has started, too,
//! and a terminal's Ctrl-C reaches the workers once: through the launcher. Workers that ended
//! remain zombies until the launch ends, so that no number of a process or group can mean another
//! one.

pub(crate) mod cluster;
mod output;
pub(crate) mod signals;
mod worker;

pub(crate) use worker::become_worker_of;
pub use worker::{End, become_worker};

use self::{
    cluster::Cluster,
    output::Stream,
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

/// How long workers that are asked to end by `SIGTERM` have for it: enough to report and to close
/// files.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long whoever reads the output of a launch with a timeout has at its end for what is left: a
/// few pipes full, which a program reads in no time. A pager may take its time where there is no
/// timeout.
pub const READING: Duration = Duration::from_secs(5);

/// The status of a launch whose time was up, as the command `timeout` has it.
const TIMED_OUT: i32 = 124;

/// Added to the number of a signal, it is the status of what the signal ended, as shells have it.
const BY_SIGNAL: i32 = 128;

/// A program, and how many processes of it to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// How many workers there are.
    pub workers: NonZeroUsize,
    /// What `CONSONANCE_REPLICAS` tells each worker: how many replicas it has.
    pub replicas: Option<NonZeroUsize>,
    /// When all workers are ended, counted from the start.
    pub timeout: Option<Duration>,
    /// When one fails, the others are not ended.
    pub keep_going: bool,
    /// The program, looked for as shells do.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How a launch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What ended it.
    pub outcome: Outcome,
    /// The workers that got `SIGKILL` because they did not end within [`GRACE`], in order.
    pub killed: Vec<usize>,
    /// The workers that did not end even so, in order.
    pub left: Vec<usize>,
    /// Output was left, because its reader did not take it within [`READING`] of the end of a
    /// launch with a timeout.
    pub unread: bool,
}

/// What ended a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every worker ended with status 0.
    Done,
    /// A worker failed, the first to do so. The others were ended, or went on to their own end.
    Failed {
        /// Its index.
        worker: usize,
        /// The number of its process.
        pid: i32,
        /// How it ended.
        end: End,
    },
    /// The time was up.
    TimedOut {
        /// The time that there was.
        timeout: Duration,
        /// The workers that still ran, in order.
        running: Vec<usize>,
    },
    /// The launcher got `SIGINT` when it had been asked to end before.
    Interrupted,
}

/// Why a launch did not begin. Nothing that it started is left.
#[derive(Debug)]
pub enum StartError {
    /// The program cannot be started.
    Program {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The launcher cannot do its own part.
    Launcher {
        /// What it was doing.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// What the launcher is told.
#[derive(Debug)]
enum Event {
    /// The launcher got a signal.
    Signal(i32),
    /// All that workers wrote has been passed on.
    Drained,
}

/// Where a launch is: see the module documentation.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    Asked { kill_at: Instant },
    Killed { leave_at: Instant },
}

impl Launch {
    /// Starts the workers and waits for their end. The program that calls this begins with
    /// [`become_worker`].
    ///
    /// This is for a process that does nothing else: it takes over the process's signals and does
    /// not give them back.
    ///
    /// # Errors
    ///
    /// [`StartError`], if not all workers can be started. What happens to workers later is in the
    /// report.
    pub fn run(&self) -> Result<Report, StartError> {
        let cannot = |doing| move |source| StartError::Launcher { doing, source };
        let cluster = Cluster::local(self.workers.get()).map_err(cannot("choose addresses"))?;
        let (tell, events) = mpsc::channel();
        let _signals = Signals::listen(tell.clone()).map_err(cannot("listen to signals"))?;
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));

        let mut ends = Ends::new().map_err(cannot("watch workers"))?;
        let mut workers = Vec::new();
        for index in 0..self.workers.get() {
            let worker = Worker::start(index, self, &cluster)?;
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
            report: Report { outcome: Outcome::Done, killed: Vec::new(), left: Vec::new(), unread: false },
        };
        supervisor.supervise(&events);
        drop(output);
        supervisor.report.unread = !drain(&events, self.reading());
        Ok(supervisor.report)
    }

    /// [`Launch::run`] as a command: what did not go well is said on standard error. Returns the
    /// status to end with.
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
            // That the system gives no thread may be what there is to say.
            Err(_) => say(&text),
        }
        status
    }

    /// How long the output is waited for at the end, if not for as long as its reader takes.
    fn reading(&self) -> Option<Duration> {
        self.timeout.map(|_| READING)
    }
}

/// Says each line on standard error.
fn say(text: &str) {
    text.lines().for_each(|line| eprintln!("consonance: {line}"));
}

/// Passes on what workers write, on a thread, until the socket that this returns is dropped and the
/// pipes are empty.
fn pass_on(streams: Vec<Stream>, tell: Sender<Event>) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    thread::Builder::new().name("output".to_owned()).spawn(move || {
        output::pass_on(streams, &theirs);
        // Nobody listens any more if the launcher was told to end without the rest of the output.
        let _ = tell.send(Event::Drained);
    })?;
    Ok(ours)
}

/// Waits until the output has been passed on, or a signal says to leave it. False if its reader
/// takes longer than `reading`.
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

/// Who waits for the workers of a launch.
struct Supervisor {
    workers: Vec<Worker>,
    ends: Ends,
    stage: Stage,
    /// When the time is up.
    deadline: Option<Instant>,
    /// The time that there was.
    timeout: Duration,
    /// A failure ends nobody else.
    keep_going: bool,
    /// Workers have been sent a signal that asks to end.
    asked: bool,
    report: Report,
}

impl Supervisor {
    /// Waits until all workers have ended or are left.
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

    /// The workers that have not ended, in order.
    fn running(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&index| self.workers[index].end.is_none()).collect()
    }

    /// Looks who has ended. The first failure is the launch's, and ends it unless the others are to
    /// go on.
    fn collect(&mut self) {
        let mut ended: Vec<&Worker> = self.workers.iter_mut().filter_map(Worker::look).collect();
        let order = self.ends.order();
        ended.sort_by_key(|worker| order.iter().position(|&index| index == worker.index).unwrap_or(usize::MAX));
        // Of workers that are found ended together, one that a signal killed was first: the others
        // have lost it, perhaps before it was noted that it ended.
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

    /// Gives a signal that the launcher got to all workers. What they do about it is theirs to
    /// decide.
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

    /// Asks all workers to end, unless they have been asked: they may be about to, and a second
    /// signal would disturb them.
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

/// The next event; `None` if there is none until then.
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
    /// The status to end with: 0, that of the worker that failed first (128 and the number, if it
    /// was a signal), 124 if the time was up, 130 after a second `SIGINT`.
    pub fn status(&self) -> i32 {
        match self.outcome {
            Outcome::Done => 0,
            Outcome::Failed { end: End::Status(status), .. } => status,
            Outcome::Failed { end: End::Signal(signal), .. } => BY_SIGNAL + signal,
            Outcome::TimedOut { .. } => TIMED_OUT,
            Outcome::Interrupted => BY_SIGNAL + SIGINT,
        }
    }
}

/// A sentence a line; nothing if every worker ended with status 0 and what they wrote was read.
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
        Ok(())
    }
}

/// `worker 3`, or `workers 0, 3`.
fn name(workers: &[usize]) -> String {
    let list: Vec<String> = workers.iter().map(usize::to_string).collect();
    format!("worker{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", "))
}

impl StartError {
    /// The status to end with: 127 for a program that is not there and 126 for another that cannot
    /// be started, as shells have it, 125 for a failure of the launcher, as the command `timeout`
    /// has it.
    pub fn status(&self) -> i32 {
        match self {
            StartError::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            StartError::Program { .. } => 126,
            StartError::Launcher { .. } => 125,
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
