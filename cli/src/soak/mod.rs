//! `consonance soak`: processes that make random calls while they are stopped, killed and replaced.
//! Every result is compared with the spec.
//!
//! The parent starts the processes ([`Worker`]). They meet as a group over shared memory, and make
//! the calls of one round after another ([`Plan`]). The parent carries out the fault of a round as
//! soon as the affected process reports that it begins the round. It judges whether each error has
//! such a fault as its reason. After an error the processes form the next group, with a replacement
//! for each process that was killed.
//!
//! `grains/` has trainings on numbers of replicas that change, `servers/` jobs with parameter
//! servers.

mod draw;
mod grains;
mod servers;
mod plan;
mod stop;
mod worker;
mod messages;
mod process;

pub use grains::{GrainSoak, GrainWorker, Schedules};
pub use plan::Plan;
pub use servers::{Jobs, ServerRole, ServerSoak};
pub use worker::Worker;

use crate::{
    executable,
    launcher::{Cable, hosts::Hosts},
};
use consonance::raw::EXTENSIONS;
use consonance_kernels::shm::Segment;
use plan::{Fault, What};
use process::{Event, Process};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, io,
    path::Path,
    process::Command,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};
use worker::Told;

/// A process that reports nothing for this long hangs. It is longer than every deadline of a
/// process.
const HANGS: Duration = Duration::from_secs(60);

/// The time between two checks for due actions and for hangs, and between two reports of progress.
const LOOKS: Duration = Duration::from_millis(100);
const TELLS: Duration = Duration::from_millis(500);

/// The number of calls of each rank that a failure shows.
const CALLS: usize = 8;

/// A soak.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The calls and faults.
    pub plan: Plan,
    /// The cables of the hosts, if there are some.
    pub cable: Option<Cable>,
    /// The first round, from 1.
    pub round: u64,
    /// The duration.
    pub time: Duration,
}

/// The progress of a soak.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The last round that any process began.
    pub round: u64,
    /// The bytes that all ranks have contributed.
    pub bytes: u64,
    /// The number of processes that were killed.
    pub kills: u64,
    /// The number of processes that were stopped and went on in time.
    pub pauses: u64,
    /// The number of processes that were stopped past the deadline of the others.
    pub stops: u64,
    /// The number of times that a process formed a group with others again, after an error.
    pub reforms: u64,
    /// The number of processes that took themselves for cut off from one that was killed.
    pub cut_offs: u64,
    /// The longest time from a kill, or from the beginning of a later call, until the rank got its
    /// error.
    pub worst_latency: Duration,
}

/// A failure of a soak.
#[derive(Debug)]
pub struct Failure {
    /// The round, the process and the failure.
    pub what: String,
    /// The arguments of the command that repeat it.
    pub again: String,
    /// The last calls of all ranks.
    pub calls: String,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { round, bytes, kills, pauses, stops, reforms, cut_offs, worst_latency } = self;
        write!(
            f,
            "round {round}: {} MiB, {kills} kills, {pauses} pauses, {stops} stops, {reforms} reforms, {cut_offs} cut off, worst error after {:.1} ms",
            bytes >> 20,
            worst_latency.as_secs_f64() * 1e3
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { what, again, calls } = self;
        write!(f, "{what}\nto repeat it: consonance soak {again}\n{calls}")
    }
}

impl Soak {
    /// Runs the soak. Calls `tell` with the progress at intervals.
    ///
    /// # Errors
    /// The first failure. No process is left.
    pub fn run(&self, tell: impl FnMut(&Progress)) -> Result<Progress, Failure> {
        let (sender, events) = mpsc::channel();
        let hosts = match self.plan.hosts {
            1 => Ok(Hosts::none()),
            // No process of a soak writes to a launcher.
            hosts => Hosts::start(hosts, Path::new("/dev/null"), self.cable),
        };
        let mut run = SoakRun::new(self, executable::command, sender);
        run.hosts = hosts.map_err(|error| run.failure(error.to_string()))?;
        run.run(&events, tell)
    }
}

/// An action to carry out at a given time.
#[derive(Clone, Copy)]
enum Action {
    /// Kill the process with this number, in this round.
    Kill(u64, u64),
    /// Kill the process that has this index then.
    KillNext(usize),
    Pause(u64, Duration),
    GoOn(u64),
    Stop(u64, u64),
}

