//! Starts a program once for each worker of a cluster on this machine. When one worker fails,
//! starts another process in its place if `max_restarts` allows it; otherwise ends all workers,
//! unless `keep_going` is set. With parameter servers, one process more is the chief: it is never
//! replaced, and the launch ends with it.
//!
//! The files are its parts: `task.rs` (roles), `cluster.rs` (addresses and job id), `nodes.rs`
//! (launches of several hosts), `hosts.rs` (namespaces that play hosts), `cables.rs` (what their
//! cables do to frames), `worker.rs` (a process and its start), `output.rs` (the workers' output),
//! `profile/` (the timeline of their calls), `inbox.rs` (what workers tell the launcher),
//! `failure.rs` (whose fault a failure is), `restart.rs` (when a worker is replaced) and
//! `supervisor.rs`, which waits for the workers. Two threads send the supervisor events over a
//! channel: one receives the signals of the launcher, `SIGCHLD` among them, the other passes on the
//! workers' output. Neither thread blocks the other. So a launch with a timeout ends in time even
//! if nobody reads its output: it drops the output that its reader has not taken within
//! [`READING`] of the end.
//!
//! A launch goes through these stages:
//!
//! 1. *Running.* Lasts until all workers have ended, one has failed (without `keep_going`) or the
//!    time is up. Signals are forwarded to all workers.
//! 2. *Awaiting.* A worker has failed with an error that names another worker, which still runs.
//!    That one has [`GRACE`] to end by itself, so that its own failure is seen. Left out with
//!    `keep_going`, and for a worker that is stopped.
//!    So do the others of a chief that has ended with status 0: they end by themselves.
//! 3. *Asked.* All workers have got `SIGTERM`. A worker that does not end within [`GRACE`] gets
//!    `SIGKILL`.
//! 4. *Killed.* The system ends the workers. The launcher no longer waits for a process that is
//!    left after another [`GRACE`].
//!
//! Each worker leads a process group. So the launcher also reaches the processes that a worker has
//! started, and a terminal's Ctrl-C reaches the workers only once, through the launcher. Workers
//! that have ended remain zombies until the launch ends, so that the system does not give their
//! process and group ids to other processes.

pub(crate) mod task;
pub(crate) mod cluster;
mod nodes;
mod cables;
pub(crate) mod hosts;
mod inbox;
mod output;
mod profile;
pub(crate) mod signals;
pub(crate) mod worker;
mod failure;
mod restart;
mod supervisor;

pub use cables::{Cable, Cuts};
pub use cluster::Node;
pub use failure::{Failure, Unmet, WorkerState};
pub use hosts::MAX_HOSTS;
pub use profile::{Others, Profiled};
pub use task::{Role, Task};
pub(crate) use worker::become_worker_of;
pub use worker::{End, Ended, become_worker};

