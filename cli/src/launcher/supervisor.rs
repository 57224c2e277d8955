//! Waits for the workers of a launch, replaces those that are lost, and ends them.

use super::{
    Event, GRACE, Launch, Outcome, Report, StartError,
    cluster::Cluster,
    failure::{Failure, Unmet, WorkerState},
    hosts::{self, Host, Hosts},
    inbox::{Inbox, Named},
    next,
    output::Feed,
    profile::Profile,
    restart::{Due, Row},
    task::{Role, Task},
    worker::{End, Ended, Ends, Environment, Worker},
};
use consonance_kernels::os::{
    launcher::VARIABLE,
    process_state::{ProcessState, process_state},
};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use std::{
    mem,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

/// The time between two looks, after a worker has ended, whether another waits for it in vain.
const LOOKS: Duration = Duration::from_millis(250);

/// The time that it must do so. The one that ended may have joined and left at once, and the
/// other be about to find that out.
const IN_VAIN: Duration = Duration::from_secs(1);

/// The time between two reads of the workers' lines. They drop what a full pipe does not take.
const READS: Duration = Duration::from_secs(1);

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
    inbox: Inbox,
    feed: Feed,
    /// The workers, by their place among the indices of the launch.
    workers: Vec<Worker>,
    /// Workers that were replaced.
    former: Vec<Worker>,
    /// The hosts that this machine plays. They end after the workers.
    hosts: Hosts,
    ends: Ends,
    stage: Stage,
    /// The end of the timeout.
    deadline: Option<Instant>,
    /// The number of workers that were replaced, or are to be.
    restarts: usize,
    /// For each of them, its replacements in a row.
    rows: Vec<Row>,
    /// The workers that are to be replaced.
    due: Vec<Due>,
    /// The first worker that failed.
    first: Option<Ended>,
    /// The worker that its error names.
    culprit: Option<Named>,
    /// The process that the first failure blames, while it has not ended.
    awaited: Option<i32>,
    /// A worker that has ended although another one waits for it, and since when.
    unmet: Option<(Unmet, Instant)>,
    /// Whether such a worker was named, and the others go on.
    unmet_named: bool,
    /// Whether the worker that ended last succeeded.
    succeeded: bool,
    /// Whether the chief has ended with status 0, which ends the launch.
    finished: bool,
    /// Whether the workers have got a signal that asks them to end.
    asked: bool,
    report: Report,
}