/// A stopped process, and the others that have not given it up yet. It goes on once all of them
/// have.
struct Wait {
    stopped: u64,
    others: HashSet<u64>,
}

/// Makes the command that starts a process of this program.
type Starter = fn() -> io::Result<Command>;

struct SoakRun<'s> {
    soak: &'s Soak,
    consonance: Starter,
    hosts: Hosts,
    sender: Sender<Event>,
    /// The number of processes started so far.
    started: u64,
    /// The processes that are alive.
    processes: Vec<Process>,
    actions: Vec<(Instant, Action)>,
    /// The last round whose fault was prepared, and the number of the affected process. Its
    /// replacement begins the round again, and is armed again.
    armed: (u64, u64),
    /// The first round of a replacement process.
    next: u64,
    /// The time of each kill in ns, by the process id on its host.
    killed: HashMap<u32, u64>,
    waits: Vec<Wait>,
    ending: bool,
    /// The bytes that ended processes have contributed.
    bytes: u64,
    progress: Progress,
}

impl<'s> SoakRun<'s> {
    fn new(soak: &'s Soak, consonance: Starter, sender: Sender<Event>) -> SoakRun<'s> {
        SoakRun {
            soak,
            consonance,
            hosts: Hosts::none(),
            sender,
            started: 0,
            processes: Vec::new(),
            actions: Vec::new(),
            armed: (0, 0),
            next: soak.round,
            killed: HashMap::new(),
            waits: Vec::new(),
            ending: false,
            bytes: 0,
            progress: Progress { round: soak.round, ..Progress::default() },
        }
    }

    fn run(mut self, events: &Receiver<Event>, mut tell: impl FnMut(&Progress)) -> Result<Progress, Failure> {
        let begin = Instant::now();
        let mut told = begin;
        for index in 0..self.soak.plan.processes {
            self.start(index)?;
        }
        while !self.processes.is_empty() {
            if !self.ending && begin.elapsed() >= self.soak.time {
                self.begin_to_end();
            }
            self.act()?;
            if told.elapsed() >= TELLS {
                told = Instant::now();
                tell(&self.count());
            }
            if let Some(hangs) =
                self.processes.iter().find(|process| !process.stopped && process.heard.elapsed() > HANGS)
            {
                let name = name(hangs);
                return Err(self.failure(format!("{name} has reported nothing for {} s: it hangs", HANGS.as_secs())));
            }
            let next = self.actions.iter().map(|(at, _)| at.saturating_duration_since(Instant::now())).min();
            match events.recv_timeout(next.unwrap_or(LOOKS).min(LOOKS)) {
                Ok(event) => self.hear(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this has a sender"),
            }
        }
        Ok(self.count())
    }

    fn count(&mut self) -> Progress {
        let living: u64 = self.processes.iter().map(|process| process.bytes).sum();
        self.progress.bytes = self.bytes + living;
        self.progress.clone()
    }

    fn start(&mut self, index: usize) -> Result<(), Failure> {
        self.started += 1;
        let host = self.hosts.get(index % self.soak.plan.hosts);
        let command = process::command(&self.soak.plan, self.consonance, host, (index, self.next));
        let started =
            command.and_then(|command| Process::start(command, host, (self.started, index), self.sender.clone()));
        match started {
            Ok(process) => {
                self.processes.push(process);
                Ok(())
            }
            Err(error) => Err(self.failure(format!("a process cannot be started: {error}"))),
        }
    }

    /// Asks all processes to end. A process that is in no group waits for others, which may end
    /// first: kills it.
    fn begin_to_end(&mut self) {
        self.ending = true;
        self.processes.iter_mut().for_each(Process::ask_to_end);
        let forming: Vec<u64> =
            self.processes.iter().filter(|process| !process.formed).map(|process| process.number).collect();
        forming.into_iter().for_each(|number| _ = self.remove(number));
    }

    fn find(&mut self, number: u64) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.number == number)
    }

    /// Kills a process, if it is alive, and returns its index.
    fn remove(&mut self, number: u64) -> Option<usize> {
        let at = self.processes.iter().position(|process| process.number == number)?;
        let mut process = self.processes.swap_remove(at);
        self.killed.insert(process.inner, stop::now());
        process.kill();
        self.bytes += process.bytes;
        self.gave_up(number);
        Some(process.index)
    }

