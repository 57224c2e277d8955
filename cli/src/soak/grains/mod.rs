//! `consonance soak --grains`: trainings whose processes are killed and replaced, and that are
//! resumed on other numbers of replicas. Each ends with the digest of an undisturbed training on
//! one replica.
//!
//! A [`Schedule`] is a training in legs. A leg has its own number of replicas, on threads of one
//! process or in several processes, and begins with the checkpoint of the leg before. The parent
//! kills a process at a random time after it reports the beginning of its step. If the leg says so,
//! another one takes its place; otherwise the rest goes on.

mod schedule;
mod training;
mod worker;

pub use worker::GrainWorker;

use super::{
    Failure, HANGS, LOOKS,
    process::{Event, Process},
    worker::Told,
};
use crate::executable;
use consonance::{MirroredStrategy, Result as Outcome};
use schedule::{Kind, Leg, STEPS, Schedule, grains};
use std::{
    env, fmt, fs, io,
    path::{Path, PathBuf},
    process,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};
use training::State;

/// A soak with grains.
#[derive(Clone, Copy, Debug)]
pub struct GrainSoak {
    /// The seed of everything random.
    pub seed: u64,
    /// The number of the first schedule.
    pub first: u64,
    /// The duration: no schedule begins after it.
    pub time: Duration,
    /// The number of schedules after which the soak ends earlier.
    pub most: u64,
}

/// The schedules so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedules {
    /// The number of schedules that are done.
    pub count: u64,
    /// The number of processes that were killed.
    pub kills: u64,
    /// The number of processes that joined others in the place of a killed one.
    pub joins: u64,
    /// The number of times that a training was resumed on another number of replicas.
    pub resizes: u64,
}

impl fmt::Display for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Schedules { count, kills, joins, resizes } = self;
        write!(f, "{count} schedules: {kills} kills, {joins} joins, {resizes} resizes")
    }
}

impl GrainSoak {
    /// Returns the number of grains.
    pub fn grains(&self) -> usize {
        grains(self.seed)
    }

    /// Runs schedules. Calls `tell` after each.
    ///
    /// # Errors
    /// The first failure. No process is left.
    pub fn run(&self, mut tell: impl FnMut(&Schedules)) -> Result<Schedules, Failure> {
        let (mut done, mut number) = (Schedules::default(), self.first);
        let failure = |number: u64, what: String| {
            let again = format!("--grains --seed {} --round {number} --schedules 1", self.seed);
            Failure { what: format!("schedule {number}: {what}"), again, calls: String::new() }
        };
        let undisturbed = self.undisturbed().map_err(|error| failure(number, error.to_string()))?;
        let folder = Folder::new().map_err(|error| failure(number, error.to_string()))?;
        let begin = Instant::now();
        while done.count < self.most && (done.count == 0 || begin.elapsed() < self.time) {
            let schedule = Schedule::draw(self.seed, number);
            let digests = &undisturbed[usize::from(schedule.kind == Kind::Sparse)];
            let checkpoint = folder.0.join(number.to_string());
            for (index, leg) in schedule.legs.iter().enumerate() {
                let names = Names { seed: self.seed, number, leg: index, checkpoint: &checkpoint };
                let run = LegRun::new(leg, names, digests[leg.steps.end as usize - 1], &mut done);
                run.run().map_err(|what| failure(number, format!("{what}, in leg {index}: {leg:?}")))?;
            }
            let sizes =
                schedule.legs.windows(2).map(|pair| [&pair[0], &pair[1]].map(|leg| leg.processes * leg.replicas));
            done.resizes += sizes.filter(|[before, after]| before != after).count() as u64;
            (done.count, number) = (done.count + 1, number + 1);
            // The file of a schedule that failed to save was not found.
            let _ = fs::remove_file(&checkpoint);
            tell(&done);
        }
        Ok(done)
    }

    /// Returns the digests after each step of undisturbed trainings on one replica, for each kind.
    fn undisturbed(&self) -> Outcome<Vec<Vec<u64>>> {
        let strategy = MirroredStrategy::builder(["cpu:0"]).grains(self.grains()).seed(self.seed).build()?;
        let train = |kind: Kind| {
            let mut state = State::new()?;
            let mut step = || state.step(&strategy, kind).and_then(|()| state.digest());
            (0..STEPS).map(|_| step()).collect::<Outcome<Vec<u64>>>()
        };
        Kind::ALL.into_iter().map(train).collect()
    }
}