use self::{
    cluster::Cluster,
    output::Feed,
    profile::{Exchange, Profile},
    signals::Signals,
    supervisor::Supervisor,
};
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGCHLD, SIGINT};
use std::{
    ffi::OsString,
    fmt, io,
    num::NonZeroUsize,
    ops::Range,
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
/// The files that the launcher has open for each worker: its two outputs, its pidfd and the claim
/// of its port.
const FILES_OF_WORKER: usize = 4;

/// The files that the launcher has open for itself, and for the start of a worker.
const FILES_OF_LAUNCHER: usize = 32;

/// The status of a launch whose time was up. The command `timeout` uses the same.
const TIMED_OUT: i32 = 124;

/// The status of a process that a signal ended is this plus the signal's number, as in shells.
const BY_SIGNAL: i32 = 128;

/// A program, and how to start it as workers.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The number of workers, of each host if there are several.
    pub workers: NonZeroUsize,
    /// The number of hosts that this machine plays, at most [`MAX_HOSTS`]; `None`: the workers run
    /// on this machine as it is.
    pub hosts: Option<NonZeroUsize>,
    /// The cables of these hosts, if they are no perfect ones.
    pub cable: Option<Cable>,
    /// The number of parameter servers, if the launch has some. Then it has a chief, too, and ends
    /// with the chief. The chief is on the first of the hosts, and servers are dealt to them in
    /// turn.
    pub servers: Option<NonZeroUsize>,
    /// The place of this launch among those of other hosts, if there are some. Then it plays no
    /// hosts.
    pub node: Option<Node>,
    /// The number of replicas of each worker, which it gets in `CONSONANCE_REPLICAS`.
    pub replicas: Option<NonZeroUsize>,
    /// The time from the start after which all workers are ended.
    pub timeout: Option<Duration>,
    /// Whether the other workers go on when one fails.
    pub keep_going: bool,
    /// The file for the timeline of all workers' calls, if there is to be one.
    pub profile: Option<PathBuf>,
    /// The number of processes that are started, at most and in all, in the place of workers that
    /// fail. Then the others go on, too.
    pub max_restarts: usize,
    /// Whether standard error shows the variables that are set for each worker.
    pub print_environment: bool,
    /// The program. It is searched in `PATH`, as shells do.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// The result of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The event that ended the launch.
    pub outcome: Outcome,
    /// The workers that got `SIGKILL` because they had not ended within [`GRACE`], in order.
    pub killed: Vec<Task>,
    /// The workers that did not end after `SIGKILL` either, in order.
    pub left: Vec<Task>,
    /// Whether output was dropped, because its reader did not take it within [`READING`] of the end
    /// of a launch with a timeout.
    pub unread: bool,
    /// The fate of the profile, if there was to be one: an error in words if it was not written.
    pub profiled: Option<Result<Profiled, String>>,
}

/// The event that ended a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every worker ended with status 0, or the launch recovered: at least one worker still ran or
    /// was replaced at the last failure, and all of these ended with status 0. With a chief: the
    /// chief ended with status 0.
    Done,
    /// A worker failed. The one at fault is the first that did or, if that one had an error that
    /// named another worker, the named worker. The other workers were ended, or went on to their
    /// own end.
    Failed(Failure),
    /// A worker ended before it joined those that waited for it. These were ended.
    Unmet(Unmet),
    /// The time was up.
    TimedOut {
        /// The timeout.
        timeout: Duration,
        /// The workers that still ran, in order.
        running: Vec<Task>,
    },
    /// The launcher got `SIGINT` after an earlier `SIGINT` or `SIGTERM`.
    Interrupted,
    /// The workers' output cannot be written, although its reader has not gone away.
    Refused {
        /// The system's reason.
        why: String,
    },
}

