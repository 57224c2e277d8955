//! The closures of a program, and what happens to them: a state, without threads and links.
//!
//! `consonance_spec`'s coordinator says what must happen. A closure waits, runs at a worker as an
//! *attempt*, and ends. When an attempt ends, its effects are at the servers but not in the
//! variables. It is *settled* when they have committed. At most one attempt of a closure settles:
//! the one that was begun last, unless its worker was lost before it ended.

use super::message::{Attempt, Done};
use crate::{ClosureFailure, Error};
use consonance_spec::{OnError, Order};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, OnceLock},
};

/// The outcome of a closure, which its [`RemoteValue`](super::RemoteValue) shares.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: u64,
    pub(super) function: Arc<str>,
    pub(super) outcome: OnceLock<Outcome>,
}

/// The outcome of a closure.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The bytes of its result.
    Ready(Arc<[u8]>),
    Failed(ClosureFailure),
    /// It was cancelled, because of this failure.
    Cancelled(ClosureFailure),
}

/// A part of an argument.
#[derive(Clone, Debug)]
pub(super) enum Part {
    /// Its bytes.
    Bytes(Arc<[u8]>),
    /// The result of another closure.
    Remote(Arc<Slot>),
    /// The bytes for each worker.
    PerWorker(Arc<[Vec<u8>]>),
}

/// A closure that has not ended.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) function: usize,
    pub(super) argument: Vec<Part>,
    pub(super) slot: Arc<Slot>,
    window: u64,
}

/// An attempt that a worker is to run.
pub(super) struct Begun {
    pub(super) attempt: Attempt,
    pub(super) closure: Arc<Closure>,
    pub(super) argument: Vec<u8>,
    /// The position of the worker in each data set, if the closure may take elements.
    pub(super) positions: Option<Vec<usize>>,
}

/// The duty of the chief after an attempt has ended.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// The effects of these attempts are to commit, in this order. Then the schedule is
    /// [told](Schedule::committed).
    Commit(Vec<Effects>),
    /// The effects of this attempt are to be forgotten.
    Forget(Attempt),
}

/// The effects of an attempt, at these servers.
#[derive(Debug)]
pub(super) struct Effects {
    pub(super) attempt: Attempt,
    pub(super) servers: Vec<usize>,
    closure: Arc<Closure>,
    result: Arc<[u8]>,
}

/// The closures of a coordinator.
#[derive(Debug)]
pub(super) struct Schedule {
    order: Order,
    on_error: OnError,
    /// The attempts whose effects are on their way.
    commits: BTreeSet<u64>,
    /// The attempt that each worker runs.
    runs: Vec<Option<(Attempt, Arc<Closure>)>>,
    /// The elements that closures which have ended took, for each worker and data set.
    positions: Vec<Vec<usize>>,
    waiting: BTreeMap<u64, Arc<Closure>>,
    /// The closures that have not settled.
    open: usize,
    /// The numbers of the next closure and of the next attempt.
    next: (u64, u64),
    /// The window of the next closure, and the closures that it has.
    window: (u64, usize),
    /// The window whose closures run, and those of them that have not ended.
    current: Window,
    /// The failures that no call has returned, and that of the closure that cancels others.
    failures: Vec<ClosureFailure>,
    cancels: Option<ClosureFailure>,
}

/// The window whose closures run.
#[derive(Debug, Default)]
struct Window {
    number: u64,
    /// Those of its closures that have not ended.
    open: usize,
    /// The effects of those that have.
    ended: BTreeMap<u64, Effects>,
    failures: BTreeMap<u64, ClosureFailure>,
    /// Whether its effects are on their way.
    commits: bool,
}

impl Schedule {
    pub(super) fn new(order: Order, on_error: OnError, workers: usize, datasets: usize) -> Schedule {
        Schedule {
            order,
            on_error,
            commits: BTreeSet::new(),
            runs: vec![None; workers],
            positions: vec![vec![0; datasets]; workers],
            waiting: BTreeMap::new(),
            open: 0,
            next: (0, 0),
            window: (0, 0),
            current: Window::default(),
            failures: Vec::new(),
            cancels: None,
        }
    }

    /// Sets the number of the first attempt.
    pub(super) fn beginning_at(mut self, attempt: u64) -> Schedule {
        self.next.1 = attempt;
        self
    }