/// A folder for checkpoints. Dropping it removes it.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> io::Result<Folder> {
        let path = env::temp_dir().join(format!("consonance-soak-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that stay do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The place of a leg.
#[derive(Clone, Copy)]
struct Names<'s> {
    seed: u64,
    number: u64,
    leg: usize,
    checkpoint: &'s Path,
}

/// A leg that runs.
struct LegRun<'s> {
    leg: &'s Leg,
    names: Names<'s>,
    /// The digest of an undisturbed training.
    digest: u64,
    done: &'s mut Schedules,
    sender: Sender<Event>,
    events: Receiver<Event>,
    processes: Vec<Process>,
    /// The number of processes that each index had before.
    lives: Vec<usize>,
    started: u64,
    /// The time at which a process with this number is killed.
    kills: Vec<(Instant, u64)>,
}

impl<'s> LegRun<'s> {
    fn new(leg: &'s Leg, names: Names<'s>, digest: u64, done: &'s mut Schedules) -> LegRun<'s> {
        let (sender, events) = mpsc::channel();
        let (processes, lives, kills) = (Vec::new(), vec![0; leg.processes], Vec::new());
        LegRun { leg, names, digest, done, sender, events, processes, lives, started: 0, kills }
    }

    /// Runs the leg to its end, or returns the reason why it fails.
    fn run(mut self) -> Result<(), String> {
        for index in 0..self.leg.processes {
            self.start(index)?;
        }
        let mut heard = Instant::now();
        while !self.processes.is_empty() {
            let now = Instant::now();
            for (_, number) in self.kills.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
                self.kill(number)?;
            }
            let next = self.kills.iter().map(|(at, _)| at.saturating_duration_since(now)).min();
            match self.events.recv_timeout(next.unwrap_or(LOOKS)) {
                Ok(event) => {
                    heard = Instant::now();
                    self.hear(event)?;
                }
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > HANGS => {
                    return Err(format!("no process has reported anything for {} s: they hang", HANGS.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this has a sender"),
            }
        }
        Ok(())
    }

    fn start(&mut self, index: usize) -> Result<(), String> {
        self.started += 1;
        let Names { seed, number, leg, checkpoint } = self.names;
        let numbers = [seed, number, leg as u64, index as u64, self.lives[index] as u64];
        let parent = process::id().to_string();
        let start = || {
            let mut command = executable::command()?;
            command.arg("soak-grains").args(numbers.map(|number| number.to_string())).arg(checkpoint).arg(&parent);
            command.env("CONSONANCE_JOB", format!("soak {parent}, leg {leg} of {number}"));
            Process::start(command, None, (self.started, index), self.sender.clone())
        };
        self.processes.push(start().map_err(|error| format!("a process cannot be started: {error}"))?);
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Option<Process> {
        let at = self.processes.iter().position(|process| process.number == number)?;
        Some(self.processes.swap_remove(at))
    }

    fn kill(&mut self, number: u64) -> Result<(), String> {
        let Some(mut process) = self.remove(number) else { return Ok(()) };
        process.kill();
        self.done.kills += 1;
        if self.leg.replaces {
            self.lives[process.index] += 1;
            self.done.joins += u64::from(self.leg.processes > 1);
            self.start(process.index)?;
        }
        Ok(())
    }

    fn hear(&mut self, Event { number, told }: Event) -> Result<(), String> {
        // A process that was killed is heard no more.
        let Some(process) = self.processes.iter().find(|process| process.number == number) else { return Ok(()) };
        let index = process.index;
        match told {
            Some(Ok(Told::Round(..))) => {
                let doom = self.leg.doom(index, self.lives[index]);
                let (_, after) = doom.ok_or_else(|| format!("worker[{index}] reports a step without a loss"))?;
                self.kills.push((Instant::now() + after, number));
                Ok(())
            }
            Some(Ok(Told::End(digest))) if digest == self.digest => {
                self.remove(number);
                Ok(())
            }
            Some(Ok(Told::End(digest))) => Err(format!(
                "worker[{index}] ends with digest {digest:016x}, an undisturbed training with {:016x}",
                self.digest
            )),
            Some(Ok(Told::Wrong(step, text))) => Err(format!("worker[{index}], step {step}: {text}")),
            Some(Ok(told)) => Err(format!("worker[{index}] reports {told}")),
            Some(Err(line)) => Err(format!("worker[{index}] wrote {line:?}, which is no report")),
            None => Err(format!("worker[{index}] ended by itself")),
        }
    }
}
