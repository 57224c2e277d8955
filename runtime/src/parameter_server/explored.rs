//! Every order of events of a small job: two workers, two servers, a few closures, and a few
//! disturbances at any point.
//!
//! The decisions are those of the runtime: its [`Schedule`], [`WorkerProcess`], [`Staged`] and
//! [`Generation`], and the bytes of its orders and answers. The [`World`] stands for the links, and
//! for the threads of `chief.rs`, `dispatch.rs`, `server.rs` and `worker.rs`, each of whose steps
//! is an event. A request to a server is on its way when its worker dies, and may still come. A
//! worker that was taken for lost goes on. Faults are planted in what the world stands for.

use super::{
    generation::Generation,
    message::{self, Attempt, Done, Ended, Run},
    schedule::{Effects, Next, Outcome, Schedule, Slot},
    staged::Staged,
    worker_process::{Duty, WorkerProcess},
};
use crate::{Error, nest::NestReader};
use consonance_spec::{OnError, Order};
use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroUsize,
    sync::{Arc, LazyLock},
    time::Instant,
};

const WORKERS: usize = 2;
const SERVERS: usize = 2;

/// No deadline passes by itself.
static NEVER: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A fault of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A server commits effects when they come, on the word of the worker.
    CommitsOnTheWordOfAWorker,
    /// A server tells closures apart, and not their attempts.
    TakesAnyAttempt,
    /// The chief takes the answer of any attempt for that of the last one.
    TakesAnyAnswer,
    /// A server forgets what it has when a link to a worker begins anew.
    ForgetsWithALink,
    /// The attempts of each generation have the same numbers.
    CountsAttemptsAnew,
}

/// The closures, and the number of disturbances.
#[derive(Clone, Copy, Debug)]
struct Job {
    closures: usize,
    order: Order,
    disturbances: usize,
    fault: Option<Fault>,
}

/// A link of the chief to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Works,
    /// The process has ended.
    Broken,
    /// The chief has left it. A process comes next.
    Left,
}

/// A worker: its process, and what is on its links.
#[derive(Debug)]
struct Worker {
    link: Link,
    orders: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
    /// The generation of its links to servers.
    generation: u64,
    /// The attempt that runs, and the number of servers that have its effects.
    runs: Option<(Attempt, usize)>,
    /// The attempt that the chief has begun last.
    last: Option<Attempt>,
}

/// Effects that are to commit, for the thread of a worker.
#[derive(Debug)]
struct Commit {
    worker: usize,
    effects: Vec<Effects>,
    /// Whether the other commits wait for this one, and then its first open attempt and the servers
    /// that have not answered.
    begun: Option<(u64, Vec<usize>)>,
}

#[derive(Debug, Default)]
struct Server {
    staged: Staged<()>,
    /// The attempts that have committed, in their order.
    applied: Vec<Attempt>,
}

#[derive(Debug)]
struct World {
    job: Job,
    disturbances: usize,
    generation: Generation,
    schedule: Schedule,
    slots: Vec<Arc<Slot>>,
    processes: Vec<WorkerProcess>,
    workers: Vec<Worker>,
    servers: Vec<Server>,
    commits: Vec<Commit>,
    /// Requests of processes that have ended, each to a server.
    strays: Vec<(usize, u64, Attempt)>,
    broken: Option<&'static str>,
}

/// A step of a thread, or a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A worker takes its orders, up to the next closure.
    Obeys(usize),
    /// A server takes the effects of the closure of a worker.
    Stages(usize),
    /// The chief takes an answer.
    Takes(usize),
    /// The chief sees the end of a process.
    Notices(usize),
    /// A process comes for a worker.
    Comes(usize),
    /// A commit begins, and the others wait.
    Begins(usize),
    /// A server commits.
    CommitsAt(usize),
    /// A request of a process that has ended comes to its server.
    Strays(usize),
    /// The process of a worker dies.
    Dies(usize),
    /// The chief takes a process for lost, which lives.
    IsCut(usize),
    /// The chief gives up the closure of a worker.
    IsLate(usize),
    /// A server is lost, and the chief recovers: all begins anew.
    LosesServer,
}

impl Event {
    /// Returns whether the event may happen, and need not.
    fn is_disturbance(self) -> bool {
        matches!(self, Event::Strays(_) | Event::Dies(_) | Event::IsCut(_) | Event::IsLate(_) | Event::LosesServer)
    }
}