    /// Returns the closures that wait for a worker.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether all closures have settled.
    pub(super) fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// Returns for each worker the closure that it runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.runs.iter().enumerate().filter_map(|(worker, run)| Some((worker, &*run.as_ref()?.1.slot)))
    }

    /// Returns the number of the first attempt whose effects may still commit.
    pub(super) fn first_open_attempt(&self) -> u64 {
        let run = self.runs.iter().flatten().map(|(attempt, _)| attempt.id);
        let ended = self.current.ended.values().map(|effects| effects.attempt.id);
        run.chain(ended).chain(self.commits.first().copied()).min().unwrap_or(self.next.1)
    }

    /// Schedules a closure.
    pub(super) fn schedule(&mut self, function: (usize, Arc<str>), argument: Vec<Part>) -> (Arc<Slot>, Next) {
        let number = self.next.0;
        self.next.0 += 1;
        if let Order::Scheduled { window } = self.order {
            if self.window.1 == window.get() {
                self.end_window();
            }
            self.window.1 += 1;
        }
        let slot = Arc::new(Slot { number, function: function.1, outcome: OnceLock::new() });
        let closure = Closure { function: function.0, argument, slot: slot.clone(), window: self.window.0 };
        self.open += 1;
        if closure.window == self.current.number {
            self.current.open += 1;
        }
        let next = match self.cause_against(&closure) {
            None => {
                self.waiting.insert(number, Arc::new(closure));
                Next::Nothing
            }
            Some(cause) => {
                self.end_unrun(&closure, cause);
                self.commit_window()
            }
        };
        (slot, next)
    }

    /// Begins the first closure that this worker, which runs nothing, can run.
    pub(super) fn begin(&mut self, worker: usize) -> Option<Begun> {
        let (number, argument) = self.first_for(worker)?;
        let closure = self.waiting.remove(&number).expect("it waits");
        let attempt = Attempt { number, id: self.next.1 };
        self.next.1 += 1;
        self.runs[worker] = Some((attempt, closure.clone()));
        // In windows the worker of a closure must not depend on timing if it takes elements.
        let may_take = self.order == Order::Arrival || closure.is_per_worker();
        let positions = may_take.then(|| self.positions[worker].clone());
        Some(Begun { attempt, closure, argument, positions })
    }

    fn first_for(&self, worker: usize) -> Option<(u64, Vec<u8>)> {
        let workers = self.runs.len() as u64;
        let has_window = matches!(self.order, Order::Scheduled { .. });
        // Whether a closure with a value for each worker waits before this one, for this worker.
        let mut is_held = false;
        for (&number, closure) in &self.waiting {
            if has_window && closure.window > self.current.number {
                break;
            }
            if closure.is_per_worker() && has_window {
                if number % workers != worker as u64 || is_held {
                    continue;
                }
                is_held = true;
            }
            if let Some(argument) = closure.argument(worker) {
                return Some((number, argument));
            }
        }
        None
    }

    /// The worker has ended an attempt without an error.
    pub(super) fn ended(&mut self, worker: usize, attempt: Attempt, done: Done) -> Next {
        let Some((_, closure)) = self.runs[worker].take_if(|(running, _)| *running == attempt) else {
            // The closure was given up, so nothing else removes what the attempt left.
            return Next::Forget(attempt);
        };
        for (position, taken) in self.positions[worker].iter_mut().zip(done.taken) {
            *position = position.saturating_add(taken);
        }
        let effects = Effects { attempt, servers: done.servers, closure, result: done.result.into() };
        match self.order {
            Order::Arrival => self.commit(vec![effects]),
            Order::Scheduled { .. } => {
                effects.set_ready();
                self.current.open -= 1;
                self.current.ended.insert(attempt.number, effects);
                self.commit_window()
            }
        }
    }

    /// The closure that the worker runs has failed, or is given up.
    pub(super) fn failed(&mut self, worker: usize, attempt: Attempt, error: Error) -> Next {
        let Some((_, closure)) = self.runs[worker].take_if(|(running, _)| *running == attempt) else {
            return Next::Nothing;
        };
        let slot = &closure.slot;
        let failure = ClosureFailure { function: slot.function.clone(), number: slot.number, worker, error };
        let _ = slot.outcome.set(Outcome::Failed(failure.clone()));
        match self.order {
            Order::Arrival => {
                self.open -= 1;
                self.fail(failure);
                Next::Nothing
            }
            Order::Scheduled { .. } => {
                self.current.open -= 1;
                self.current.failures.insert(failure.number, failure);
                self.cancel();
                self.commit_window()
            }
        }
    }

    /// The worker is lost. Returns the closure that it ran, which waits again, before all later
    /// ones.
    pub(super) fn lost(&mut self, worker: usize) -> (Option<Arc<Slot>>, Next) {
        let Some((attempt, closure)) = self.runs[worker].take() else { return (None, Next::Nothing) };
        let slot = closure.slot.clone();
        self.waiting.insert(attempt.number, closure);
        // Closures that have not begun may have been cancelled meanwhile.
        self.cancel();
        (Some(slot), self.commit_window())
    }

    /// The effects have committed that were to.
    pub(super) fn committed(&mut self, effects: Vec<Effects>) -> Next {
        effects.iter().for_each(|effects| _ = self.commits.remove(&effects.attempt.id));
        match self.order {
            Order::Arrival => {
                effects.iter().for_each(Effects::set_ready);
                self.open -= effects.len();
                Next::Nothing
            }
            Order::Scheduled { .. } => {
                let window = mem::take(&mut self.current);
                self.open -= effects.len() + window.failures.len();
                window.failures.into_values().for_each(|failure| self.fail(failure));
                self.begin_window(window.number + 1);
                self.commit_window()
            }
        }
    }

    /// Ends the window: later closures see its effects.
    pub(super) fn end_window(&mut self) -> Next {
        if self.window.1 == 0 {
            return Next::Nothing;
        }
        self.window = (self.window.0 + 1, 0);
        self.commit_window()
    }

    /// Returns the failures that no call has returned. Closures are not cancelled any more.
    ///
    /// # Errors
    /// If there are any.
    pub(super) fn take_failures(&mut self) -> Result<(), Vec<ClosureFailure>> {
        self.cancels = None;
        let failures = mem::take(&mut self.failures);
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// Returns failures before all closures have ended, where only timing decides how many.
    ///
    /// # Errors
    /// As [`take_failures`](Self::take_failures).
    pub(super) fn fail_early(&mut self) -> Result<(), Vec<ClosureFailure>> {
        match (self.order, self.on_error) {
            (Order::Arrival, OnError::Cancel) => self.take_failures(),
            (Order::Scheduled { .. }, _) | (Order::Arrival, OnError::Continue) => Ok(()),
        }
    }

    fn fail(&mut self, failure: ClosureFailure) {
        if self.on_error == OnError::Cancel && self.cancels.is_none() {
            self.cancels = Some(failure.clone());
        }
        self.failures.push(failure);
        self.cancel();
    }

    /// Cancels closures that wait: all, if a failure says so, and those whose arguments do not
    /// come.
    fn cancel(&mut self) {
        loop {
            let cause = |(&number, closure): (&u64, &Arc<Closure>)| Some((number, self.cause_against(closure)?));
            let cancelled: Vec<(u64, ClosureFailure)> = self.waiting.iter().filter_map(cause).collect();
            if cancelled.is_empty() {
                return;
            }
            // Others may need the results of these.
            for (number, cause) in cancelled {
                let closure = self.waiting.remove(&number).expect("it waits");
                self.end_unrun(&closure, cause);
            }
        }
    }

    /// Returns the failure for which a closure is not run, if there is one.
    fn cause_against(&self, closure: &Closure) -> Option<ClosureFailure> {
        self.cancels.clone().or_else(|| closure.lost_argument())
    }

    fn end_unrun(&mut self, closure: &Closure, cause: ClosureFailure) {
        self.open -= 1;
        if closure.window == self.current.number {
            self.current.open -= 1;
        }
        let _ = closure.slot.outcome.set(Outcome::Cancelled(cause));
    }

    /// Commits the effects of the current window, if it has no open closures and gets no more.
    fn commit_window(&mut self) -> Next {
        let Order::Scheduled { window } = self.order else { return Next::Nothing };
        let (next, closures) = self.window;
        let number = self.current.number;
        let is_full = number < next || closures == window.get();
        if !is_full || self.current.open > 0 || self.current.commits {
            return Next::Nothing;
        }
        self.current.commits = true;
        let effects = mem::take(&mut self.current.ended).into_values().collect();
        self.commit(effects)
    }

    fn commit(&mut self, effects: Vec<Effects>) -> Next {
        self.commits.extend(effects.iter().map(|effects| effects.attempt.id));
        Next::Commit(effects)
    }

    fn begin_window(&mut self, number: u64) {
        if self.window.0 < number {
            self.window = (number, 0);
        }
        let open = self.waiting.values().filter(|closure| closure.window == number).count();
        self.current = Window { number, open, ..Window::default() };
    }
}