/// The reason why a launch did not begin. No process that it started is left.
#[derive(Debug)]
pub enum StartError {
    /// The program cannot be started.
    Program {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher may not open as many files as it needs.
    Files {
        /// The number of workers.
        workers: usize,
        /// The number of files.
        needed: usize,
        /// The limit of this process.
        limit: usize,
    },
    /// This machine cannot play hosts.
    Hosts {
        /// The reason in words, and how to mend it.
        why: String,
    },
    /// The launches of other hosts were not met.
    Nodes {
        /// The reason in words.
        why: String,
    },
    /// The launcher itself failed.
    Launcher {
        /// The action that failed.
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
    /// The launcher's output takes no more; why.
    Refused(String),
    /// A host has handed its part of the profile over.
    HandedOver,
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
        self.check_files()?;
        let profile = self.profile.as_ref().map(|path| Profile::begin(path, self));
        let mut profile = profile.transpose().map_err(cannot("write the profile"))?;
        let (tell, events) = mpsc::channel();
        // Before signals are taken over: one that ends a process ends these waits.
        let exchange = profile.as_ref().map(|profile| Exchange::begin(self, profile, tell.clone()));
        let mut exchange = exchange.transpose()?.flatten();
        let cluster = self.cluster()?;
        profile.as_ref().map_or(Ok(()), Profile::make_folders).map_err(cannot("write the profile"))?;
        let _signals = Signals::listen(tell.clone()).map_err(cannot("listen to signals"))?;
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let feed = pass_on(tell).map_err(cannot("pass on output"))?;
        let mut report = Supervisor::start(self, profile.as_ref(), feed, deadline, cluster)?.supervise(&events);
        if let (Some(exchange), Some(profile)) = (&mut exchange, &profile) {
            exchange.hand_over(profile);
        }
        drain(&events, self.reading(), &mut report);
        report.profiled = profile.as_mut().map(|profile| match exchange {
            Some(exchange) => exchange.finish(profile, &events),
            None => profile.write(),
        });
        Ok(report)
    }

    /// Chooses the addresses of the workers. Waits for the launches of other hosts if they are to
    /// find processes in the places of lost ones.
    fn cluster(&self) -> Result<Cluster, StartError> {
        let workers = self.workers.get();
        let cluster = match (&self.node, self.hosts) {
            (Some(node), _) => {
                let met = (self.max_restarts > 0).then(|| nodes::meet(node, workers, self.timeout));
                Cluster::of_node(node, workers, met.transpose().map_err(|why| StartError::Nodes { why })?)
            }
            (None, None) => Cluster::local(self.size()),
            (None, Some(_)) => Cluster::of_hosts(&self.hosts_of_tasks(), workers),
        };
        cluster.map_err(|source| StartError::Launcher { doing: "choose addresses", source })
    }

    /// Returns the number of processes of this launch, on all hosts.
    fn size(&self) -> usize {
        let others = self.servers.map_or(0, |servers| servers.get().saturating_add(1));
        self.workers_of_all().saturating_add(others)
    }

    /// Returns the processes of this launch.
    fn tasks(&self) -> Vec<Task> {
        self.indices().map(|index| self.task(index)).collect()
    }

    /// Returns the indices of the workers of this launch among those of all.
    fn indices(&self) -> Range<usize> {
        let first = self.node.as_ref().map_or(0, |node| node.node.saturating_mul(self.workers.get()));
        first..first.saturating_add(self.size())
    }

    /// Returns the number of workers of this launch and of those of other hosts.
    fn world(&self) -> usize {
        self.size().saturating_mul(self.node.as_ref().map_or(1, |node| node.nodes.get()))
    }

    /// Checks that this process may open enough files, before it starts one worker after another
    /// until it may not.
    fn check_files(&self) -> Result<(), StartError> {
        let workers = self.size();
        let of_hosts = hosts::files(self.hosts.map_or(0, NonZeroUsize::get), self.cable.is_some());
        let of_workers = FILES_OF_WORKER.saturating_mul(workers.saturating_add(self.max_restarts));
        let of_profile =
            self.profile.as_ref().and(self.node.as_ref()).map_or(0, |node| profile::files(node.nodes.get()));
        let others = [of_hosts, of_profile, FILES_OF_LAUNCHER].into_iter().fold(0, usize::saturating_add);
        let needed = Cluster::files(workers).max(of_workers).saturating_add(others);
        match getrlimit(Resource::Nofile).current.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)) {
            Some(limit) if limit < needed => Err(StartError::Files { workers, needed, limit }),
            _ => Ok(()),
        }
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

/// Passes on the workers' output, on a thread. The thread ends once the feed is dropped and the
/// pipes are empty.
fn pass_on(tell: Sender<Event>) -> io::Result<Feed> {
    let (feed, fed) = Feed::new()?;
    thread::Builder::new().name("output".to_owned()).spawn(move || {
        // Both fail if the launcher has not waited for the rest of the output.
        output::pass_on(&fed, |error| _ = tell.send(Event::Refused(error.to_string())));
        let _ = tell.send(Event::Drained);
    })?;
    Ok(feed)
}

/// Waits until the output has been passed on, or a signal says to drop it. Notes in the report if
/// the output's reader takes longer than `reading`, or if the output takes no more.
fn drain(events: &Receiver<Event>, reading: Option<Duration>, report: &mut Report) {
    let until = reading.map(|reading| Instant::now() + reading);
    loop {
        match next(events, until) {
            Some(Event::Signal(SIGCHLD) | Event::HandedOver) => {}
            Some(Event::Refused(why)) => report.refused(&why),
            Some(Event::Signal(_) | Event::Drained) => return,
            None => return report.unread = true,
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
    /// Notes that the output takes no more, unless a worker failed before.
    fn refused(&mut self, why: &str) {
        if self.outcome == Outcome::Done {
            self.outcome = Outcome::Refused { why: why.to_owned() };
        }
    }

    /// Returns the exit status: 0, or 125 if the profile was not written; the status of the worker
    /// at fault or, if that one did not fail, of the worker that failed first (128 and the number,
    /// for a signal); 1 if a worker ended with status 0 before it joined those that waited for it;
    /// 124 if the time was up, 130 after a second `SIGINT`, or 1 if the output takes no more.
    pub fn status(&self) -> i32 {
        match self.outcome {
            Outcome::Done if matches!(self.profiled, Some(Err(_))) => FAILED,
            Outcome::Done => 0,
            Outcome::Failed(failure) => failure.end().map_or(1, status_of),
            Outcome::Unmet(Unmet { ended: Ended { end, .. }, .. }) => status_of(end).max(1),
            Outcome::TimedOut { .. } => TIMED_OUT,
            Outcome::Interrupted => BY_SIGNAL + SIGINT,
            Outcome::Refused { .. } => 1,
        }
    }
}

/// Writes one sentence a line. Writes nothing if every worker ended with status 0, its output was
/// read, and the profile has all calls.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Done => {}
            Outcome::Failed(failure) => writeln!(f, "{failure}")?,
            Outcome::Unmet(unmet) => writeln!(f, "{unmet}")?,
            Outcome::TimedOut { timeout, running } => {
                writeln!(f, "after {timeout:?} {} still ran", task::names(running))?
            }
            Outcome::Interrupted => writeln!(f, "killed by a second SIGINT")?,
            Outcome::Refused { why } => writeln!(f, "cannot write the workers' output: {why}")?,
        }
        if !self.killed.is_empty() {
            writeln!(f, "{} did not end within {GRACE:?} of being asked: SIGKILL", task::names(&self.killed))?;
        }
        if !self.left.is_empty() {
            writeln!(f, "{} did not end within {GRACE:?} of SIGKILL: left", task::names(&self.left))?;
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

fn status_of(end: End) -> i32 {
    match end {
        End::Status(status) => status,
        End::Signal(signal) => BY_SIGNAL + signal,
    }
}

impl StartError {
    /// Returns the exit status: 127 for a program that does not exist and 126 for another that
    /// cannot be started, as in shells; 125 for a failure of the launcher, as of the command
    /// `timeout`.
    pub fn status(&self) -> i32 {
        match self {
            StartError::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            StartError::Program { .. } => 126,
            StartError::Launcher { .. }
            | StartError::Files { .. }
            | StartError::Hosts { .. }
            | StartError::Nodes { .. } => FAILED,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Program { program, source } => write!(f, "cannot start {}: {source}", program.display()),
            StartError::Files { workers, needed, limit } => write!(
                f,
                "-n {workers}: expected a limit of {needed} open files or more, found {limit}; \
                 `ulimit -n {needed}` raises it"
            ),
            StartError::Hosts { why } => write!(f, "--hosts: {why}"),
            StartError::Nodes { why } => write!(f, "--nodes: the launches of the other hosts were not met: {why}"),
            StartError::Launcher { doing, source } => write!(f, "cannot {doing}: {source}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Program { source, .. } | StartError::Launcher { source, .. } => Some(source),
            StartError::Files { .. } | StartError::Hosts { .. } | StartError::Nodes { .. } => None,
        }
    }
}