impl World {
    fn new(job: Job) -> World {
        let worker = || Worker {
            link: Link::Left,
            orders: VecDeque::new(),
            answers: VecDeque::new(),
            generation: 0,
            runs: None,
            last: None,
        };
        let mut world = World {
            job,
            disturbances: job.disturbances,
            generation: Generation::first(SERVERS),
            schedule: Schedule::new(job.order, OnError::Continue, WORKERS, 0),
            slots: Vec::new(),
            processes: Vec::new(),
            workers: (0..WORKERS).map(|_| worker()).collect(),
            servers: Vec::new(),
            commits: Vec::new(),
            strays: Vec::new(),
            broken: None,
        };
        world.begin();
        (0..WORKERS).for_each(|worker| world.happens(Event::Comes(worker)));
        world
    }

    fn has(&self, fault: Fault) -> bool {
        self.job.fault == Some(fault)
    }

    /// Begins the generation, with the values of before.
    fn begin(&mut self) {
        let schedule = Schedule::new(self.job.order, OnError::Continue, WORKERS, 0);
        let first = if self.has(Fault::CountsAttemptsAnew) { 0 } else { self.generation.first_attempt() };
        self.schedule = schedule.beginning_at(first);
        let schedule = |_| self.schedule.schedule((0, "step".into()), Vec::new()).0;
        self.slots = (0..self.job.closures).map(schedule).collect();
        assert!(matches!(self.schedule.end_window(), Next::Nothing));
        self.servers = (0..SERVERS).map(|_| Server::default()).collect();
        self.processes = (0..WORKERS).map(|_| WorkerProcess::default()).collect();
        self.commits.clear();
    }