impl Closure {
    /// Returns whether an argument has a value for each worker.
    fn is_per_worker(&self) -> bool {
        self.argument.iter().any(|part| matches!(part, Part::PerWorker(_)))
    }

    /// Returns the bytes of the argument, if all of its parts are there.
    fn argument(&self, worker: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in &self.argument {
            match part {
                Part::Bytes(part) => bytes.extend_from_slice(part),
                Part::PerWorker(parts) => bytes.extend_from_slice(&parts[worker]),
                Part::Remote(slot) => match slot.outcome.get()? {
                    Outcome::Ready(part) => bytes.extend_from_slice(part),
                    Outcome::Failed(_) | Outcome::Cancelled(_) => return None,
                },
            }
        }
        Some(bytes)
    }

    /// Returns why a part of the argument does not come, if there is such a part.
    fn lost_argument(&self) -> Option<ClosureFailure> {
        self.argument.iter().find_map(|part| match part {
            Part::Bytes(_) | Part::PerWorker(_) => None,
            Part::Remote(slot) => match slot.outcome.get()? {
                Outcome::Ready(_) => None,
                Outcome::Failed(failure) | Outcome::Cancelled(failure) => Some(failure.clone()),
            },
        })
    }
}

impl Effects {
    fn set_ready(&self) {
        // In a window it is ready before its effects commit.
        let _ = self.closure.slot.outcome.set(Outcome::Ready(self.result.clone()));
    }
}

#[cfg(test)]
mod tests;