impl<'l> Supervisor<'l> {
    /// Starts the workers.
    pub(super) fn start(
        launch: &'l Launch,
        profile: Option<&'l Profile>,
        feed: Feed,
        deadline: Option<Instant>,
        cluster: Cluster,
    ) -> Result<Supervisor<'l>, StartError> {
        let cannot = |doing| move |source| StartError::Launcher { doing, source };
        let size = launch.size();
        let mut inbox = Inbox::new(launch.hosts_of_tasks()).map_err(cannot("make a pipe"))?;
        let hosts = launch.hosts.map(|hosts| Hosts::start(hosts.get(), &inbox.path(), launch.cable)).transpose()?;
        if hosts.is_some() {
            inbox.set_path(hosts::PIPE);
        }
        let mut supervisor = Supervisor {
            launch,
            profile,
            cluster,
            inbox,
            feed,
            workers: Vec::new(),
            former: Vec::new(),
            hosts: hosts.unwrap_or_else(Hosts::none),
            ends: Ends::new().map_err(cannot("watch workers"))?,
            stage: Stage::Running,
            deadline,
            restarts: 0,
            rows: vec![Row::default(); size],
            due: Vec::new(),
            first: None,
            culprit: None,
            awaited: None,
            unmet: None,
            unmet_named: false,
            succeeded: false,
            finished: false,
            asked: false,
            report: Report {
                outcome: Outcome::Done,
                killed: Vec::new(),
                left: Vec::new(),
                unread: false,
                profiled: None,
            },
        };
        for index in launch.indices() {
            let worker = supervisor.begin(index, 0)?;
            supervisor.workers.push(worker);
        }
        Ok(supervisor)
    }

    /// Waits until all workers have ended, or the rest are left to the system.
    pub(super) fn supervise(mut self, events: &Receiver<Event>) -> Report {
        // One may have ended before its `SIGCHLD` could be heard.
        self.collect();
        while !self.running().is_empty() || !self.due.is_empty() {
            let until = match self.stage {
                Stage::Running => self.next_look(),
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
                // Of another host, whose workers have ended before these.
                Some(Event::HandedOver) => {}
                Some(Event::Drained) => unreachable!("output is passed on until `run` says that it ends"),
                None => match self.stage {
                    Stage::Running => self.look(),
                    Stage::Awaiting { .. } => {
                        self.find_fault();
                        self.ask();
                    }
                    Stage::Asked { .. } => {
                        self.report.killed = self.tasks_running();
                        self.kill();
                    }
                    Stage::Killed { .. } => {
                        self.report.left = self.tasks_running();
                        break;
                    }
                },
            }
        }
        // Workers that still ran at the last failure have ended well, and nobody told them to end.
        let has_recovered = match self.launch.servers {
            None => self.succeeded && matches!(self.stage, Stage::Running),
            Some(_) => self.finished,
        };
        if has_recovered && matches!(self.report.outcome, Outcome::Failed(_)) {
            self.report.outcome = Outcome::Done;
        }
        self.report
    }

    /// Starts the worker with this index, after so many others in its place.
    fn begin(&mut self, index: usize, restarts: usize) -> Result<Worker, StartError> {
        let environment = self.environment(index, restarts);
        let running = self.running();
        self.inbox.forget(index, &running);
        let host = self.hosts.get(self.inbox.host(index));
        let task = self.launch.task(index);
        let mut worker = Worker::start(task, self.launch, host, &environment, self.profile)?;
        let cannot = |source| StartError::Launcher { doing: "watch a worker", source };
        self.ends.watch(&worker).map_err(cannot)?;
        let own_pid = host.map_or(Some(worker.pid()), |_| Host::inner(worker.pid()));
        own_pid.into_iter().for_each(|pid| self.inbox.begin(index, pid));
        if self.launch.print_environment {
            let variables: Vec<String> =
                environment.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
            self.feed.say(&format!("{task} (pid {}): {}", worker.pid(), variables.join(" ")));
        }
        self.feed.add(worker.streams());
        Ok(worker)
    }

    fn environment(&self, index: usize, restarts: usize) -> Environment {
        let mut environment = match self.launch.servers {
            None => self.cluster.variables(index),
            Some(_) => self.cluster.variables_of_role(self.launch.task(index), self.launch.workers_of_all()),
        };
        environment.push((VARIABLE, self.inbox.post(index).to_string()));
        environment.extend(self.launch.replicas.map(|replicas| ("CONSONANCE_REPLICAS", replicas.to_string())));
        environment.push(("TORCHELASTIC_RESTART_COUNT", restarts.to_string()));
        environment.push(("TORCHELASTIC_MAX_RESTARTS", self.launch.max_restarts.to_string()));
        environment
    }

    /// Returns the workers that have not ended, in order.
    fn running(&self) -> Vec<usize> {
        self.workers.iter().filter(|worker| worker.end.is_none()).map(|worker| worker.task.index).collect()
    }

    fn tasks_running(&self) -> Vec<Task> {
        self.running().into_iter().map(|index| self.launch.task(index)).collect()
    }

    /// Returns the place of a worker of this launch among its workers.
    fn place(&self, index: usize) -> usize {
        index - self.launch.indices().start
    }

    /// Finds the workers that have ended.
    fn collect(&mut self) {
        let mut ended: Vec<Ended> =
            self.workers.iter_mut().filter_map(Worker::look).filter_map(Worker::ended).collect();
        let order = self.ends.order();
        ended.sort_by_key(|worker| order.iter().position(|&pid| pid == worker.pid).unwrap_or(usize::MAX));
        let Some(last) = ended.last() else { return };
        self.succeeded = last.end == End::Status(0);
        // Among workers that are found ended together, one that a signal killed counts as the
        // first: the others have lost it, perhaps before its end was noted.
        ended.sort_by_key(|worker| !matches!(worker.end, End::Signal(_)));
        for worker in ended {
            if self.awaited == Some(worker.pid) {
                self.find_fault();
                if let (Stage::Awaiting { .. }, None) = (self.stage, self.awaited) {
                    self.ask();
                }
            }
            if worker.end != End::Status(0) {
                self.failed(worker);
            } else if worker.worker.role == Role::Chief {
                self.finish();
            }
        }
    }

    /// Lets the others end, since the chief has done what there was to do.
    fn finish(&mut self) {
        if let Stage::Running = self.stage {
            self.finished = true;
            self.awaited = None;
            self.due.clear();
            self.stage = Stage::Awaiting { until: Instant::now() + GRACE };
        }
    }

    /// Finds the worker at fault if this failure is the first, and replaces the worker, ends the
    /// others or lets them go on.
    fn failed(&mut self, ended: Ended) {
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        // The launch ends with its chief, whatever failed before and was replaced.
        let is_chief = ended.worker.role == Role::Chief;
        if is_chief || self.report.outcome == Outcome::Done {
            (self.first, self.culprit) = (Some(ended), None);
            self.find_fault();
        }
        if is_chief {
            return self.ask();
        }
        let Launch { max_restarts, keep_going, .. } = *self.launch;
        if self.restarts < max_restarts && !self.asked {
            return self.replace(ended.worker.index, ended.to_string());
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

    /// Finds the worker at fault for the first failure, as far as it can be known now. If that one
    /// runs, its end is awaited, which may tell more.
    fn find_fault(&mut self) {
        let Some(first) = self.first else { return };
        // A replacement does not answer for what was before.
        if self.workers[self.place(first.worker.index)].pid() == first.pid {
            self.culprit = self.inbox.culprit_of(first.worker.index).or(self.culprit);
        }
        let own = self.launch.indices();
        let is_own = |named: &Named| own.contains(&named.worker);
        let culprit = self.culprit.filter(is_own);
        let named = culprit.map_or(first.worker, |named| self.launch.task(named.worker));
        let (pid, state) = match named == first.worker {
            true => (first.pid, WorkerState::Ended(first.end)),
            false => {
                let worker = &self.workers[self.place(named.index)];
                (worker.pid(), state_of(worker))
            }
        };
        self.awaited = (state == WorkerState::Running).then_some(pid);
        let failure = Failure::new(named, pid, state, culprit.map(|named| named.blame), first);
        let elsewhere = self.culprit.filter(|named| !is_own(named)).map(|named| (named.worker, named.blame));
        self.report.outcome = Outcome::Failed(Failure { elsewhere, ..failure });
    }

    /// Replaces the worker of this index, which has ended, after a pause if its last processes have
    /// failed at once. `why` says in words which worker it is and how it ended.
    fn replace(&mut self, index: usize, why: String) {
        let place = self.place(index);
        let worker = &self.workers[place];
        // Children of the lost process would disturb its replacement.
        worker.signal(Signal::KILL);
        self.restarts += 1;
        let at = Instant::now() + self.rows[place].pause(worker.begun.elapsed());
        self.due.push(Due { at, worker: index, why, restart: self.restarts });
        self.replace_due();
    }

    /// Starts other processes in the places of the workers that are to be replaced now.
    fn replace_due(&mut self) {
        let now = Instant::now();
        for Due { worker: index, why, restart, .. } in self.due.extract_if(.., |due| due.at <= now).collect::<Vec<_>>()
        {
            let earlier = self.former.iter().filter(|former| former.task.index == index).count();
            match self.begin(index, earlier + 1) {
                Ok(worker) => {
                    let (pid, max) = (worker.pid(), self.launch.max_restarts);
                    self.feed.say(&format!("{why}; pid {pid} replaces it (restart {restart} of {max})"));
                    let place = self.place(index);
                    self.former.push(mem::replace(&mut self.workers[place], worker));
                }
                Err(error) => {
                    self.feed.say(&format!("{why}; it is not replaced: {error}"));
                    return self.ask();
                }
            }
        }
    }

    /// Returns when the launcher has something to do although it got no signal.
    fn next_look(&self) -> Option<Instant> {
        let looks = self.workers.iter().any(|worker| worker.end.is_some()) && !self.unmet_named;
        let look = Some(Instant::now() + if looks { LOOKS } else { READS });
        self.due.iter().map(|due| due.at).chain(self.deadline).chain(look).min()
    }

    /// Does what is due while the workers run.
    fn look(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return self.time_is_up();
        }
        self.inbox.read();
        self.replace_due();
        if self.unmet_named {
            return;
        }
        let (unmet, since) = (self.find_unmet(), self.unmet.map_or(now, |(_, since)| since));
        self.unmet = unmet.map(|unmet| (unmet, since));
        match unmet {
            Some(unmet) if since + IN_VAIN <= now => self.miss(unmet),
            _ => {}
        }
    }

    /// Returns a worker that has ended although another one waits for it. The first group needs all
    /// workers; a later one the members that are left, which find out themselves who has ended.
    fn find_unmet(&mut self) -> Option<Unmet> {
        // A worker that is to be replaced may come.
        let due: Vec<usize> = self.due.iter().map(|due| due.worker).collect();
        let ended: Vec<Ended> = self.workers.iter().filter_map(Worker::ended).collect();
        let is_last = ended.len() + 1 == self.workers.len() && due.is_empty();
        let ended = ended.into_iter().find(|ended| !due.contains(&ended.worker.index))?;
        let waiting = self.running().into_iter().find(|&worker| self.inbox.waits(worker))?;
        let had_joined = self.inbox.has_joined(ended.worker.index);
        // The one that ended may have joined this one, which has not run since. Nobody is left to
        // join a replacement.
        let is_alone = is_last && self.former.iter().any(|former| former.task.index == waiting);
        (is_alone || !self.inbox.has_met()).then_some(Unmet { ended, had_joined, waiting: self.launch.task(waiting) })
    }

    /// Treats a worker for which another one waits in vain as one that failed.
    fn miss(&mut self, unmet: Unmet) {
        let Launch { max_restarts, keep_going, .. } = *self.launch;
        if self.restarts < max_restarts && !self.asked {
            self.unmet = None;
            self.replace(unmet.ended.worker.index, unmet.to_string());
        } else if keep_going {
            self.unmet_named = true;
            self.feed.say(&format!("{unmet}; the others go on"));
        } else {
            self.report.outcome = Outcome::Unmet(unmet);
            self.ask();
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
        if self.asked {
            self.due.clear();
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signal(signal);
        }
    }

    fn time_is_up(&mut self) {
        let timeout = self.launch.timeout.unwrap_or_default();
        self.report.outcome = Outcome::TimedOut { timeout, running: self.tasks_running() };
        self.ask();
    }

    /// Asks all workers to end, unless they have been asked before: they may be about to end, and a
    /// second signal would disturb them.
    fn ask(&mut self) {
        if !self.asked {
            self.signal(Signal::TERM);
            self.asked = true;
        }
        // An end by our signal tells nothing.
        self.awaited = None;
        self.due.clear();
        self.stage = Stage::Asked { kill_at: Instant::now() + GRACE };
    }

    fn kill(&mut self) {
        self.awaited = None;
        self.due.clear();
        self.signal(Signal::KILL);
        self.stage = Stage::Killed { leave_at: Instant::now() + GRACE };
    }

    fn signal(&self, signal: Signal) {
        for worker in &self.workers {
            worker.signal(signal);
        }
    }
}

fn state_of(worker: &Worker) -> WorkerState {
    match worker.end {
        Some(end) => WorkerState::Ended(end),
        None if process_state(worker.pid().unsigned_abs()) == ProcessState::Stopped => WorkerState::Stopped,
        None => WorkerState::Running,
    }
}

/// Quotes a value for a shell.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.:_-".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}