    /// Returns what can happen now.
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, worker) in self.workers.iter().enumerate() {
            let is_attended = self.commits.iter().all(|commit| commit.worker != number);
            let is_idle = worker.runs.is_none();
            let can = [
                (Event::Obeys(number), worker.link == Link::Works && is_idle && !worker.orders.is_empty()),
                (Event::Stages(number), !is_idle),
                (Event::Takes(number), is_attended && !worker.answers.is_empty()),
                (Event::Notices(number), is_attended && worker.link == Link::Broken),
                (Event::Comes(number), worker.link == Link::Left && is_idle),
            ];
            let works = self.disturbances > 0 && worker.link == Link::Works;
            let is_running = self.schedule.runs().any(|(runs, _)| runs == number);
            let may = [
                (Event::Dies(number), works),
                (Event::IsCut(number), works && is_attended),
                (Event::IsLate(number), works && is_attended && is_running),
            ];
            events.extend(can.into_iter().chain(may).filter(|&(_, can)| can).map(|(event, _)| event));
        }
        match self.commits.iter().find_map(|commit| commit.begun.as_ref()) {
            Some((_, servers)) => events.extend(servers.iter().map(|&server| Event::CommitsAt(server))),
            None => events.extend((0..self.commits.len()).map(Event::Begins)),
        }
        events.extend((0..self.strays.len()).map(Event::Strays));
        events.extend((self.disturbances > 0).then_some(Event::LosesServer));
        events
    }

    fn happens(&mut self, event: Event) {
        self.disturbances -= usize::from(event.is_disturbance() && !matches!(event, Event::Strays(_)));
        match event {
            Event::Obeys(worker) => self.obeys(worker),
            Event::Stages(worker) => self.stages(worker),
            Event::Takes(worker) => {
                let answer = self.workers[worker].answers.pop_front().expect("there is one");
                let mut ended = Ended::read(&answer, SERVERS, 0).expect("an answer");
                if self.has(Fault::TakesAnyAnswer) {
                    ended.attempt = self.workers[worker].last.unwrap_or(ended.attempt);
                }
                if self.processes[worker].answers(ended.attempt) {
                    let next = self.schedule.ended(worker, ended.attempt, ended.outcome.expect("it has not failed"));
                    self.carry_out(worker, next, true);
                }
            }
            Event::Dies(number) => {
                let worker = &mut self.workers[number];
                worker.link = Link::Broken;
                worker.orders.clear();
                let stray = worker.runs.take().map(|(attempt, server)| (server, worker.generation, attempt));
                self.strays.extend(stray);
            }
            Event::Notices(worker) | Event::IsCut(worker) => self.loses(worker),
            Event::IsLate(worker) => {
                if let Some(attempt) = self.processes[worker].take_late(*NEVER, *NEVER) {
                    let next = self.schedule.failed(worker, attempt, Error::other("late"));
                    self.carry_out(worker, next, false);
                }
            }
            Event::Comes(number) => {
                self.workers[number].link = Link::Works;
                self.processes[number] = WorkerProcess::default();
                self.workers[number].orders.push_back(self.generation.word());
                if self.has(Fault::ForgetsWithALink) {
                    self.servers.iter_mut().for_each(|server| server.staged = Staged::default());
                }
                self.carry_out(number, Next::Nothing, true);
            }
            Event::Begins(number) => {
                let first = self.schedule.first_open_attempt();
                let mut servers: Vec<usize> = (0..SERVERS).collect();
                let effects = &self.commits[number].effects;
                servers.retain(|server| effects.iter().any(|effects| effects.servers.contains(server)));
                self.commits[number].begun = Some((first, servers));
            }
            Event::CommitsAt(server) => self.commits_at(server),
            Event::Strays(number) => {
                let (server, generation, attempt) = self.strays.remove(number);
                self.comes_to(server, generation, attempt);
            }
            Event::LosesServer => {
                self.generation = self.generation.next(&[true; SERVERS]).expect("servers");
                self.begin();
                let working = (0..WORKERS).filter(|&worker| self.workers[worker].link == Link::Works);
                for worker in working.collect::<Vec<_>>() {
                    self.workers[worker].orders.push_back(self.generation.word());
                    self.carry_out(worker, Next::Nothing, true);
                }
            }
        }
    }

    fn obeys(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        while let Some(order) = worker.orders.pop_front() {
            let mut from = NestReader::new(&order);
            match from.number().expect("a kind") {
                message::BEGIN => {
                    worker.generation = Generation::read(&mut from, SERVERS).expect("a generation").number;
                }
                message::RUN => {
                    worker.runs = Some((Run::read(&mut from, 0).expect("a closure").attempt, 0));
                    return;
                }
                kind => panic!("{kind}"),
            }
        }
    }

    fn stages(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        let generation = worker.generation;
        let (attempt, server) = worker.runs.expect("it runs");
        if server + 1 < SERVERS {
            worker.runs = Some((attempt, server + 1));
        } else {
            worker.runs = None;
            let done = Done { result: Vec::new(), servers: (0..SERVERS).collect(), taken: Vec::new() };
            if worker.link == Link::Works {
                worker.answers.push_back(Ended { attempt, outcome: Ok(done) }.write());
            }
        }
        self.comes_to(server, generation, attempt);
    }

    /// Effects come to a server. One of an earlier generation is not that of this one.
    fn comes_to(&mut self, server: usize, generation: u64, attempt: Attempt) {
        if generation == self.generation.number {
            let attempt = self.at_server(attempt);
            self.servers[server].staged.stage(attempt, ());
            if self.has(Fault::CommitsOnTheWordOfAWorker) {
                self.servers[server].staged.take(attempt);
                self.servers[server].applied.push(attempt);
            }
        }
    }

    /// Returns an attempt as servers know it.
    fn at_server(&self, attempt: Attempt) -> Attempt {
        Attempt { id: if self.has(Fault::TakesAnyAttempt) { 0 } else { attempt.id }, ..attempt }
    }

    /// A server commits what the commit that has begun says.
    fn commits_at(&mut self, server: usize) {
        let begun = |commit: &Commit| commit.begun.is_some();
        let at = self.commits.iter().position(begun).expect("one has begun");
        let Commit { effects, begun: Some((first, servers)), .. } = &mut self.commits[at] else { unreachable!() };
        servers.retain(|&other| other != server);
        let (first, is_done) = (*first, servers.is_empty());
        let attempts: Vec<Attempt> = effects.iter().map(|effects| effects.attempt).collect();
        for attempt in attempts {
            let known = self.at_server(attempt);
            match self.servers[server].staged.take(known) {
                Some(()) => self.servers[server].applied.push(attempt),
                None if self.has(Fault::CommitsOnTheWordOfAWorker) => {}
                None => self.broken = Some("the effects of a closure are not there"),
            }
        }
        self.servers[server].staged.forget_before(first);
        if is_done {
            let Commit { worker, effects, .. } = self.commits.remove(at);
            let next = self.schedule.committed(effects);
            self.carry_out(worker, next, true);
        }
    }

    fn loses(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        worker.link = Link::Left;
        worker.orders.clear();
        worker.answers.clear();
        self.processes[number] = WorkerProcess::default();
        let next = self.schedule.lost(number).1;
        self.carry_out(number, next, false);
    }

    /// Carries out what follows from a change, as `Chief::change_and_free`.
    fn carry_out(&mut self, worker: usize, next: Next, frees: bool) {
        match next {
            Next::Nothing => {}
            Next::Commit(effects) if effects.is_empty() => {
                let next = self.schedule.committed(effects);
                return self.carry_out(worker, next, frees);
            }
            Next::Commit(effects) => {
                self.commits.push(Commit { worker, effects, begun: None });
                return self.begin_waiting();
            }
            Next::Forget(attempt) => self.servers.iter_mut().for_each(|server| server.staged.forget(attempt)),
        }
        self.processes[worker].is_free |= frees;
        self.begin_waiting();
    }

    fn begin_waiting(&mut self) {
        for worker in 0..WORKERS {
            if self.processes[worker].is_free
                && let Some(begun) = self.schedule.begin(worker)
            {
                self.workers[worker].last = Some(begun.attempt);
                self.processes[worker].begin(begun, *NEVER);
                let Duty::Send(order) = self.processes[worker].duty() else { panic!("an order") };
                self.workers[worker].orders.push_back(order);
            }
        }
    }

    /// Checks that no effect happens twice, and that no two attempts mix.
    fn check(&self) -> Result<(), &'static str> {
        let [first, second] = &self.servers[..] else { panic!("two servers") };
        for (place, attempt) in first.applied.iter().enumerate() {
            if second.applied.iter().any(|other| other.number == attempt.number && other.id != attempt.id) {
                return Err("two attempts mix");
            }
            if first.applied[..place].iter().any(|other| other.number == attempt.number) {
                return Err("effects happen twice");
            }
        }
        self.broken.map_or(Ok(()), Err)
    }

    /// Checks that all closures have ended, and that both servers have the effects of those that
    /// have not failed.
    fn check_end(&self) -> Result<(), &'static str> {
        if !self.schedule.is_idle() {
            return Err("a closure does not end");
        }
        let is_ready = |slot: &&Arc<Slot>| matches!(slot.outcome.get(), Some(Outcome::Ready(_)));
        let ready: Vec<u64> = self.slots.iter().filter(is_ready).map(|slot| slot.number).collect();
        for server in &self.servers {
            let mut applied: Vec<u64> = server.applied.iter().map(|attempt| attempt.number).collect();
            if self.job.order == Order::Arrival {
                applied.sort_unstable();
            }
            if applied != ready {
                return Err("effects are lost, or in another order");
            }
        }
        Ok(())
    }
}