    /// Notes that the process with this number no longer waits for a stopped one: it has an error,
    /// or is gone. If it is stopped itself, it had its error before.
    fn gave_up(&mut self, number: u64) {
        self.waits.iter_mut().for_each(|wait| _ = wait.others.remove(&number));
        let over =
            self.waits.extract_if(.., |wait| wait.others.is_empty() || wait.stopped == number).collect::<Vec<_>>();
        for Wait { stopped, .. } in over {
            self.find(stopped).map(Process::go_on);
        }
    }

    /// Carries out the actions that are due.
    fn act(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let due: Vec<(Instant, Action)> = self.actions.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, action) in due {
            match action {
                Action::Kill(number, round) => {
                    if self.find(number).is_some() {
                        // A replacement that began this round again would repeat it until another
                        // kill.
                        self.next = self.next.max(round + 1);
                        self.kill(number)?;
                    }
                }
                Action::KillNext(index) => {
                    let next =
                        self.processes.iter().find(|process| process.index == index).map(|process| process.number);
                    // While the soak ends, this kill is left out: no process waits for it any more.
                    if let Some(number) = next.filter(|_| !self.ending) {
                        self.kill(number)?;
                    }
                }
                Action::Pause(number, time) => {
                    if let Some(process) = self.find(number) {
                        process.stop();
                        self.progress.pauses += 1;
                        self.actions.push((now + time, Action::GoOn(number)));
                    }
                }
                // A stop of the same process may have begun before the pause of a short round ends.
                // The others wait for the stop.
                Action::GoOn(number) if self.waits.iter().any(|wait| wait.stopped == number) => {}
                Action::GoOn(number) => _ = self.find(number).map(Process::go_on),
                Action::Stop(number, round) => {
                    // Another fault may have ended the round.
                    if self.find(number).is_none_or(|process| process.lost >= round) {
                        continue;
                    }
                    // A process in no group cannot give the victim up: it needs the victim to form
                    // a group.
                    let others = self.processes.iter().filter(|other| other.number != number && other.formed);
                    let others: HashSet<u64> =
                        others.filter(|other| other.lost < round).map(|other| other.number).collect();
                    if others.is_empty() {
                        // The others have not reported yet that they are in a group.
                        self.actions.push((now + LOOKS, action));
                        continue;
                    }
                    self.find(number).map(Process::stop);
                    self.progress.stops += 1;
                    self.waits.push(Wait { stopped: number, others });
                }
            }
        }
        Ok(())
    }

    fn kill(&mut self, number: u64) -> Result<(), Failure> {
        let Some(index) = self.remove(number) else { return Ok(()) };
        self.progress.kills += 1;
        if self.ending { Ok(()) } else { self.start(index) }
    }

    fn hear(&mut self, Event { number, told }: Event) -> Result<(), Failure> {
        // A process that was killed is only heard if it reports a failure.
        let known = self.find(number).map(|process| {
            process.heard = Instant::now();
            name(process)
        });
        match (told, known) {
            (Some(Ok(Told::Wrong(round, text))), known) => {
                if round > 0 {
                    self.progress.round = round;
                }
                let name = known.unwrap_or_else(|| "a process that was killed".to_owned());
                Err(self.failure(format!("{name}: {text}")))
            }
            (_, None) => Ok(()),
            (Some(Ok(Told::Formed)), _) => {
                let process = self.find(number).expect("known");
                process.formed = true;
                self.progress.reforms += u64::from(process.lost > 0);
                Ok(())
            }
            (Some(Ok(Told::Round(round, bytes))), _) => {
                self.find(number).expect("known").bytes = bytes;
                self.progress.round = self.progress.round.max(round);
                self.next = self.next.max(round);
                self.arm(number, round);
                Ok(())
            }
            (Some(Ok(Told::Lost { round, begin, end, text })), Some(name)) => {
                self.judge_loss(&name, round, (begin, end), &text)?;
                self.progress.round = self.progress.round.max(round);
                let process = self.find(number).expect("known");
                (process.formed, process.lost) = (false, round);
                self.gave_up(number);
                if self.ending {
                    self.remove(number);
                }
                Ok(())
            }
            (Some(Ok(Told::CutOff(text))), Some(name)) => {
                // If a process is killed that had not read all of its link, the link ends by a
                // reset, and that is no proof of an end. It is rare.
                self.progress.cut_offs += 1;
                if self.progress.cut_offs > 1 + self.progress.kills / 10 {
                    return Err(self.failure(format!("{name}: {text}")));
                }
                let index = self.remove(number).expect("known");
                if self.ending { Ok(()) } else { self.start(index) }
            }
            (Some(Ok(Told::End(bytes))), _) if self.ending => {
                self.find(number).expect("known").bytes = bytes;
                self.remove(number);
                Ok(())
            }
            (Some(Ok(Told::End(_))), Some(name)) => Err(self.failure(format!("{name} ended too early"))),
            (Some(Err(line)), Some(name)) => Err(self.failure(format!("{name} wrote {line:?}, which is no report"))),
            (None, Some(name)) => {
                let end = self.find(number).expect("known").end();
                Err(self.failure(format!("{name} ended by itself: {end}")))
            }
        }
    }

    /// Prepares the fault of a round that the affected process begins.
    fn arm(&mut self, number: u64, round: u64) {
        let index = self.find(number).map(|process| process.index);
        let Some(Fault { victim, after, what }) = self.soak.plan.fault(round) else { return };
        if index != Some(victim) || self.armed == (round, number) {
            return;
        }
        self.armed = (round, number);
        let at = Instant::now() + after;
        let action = match what {
            What::Kill(next) => {
                if let Some((index, later)) = next {
                    self.actions.push((at + later, Action::KillNext(index)));
                }
                Action::Kill(number, round)
            }
            What::Pause(time) => Action::Pause(number, time),
            What::Stop => Action::Stop(number, round),
        };
        self.actions.push((at, action));
    }

    /// Checks that an error names a process that was killed. In a round in which a process is
    /// stopped, any loss is expected, such as a timeout.
    fn judge_loss(&mut self, name: &str, round: u64, (begin, end): (u64, u64), text: &str) -> Result<(), Failure> {
        let names = |pid: &u32| [",", ")", " on "].iter().any(|end| text.contains(&format!("process {pid}{end}")));
        let killed = self.killed.iter().find(|(pid, _)| text.contains("was lost") && names(pid));
        if let Some((_, &at)) = killed {
            let latency = Duration::from_nanos(end.saturating_sub(begin.max(at)));
            self.progress.worst_latency = self.progress.worst_latency.max(latency);
            return Ok(());
        }
        if self.soak.plan.fault(round).is_some_and(|fault| fault.what == What::Stop) {
            return Ok(());
        }
        self.progress.round = round;
        Err(self.failure(format!("{name} has an error without a reason: {text}")))
    }

    fn failure(&self, what: String) -> Failure {
        let round = self.progress.round;
        let again = self.soak.plan.again(self.soak.cable, round);
        let mut groups = BTreeMap::new();
        for process in &self.processes {
            match Segment::inspect(process.pid()) {
                Ok(all) => {
                    groups.extend(all.into_iter().map(|group| (group.group.to_string(), group.text(CALLS, EXTENSIONS))))
                }
                Err(error) => _ = groups.insert(name(process), format!("{}: {error}", name(process))),
            }
        }
        let calls = groups.into_values().collect::<Vec<_>>().join("\n");
        Failure { what: format!("round {round}: {what}"), again, calls }
    }
}

fn name(process: &Process) -> String {
    format!("worker[{}], process {}", process.index, process.pid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_pause_does_not_end_a_stop() {
        let plan = Plan { seed: 1, processes: 3, replicas: 1, hosts: 1, faults: true };
        let soak = Soak { plan, cable: None, time: Duration::ZERO, round: 1 };
        let (sender, _events) = mpsc::channel();
        // Any program that does not end by itself.
        let mut state = SoakRun::new(&soak, || Ok(Command::new("yes")), sender);
        state.start(0).unwrap_or_else(|failure| panic!("{}", failure.what));
        state.find(1).expect("started").stop();
        state.waits.push(Wait { stopped: 1, others: HashSet::from([2]) });
        state.actions.push((Instant::now(), Action::GoOn(1)));
        state.act().unwrap_or_else(|failure| panic!("{}", failure.what));
        assert!(state.find(1).expect("started").stopped, "process 2 still waits for it");
        state.gave_up(2);
        assert!(!state.find(1).expect("started").stopped);
    }
}
