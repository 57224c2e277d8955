//! The chief: the schedule of closures, and the workers that it goes to.
//!
//! Whoever changes the schedule sends what follows to the workers that wait for an order. The
//! [threads](super::dispatch) of the workers receive what comes back.

use super::{
    effect::Effect,
    link::Link,
    message::{self, Attempt},
    program::Program,
    schedule::{Effects, Next, Schedule},
    tables::Tables,
    worker_process::WorkerProcess,
};
use crate::{Error, Result, nest::NestWriter};
use consonance_spec::{OnError, Order, Updates};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The state of the chief, which all of its threads share.
#[derive(Debug)]
pub(super) struct Chief {
    pub(super) program: Arc<Program>,
    /// The memory of the servers; `None` when a recovery has begun.
    tables: Mutex<Option<Arc<Tables>>>,
    state: Mutex<State>,
    /// A closure has settled, or all has ended.
    settled: Condvar,
    /// Commits reach all servers in the same order.
    commits: Mutex<()>,
    limits: Limits,
}

/// The terms of a strategy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) order: Order,
    pub(super) updates: Updates,
    pub(super) on_error: OnError,
    pub(super) limits: Limits,
}

/// The limits of a strategy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The time in which a process must do what does not depend on closures.
    pub(super) timeout: Duration,
    /// The time in which a closure must end.
    pub(super) closure_timeout: Duration,
    /// The closures that may wait.
    pub(super) queue: usize,
}

/// The state of the chief.
#[derive(Debug)]
pub(super) struct State {
    pub(super) schedule: Schedule,
    /// The error that all calls return: a server was lost.
    broken: Option<Error>,
    /// Whether the strategy is dropped.
    ends: bool,
    /// The workers that were lost, with what they ran.
    losses: Vec<LostWorker>,
    /// The process of each worker.
    pub(super) processes: Vec<WorkerProcess>,
    /// The calls that wait for any change, and not for the end of all closures.
    watchers: usize,
}

/// The changes that a waiting call must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// Each change.
    Each,
    /// The end of all closures.
    All,
}

/// A worker that was lost, as [`join`](super::ClusterCoordinator::join) reports it.
#[derive(Clone, Debug)]
pub struct LostWorker {
    /// Its number.
    pub worker: usize,
    /// The error that told of it.
    pub error: Error,
    /// The number of the closure that it ran, which another worker runs.
    pub closure: Option<u64>,
}

impl Chief {
    pub(super) fn new(program: Arc<Program>, tables: Tables, schedule: Schedule, limits: Limits) -> Chief {
        let workers = program.known.workers;
        Chief {
            program,
            tables: Mutex::new(Some(Arc::new(tables))),
            state: Mutex::new(State {
                schedule,
                broken: None,
                ends: false,
                losses: Vec::new(),
                processes: (0..workers).map(|_| WorkerProcess::default()).collect(),
                watchers: 0,
            }),
            settled: Condvar::new(),
            commits: Mutex::new(()),
            limits,
        }
    }

