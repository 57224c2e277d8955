//! Waits for the workers of a launch, replaces those that are lost, and ends them.

use super::{
    Event, GRACE, Launch, Outcome, Report, StartError,
    cluster::Cluster,
    culprits::{Culprits, VARIABLE},
    next,
    output::Feed,
    profile::Profile,
    worker::{End, Ends, Environment, Worker},
};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::{fmt, mem, sync::mpsc::Receiver, time::Instant};

/// The stage of a launch: see the module documentation.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    Awaiting { until: Instant },
    Asked { kill_at: Instant },
    Killed { leave_at: Instant },
}

/// Waits for the workers of a launch, and ends them.
pub(super) struct Supervisor<'l> {
    launch: &'l Launch,
    profile: Option<&'l Profile>,
    cluster: Cluster,
    culprits: Culprits,
    feed: Feed,
    /// The workers, by their index.
    workers: Vec<Worker>,
    /// Workers that were replaced.
    former: Vec<Worker>,
    ends: Ends,
    stage: Stage,
    /// The end of the timeout.
    deadline: Option<Instant>,
    /// How many workers were replaced.
    restarts: usize,
    /// The process that the first failure blames, while it has not ended.
    awaited: Option<i32>,
    /// Whether the worker that ended last succeeded.
    succeeded: bool,
    /// Whether the workers have got a signal that asks them to end.
    asked: bool,
    report: Report,
}

/// A worker that has ended.
#[derive(Clone, Copy)]
struct Ended {
    worker: usize,
    pid: i32,
    end: End,
}