/// Follows every order of events, up to states that were seen. Returns their number.
fn explore(job: Job) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut ways = vec![Vec::<u8>::new()];
    while let Some(mut way) = ways.pop() {
        let mut world = World::new(job);
        for &choice in &way {
            let event = world.events()[usize::from(choice)];
            world.happens(event);
        }
        loop {
            let events = world.events();
            let is_end = events.iter().all(|event| event.is_disturbance());
            let checked = world.check().and_then(|()| if is_end { world.check_end() } else { Ok(()) });
            checked.map_err(|problem| format!("{problem}: {}", told(job, &way)))?;
            let mut state = DefaultHasher::new();
            format!("{world:?}").hash(&mut state);
            if !seen.insert(state.finish()) || events.is_empty() {
                break;
            }
            let others = (1..events.len()).map(|choice| [&way[..], &[choice as u8]].concat());
            ways.extend(others);
            world.happens(events[0]);
            way.push(0);
        }
    }
    Ok(seen.len())
}

/// Returns the events of a way.
fn told(job: Job, way: &[u8]) -> String {
    let mut world = World::new(job);
    let events = way.iter().map(|&choice| {
        let event = world.events()[usize::from(choice)];
        world.happens(event);
        format!("{event:?}")
    });
    events.collect::<Vec<_>>().join(", ")
}

fn jobs(disturbances: usize, fault: Option<Fault>) -> impl Iterator<Item = Job> {
    let window = Order::Scheduled { window: NonZeroUsize::new(2).expect("two") };
    let of = move |order| Job { closures: [4, 3, 2][disturbances], order, disturbances, fault };
    [Order::Arrival, window].into_iter().map(of)
}

#[test]
fn each_closure_commits_once_in_every_order_of_events() {
    for job in (0..=2).flat_map(|disturbances| jobs(disturbances, None)) {
        let states = explore(job).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(states > 50, "{job:?}: {states} states");
    }
}

#[test]
fn planted_faults_of_the_protocol_are_found() {
    use Fault::*;
    for (fault, disturbances) in [
        (CommitsOnTheWordOfAWorker, 1),
        (TakesAnyAttempt, 2),
        (TakesAnyAnswer, 1),
        (ForgetsWithALink, 1),
        (CountsAttemptsAnew, 1),
    ] {
        let found = jobs(disturbances, Some(fault)).any(|job| explore(job).is_err());
        assert!(found, "{fault:?} is not found");
    }
}