    /// Changes the schedule, and carries out what follows.
    ///
    /// # Errors
    /// [`Error::Aborted`] if a server is lost.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State) -> (R, Next)) -> Result<R> {
        self.change_and_free(None, change)
    }

    /// Changes the schedule, and carries out what follows. Then this worker waits for an order: its
    /// next closure sees the effects of its last one.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub(super) fn change_and_free<R>(
        &self,
        worker: Option<usize>,
        change: impl FnOnce(&mut State) -> (R, Next),
    ) -> Result<R> {
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let (result, mut next) = change(&mut state);
        loop {
            next = match next {
                Next::Nothing => break,
                Next::Forget(attempt) => {
                    drop(state);
                    self.forget(attempt)?;
                    state = self.lock();
                    Next::Nothing
                }
                Next::Commit(effects) => {
                    if effects.iter().any(|effects| !effects.servers.is_empty()) {
                        drop(state);
                        self.commit(&effects).map_err(|error| self.break_off(error))?;
                        state = self.lock();
                    }
                    state.schedule.committed(effects)
                }
            };
        }
        if let Some(worker) = worker {
            state.processes[worker].is_free = true;
        }
        state.begin_waiting(self.limits.closure_timeout);
        let is_seen = state.is_seen();
        drop(state);
        // A wake-up takes as long as a small closure, so nobody is woken for nothing.
        if is_seen {
            self.settled.notify_all();
        }
        Ok(result)
    }

    /// Checks that the strategy has not ended.
    ///
    /// # Errors
    /// [`Error::Aborted`] if a server is lost.
    pub(super) fn check(&self, call: &'static str) -> Result<()> {
        self.lock().end(call).map_or(Ok(()), Err)
    }

    /// Waits until `done` returns a value.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Aborted`] if a server is lost.
    pub(super) fn wait<R>(
        &self,
        call: &'static str,
        timeout: Duration,
        awaits: Awaits,
        mut done: impl FnMut(&mut State) -> Option<R>,
    ) -> Result<R> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(error) = state.end(call) {
                return Err(error);
            }
            if let Some(result) = done(&mut state) {
                return Ok(result);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(state.late(call, timeout));
            }
            let watches = usize::from(awaits == Awaits::Each);
            state.watchers += watches;
            state = self.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.watchers -= watches;
        }
    }

    /// Waits for all closures, which ends the window.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(super) fn wait_for_all(&self, call: &'static str, timeout: Duration) -> Result<()> {
        self.change(|state| ((), state.schedule.end_window()))?;
        self.wait(call, timeout, Awaits::All, |state| state.schedule.is_idle().then_some(()))
    }

    /// Changes variables at once.
    ///
    /// # Errors
    /// [`Error::Aborted`] if a server is lost.
    pub(super) fn apply(&self, effect: &Effect) -> Result<()> {
        self.apply_until(effect, Instant::now() + self.limits.timeout)
    }

    /// Changes variables at once, before the deadline.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(super) fn apply_until(&self, effect: &Effect, deadline: Instant) -> Result<()> {
        let tables = self.tables()?;
        let requests = tables.requests(&message::request(message::APPLY), [effect])?;
        let _order = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        tables.call_each_until(&requests, deadline).map_err(|error| self.break_off(error))
    }

    /// A process has come for a worker.
    pub(super) fn found(&self, worker: usize, link: &Link) {
        self.lock().processes[worker] = WorkerProcess::at(link.handle());
    }

    /// A worker is lost, and what it ran runs elsewhere.
    pub(super) fn loses(&self, worker: usize, error: &Error) {
        let lost = |state: &mut State| {
            state.processes[worker] = WorkerProcess::default();
            let (slot, next) = state.schedule.lost(worker);
            state.losses.push(LostWorker { worker, error: error.clone(), closure: slot.map(|slot| slot.number) });
            ((), next)
        };
        // Without servers nobody counts lost workers.
        let _ = self.change(lost);
    }

    /// Commits effects at their servers, in this order.
    fn commit(&self, effects: &[Effects]) -> Result<()> {
        let mut begun = message::request(message::COMMIT);
        begun.number(self.lock().schedule.first_open_attempt());
        let mut requests: Vec<(usize, NestWriter)> = Vec::new();
        for effects in effects {
            for &server in &effects.servers {
                let at = match requests.iter().position(|&(other, _)| other == server) {
                    Some(at) => at,
                    None => {
                        requests.push((server, begun.clone()));
                        requests.len() - 1
                    }
                };
                effects.attempt.write(&mut requests[at].1);
            }
        }
        if requests.is_empty() {
            return Ok(());
        }
        let requests: Vec<_> = requests.into_iter().map(|(server, request)| (server, request.into_bytes())).collect();
        let tables = self.tables()?;
        let _order = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        tables.call_each(&requests)
    }

    fn forget(&self, attempt: Attempt) -> Result<()> {
        let mut request = message::request(message::FORGET);
        attempt.write(&mut request);
        let request = request.into_bytes();
        let requests: Vec<_> = (0..self.program.parts.len()).map(|server| (server, request.clone())).collect();
        self.tables()?.call_each(&requests).map_err(|error| self.break_off(error))
    }

    /// Ends all calls with this error. Returns it.
    pub(super) fn break_off(&self, error: Error) -> Error {
        let mut state = self.lock();
        let error = state.broken.get_or_insert(error).clone();
        state.processes.iter().for_each(WorkerProcess::interrupt);
        drop(state);
        self.settled.notify_all();
        error
    }

    /// Ends the threads, and tells workers and servers.
    pub(super) fn end(&self) {
        // The word first: threads that see the end drop their links, which carry it.
        let mut state = self.lock();
        state.processes.iter().for_each(WorkerProcess::end);
        state.ends = true;
        state.processes.iter().for_each(WorkerProcess::interrupt);
        drop(state);
        self.settled.notify_all();
        let tables = self.tables();
        tables.iter().flat_map(|tables| tables.servers()).for_each(|server| server.handle.end());
    }

    /// Returns the memory of the servers.
    ///
    /// # Errors
    /// [`Error::Aborted`] if a server was lost, and a recovery has begun.
    pub(super) fn tables(&self) -> Result<Arc<Tables>> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tables.ok_or_else(|| self.loss().expect("a server was lost"))
    }

    /// Leaves the servers, of which one is lost. Results of closures may be kept for long, and
    /// this chief with them.
    #[cfg(feature = "checkpoint")]
    pub(super) fn leave(&self) {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The end of a network may take seconds, without the lock.
        drop(tables);
    }

    /// Returns the error that told of the loss of a server, if one is lost.
    pub(super) fn loss(&self) -> Option<Error> {
        self.lock().broken.clone()
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the error of a call after the end.
    fn end(&self, call: &'static str) -> Option<Error> {
        let problem = || "the strategy was dropped, and its servers and workers with it".to_owned();
        self.broken.clone().or_else(|| self.ends.then(|| Error::WrongContext { call, problem: problem() }))
    }

    /// Returns whether the strategy is dropped, or a server is lost.
    pub(super) fn has_ended(&self) -> bool {
        self.ends || self.broken.is_some()
    }

    /// Begins closures at the workers that wait for an order, as far as there are any.
    fn begin_waiting(&mut self, closure_timeout: Duration) {
        if self.has_ended() {
            return;
        }
        for worker in 0..self.processes.len() {
            if self.schedule.waiting() == 0 {
                return;
            }
            if self.processes[worker].is_free
                && let Some(begun) = self.schedule.begin(worker)
            {
                self.processes[worker].begin(begun, Instant::now() + closure_timeout);
            }
        }
    }

    /// Returns whether a call waits for what has changed.
    fn is_seen(&self) -> bool {
        self.watchers > 0 || self.schedule.is_idle()
    }

    /// Takes the losses that no call has returned.
    pub(super) fn take_losses(&mut self) -> Vec<LostWorker> {
        std::mem::take(&mut self.losses)
    }

    fn late(&self, call: &'static str, waited: Duration) -> Error {
        let mut missing: Vec<(usize, String)> = self
            .schedule
            .runs()
            .map(|(worker, slot)| (worker, format!("it runs closure {} of {:?}", slot.number, slot.function)))
            .collect();
        if missing.is_empty() {
            missing.extend(self.losses.iter().map(|loss| (loss.worker, format!("it is lost: {}", loss.error))));
        }
        Error::Timeout { call: call.to_owned(), waited, missing }
    }
}