impl<'l> Supervisor<'l> {
    /// Starts the workers.
    pub(super) fn start(
        launch: &'l Launch,
        profile: Option<&'l Profile>,
        feed: Feed,
        deadline: Option<Instant>,
    ) -> Result<Supervisor<'l>, StartError> {
        let cannot = |doing| move |source| StartError::Launcher { doing, source };
        let mut supervisor = Supervisor {
            launch,
            profile,
            cluster: Cluster::local(launch.workers.get()).map_err(cannot("choose addresses"))?,
            culprits: Culprits::new().map_err(cannot("make a pipe"))?,
            feed,
            workers: Vec::new(),
            former: Vec::new(),
            ends: Ends::new().map_err(cannot("watch workers"))?,
            stage: Stage::Running,
            deadline,
            restarts: 0,
            awaited: None,
            succeeded: false,
            asked: false,
            report: Report {
                outcome: Outcome::Done,
                killed: Vec::new(),
                left: Vec::new(),
                unread: false,
                profiled: None,
            },
        };
        for index in 0..launch.workers.get() {
            let worker = supervisor.begin(index, 0)?;
            supervisor.workers.push(worker);
        }
        Ok(supervisor)
    }

    /// Waits until all workers have ended, or the rest are left to the system.
    pub(super) fn supervise(mut self, events: &Receiver<Event>) -> Report {
        // One may have ended before its `SIGCHLD` could be heard.
        self.collect();
        while !self.running().is_empty() {
            let until = match self.stage {
                Stage::Running => self.deadline,
                Stage::Awaiting { until } => Some(until),
                Stage::Asked { kill_at } => Some(kill_at),
                Stage::Killed { leave_at } => Some(leave_at),
            };
            match next(events, until) {
                Some(Event::Signal(SIGCHLD)) => self.collect(),
                Some(Event::Signal(signal)) => self.forward(signal),
                Some(Event::Refused(why)) => {
                    self.report.refused(&why);
                    if let Stage::Running = self.stage {
                        self.ask();
                    }
                }
                Some(Event::Drained) => unreachable!("output is passed on until `run` says that it ends"),
                None => match self.stage {
                    Stage::Running => self.time_is_up(),
                    Stage::Awaiting { .. } => self.ask(),
                    Stage::Asked { .. } => {
                        self.report.killed = self.running();
                        self.kill();
                    }
                    Stage::Killed { .. } => {
                        self.report.left = self.running();
                        break;
                    }
                },
            }
        }
        // Workers that still ran at the last failure have ended well, and nobody told them to end.
        if self.succeeded
            && matches!(self.stage, Stage::Running)
            && matches!(self.report.outcome, Outcome::Failed { .. })
        {
            self.report.outcome = Outcome::Done;
        }
        self.report
    }

    /// Starts the worker with this index, after so many others in its place.
    fn begin(&mut self, index: usize, restarts: usize) -> Result<Worker, StartError> {
        let environment = self.environment(index, restarts);
        let mut worker = Worker::start(index, self.launch, &environment, self.profile)?;
        let cannot = |source| StartError::Launcher { doing: "watch a worker", source };
        self.ends.watch(&worker).map_err(cannot)?;
        if self.launch.print_environment {
            let variables: Vec<String> =
                environment.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
            self.feed.say(&format!("worker {index} (pid {}): {}", worker.pid(), variables.join(" ")));
        }
        self.feed.add(worker.streams());
        Ok(worker)
    }

    fn environment(&self, index: usize, restarts: usize) -> Environment {
        let mut environment = vec![
            ("TF_CONFIG", self.cluster.tf_config(index)),
            ("CONSONANCE_JOB", self.cluster.job().to_owned()),
            (VARIABLE, self.culprits.path()),
        ];
        environment.extend(self.launch.replicas.map(|replicas| ("CONSONANCE_REPLICAS", replicas.to_string())));
        environment.extend(self.cluster.ranks(index));
        environment.push(("TORCHELASTIC_RESTART_COUNT", restarts.to_string()));
        environment.push(("TORCHELASTIC_MAX_RESTARTS", self.launch.max_restarts.to_string()));
        environment
    }

    /// Returns the workers that have not ended, in order.
    fn running(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&index| self.workers[index].end.is_none()).collect()
    }

    /// Finds the workers that have ended.
    fn collect(&mut self) {
        let mut ended: Vec<Ended> = self.workers.iter_mut().filter_map(Worker::look).filter_map(ended_as).collect();
        let order = self.ends.order();
        ended.sort_by_key(|worker| order.iter().position(|&pid| pid == worker.pid).unwrap_or(usize::MAX));
        let Some(last) = ended.last() else { return };
        self.succeeded = last.end == End::Status(0);
        // Among workers that are found ended together, one that a signal killed counts as the
        // first: the others have lost it, perhaps before its end was noted.
        ended.sort_by_key(|worker| !matches!(worker.end, End::Signal(_)));
        for worker in ended {
            if worker.end != End::Status(0) {
                self.failed(worker);
            } else if self.awaited == Some(worker.pid) {
                self.settle(None);
            }
        }
    }

    /// Names the worker at fault if this failure is the first, and replaces the worker, ends the
    /// others or lets them go on.
    fn failed(&mut self, ended: Ended) {
        if self.awaited == Some(ended.pid) {
            self.settle(Some(ended));
        } else if let (Stage::Running, Outcome::Done) = (self.stage, &self.report.outcome) {
            self.report.outcome = ended.outcome();
            let culprit = self.culprits.of(ended.pid);
            let culprit = culprit.and_then(|pid| self.workers.iter().find(|worker| worker.pid() == pid));
            match culprit.map(|worker| (worker.pid(), worker.end.is_some(), ended_as(worker))) {
                Some((pid, false, _)) => self.awaited = Some(pid),
                Some((_, true, Some(culprit))) if culprit.end != End::Status(0) => {
                    self.report.outcome = culprit.outcome();
                }
                _ => {}
            }
        }
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        let Launch { max_restarts, keep_going, .. } = *self.launch;
        if self.restarts < max_restarts && !self.asked {
            return self.replace(ended);
        }
        let others_run = !self.running().is_empty();
        let without = if max_restarts > 0 { ", and no restart is left" } else { "" };
        match (keep_going, self.awaited) {
            (true, _) if others_run => self.feed.say(&format!("{ended}{without}; the others go on")),
            (true, _) => {}
            (false, None) => self.ask(),
            // The others have nothing left to do with it, but it would end by our signal, and not
            // say what it failed of.
            (false, Some(_)) => self.stage = Stage::Awaiting { until: Instant::now() + GRACE },
        }
    }

    /// Ends the wait for the process that the first failure blames: it has failed, or succeeded.
    fn settle(&mut self, culprit: Option<Ended>) {
        self.awaited = None;
        if let (Some(culprit), Outcome::Failed { .. }) = (culprit, &self.report.outcome) {
            self.report.outcome = culprit.outcome();
        }
        if let Stage::Awaiting { .. } = self.stage {
            self.ask();
        }
    }

    /// Starts another process in the place of a worker that failed.
    fn replace(&mut self, ended: Ended) {
        let index = ended.worker;
        // What the lost process started would disturb its replacement.
        self.workers[index].signal(Signal::KILL);
        let earlier = self.former.iter().filter(|former| former.index == index).count();
        self.restarts += 1;
        match self.begin(index, earlier + 1) {
            Ok(worker) => {
                let (pid, restarts, max) = (worker.pid(), self.restarts, self.launch.max_restarts);
                self.feed.say(&format!("{ended}; pid {pid} replaces it (restart {restarts} of {max})"));
                self.former.push(mem::replace(&mut self.workers[index], worker));
            }
            Err(error) => {
                self.feed.say(&format!("{ended}; it is not replaced: {error}"));
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
        let timeout = self.launch.timeout.unwrap_or_default();
        self.report.outcome = Outcome::TimedOut { timeout, running: self.running() };
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

impl Ended {
    fn outcome(self) -> Outcome {
        let Ended { worker, pid, end } = self;
        Outcome::Failed { worker, pid, end }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended { worker, pid, end } = self;
        write!(f, "worker {worker} (pid {pid}): {end}")
    }
}

/// Returns how a worker ended, if it has.
fn ended_as(worker: &Worker) -> Option<Ended> {
    worker.end.map(|end| Ended { worker: worker.index, pid: worker.pid(), end })
}

/// Quotes a value for a shell.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.:_-".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}
