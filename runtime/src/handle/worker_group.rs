//! The workers that share a strategy's replicas, and the communicators of the replicas of this one.
//!
//! The communicators last as long as the strategy: a rank for each replica of all workers. While
//! nobody uses them they are at *home*, here. A replica holds its own while it runs; in a merge
//! function all are home again, for the cross-replica calls that the function makes. Every such
//! call is a collective of all replicas too, in which a thread stands for each replica of this
//! worker: so a worker that calls something else is named at once, whatever it calls.
//!
//! All workers make the same calls in the same order, hence one at a time: a thread takes its
//! *turn*, for a run or a cross-replica call, and others wait for it, never past their deadline. A
//! run hands its turn to its merge functions.
//!
//! A group that was ended, because a replica failed or a deadline passed, is renewed by every
//! worker at the beginning of a turn, where they wait for each other. Each of them first has a turn
//! that fails: the one in which it is, or else its next. So the programs of all workers see the
//! failure, and those that do the same about it are in step afterwards. Turns are counted from the
//! last renewal on. A failed run ends the group in its turn: a worker that is behind goes on with
//! the turns before that one, which make no collective, since the worker that failed has not waited
//! for them. A group that has lost a worker is not renewed: the workers that are left form another,
//! with communicators of its own.

use crate::{
    Communicator, Error, Result,
    comm::{agreement::Agreement, call::Call},
};
use consonance_kernels::group::Reason;
use consonance_spec::{Kind, call::digest};
use std::{
    ops::Range,
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, ThreadId},
    time::Duration,
};

pub(crate) struct Workers {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The replicas of each worker.
    replicas: Vec<Range<usize>>,
    /// Which worker this process is.
    worker: usize,
    /// The communicator of each replica of this worker, if it is home.
    home: Vec<Option<Communicator>>,
    /// The thread whose turn it is, and its call.
    turn: Option<(ThreadId, &'static str)>,
    /// How many turns this worker has had since the group was made or renewed.
    turns: u64,
    /// Whether a turn of this worker has failed because the group was ended.
    failed: bool,
    /// Whether a call within the turn has.
    call_failed: bool,
    /// How many variables there are.
    variables: u64,
}

impl Workers {
    /// The workers of a group, of which each rank says in which it is: a collective of all of them.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the communicators are not those of replicas that follow each
    /// other, if a worker has none, or if two processes say that they are the same worker; those of
    /// a collective.
    pub(crate) fn meet(
        call: &'static str,
        communicators: Vec<Communicator>,
        (worker, workers): (usize, usize),
        cluster: &str,
    ) -> Result<Workers> {
        let state = Mutex::new(State::meet(call, communicators, (worker, workers), cluster, 0)?);
        let workers = Workers { state, changed: Condvar::new() };
        workers.rouse();
        Ok(workers)
    }

    /// Goes on with the workers of another group, as [`meet`](Workers::meet) does: this one is
    /// `worker` of `workers` now. New variables are numbered from what all of them have.
    pub(crate) fn meet_again(
        &self,
        call: &'static str,
        communicators: Vec<Communicator>,
        (worker, workers): (usize, usize),
        cluster: &str,
    ) -> Result<()> {
        let variables = self.variables();
        let state = State::meet(call, communicators, (worker, workers), cluster, variables)?;
        let mut old = self.lock();
        let turn = old.turn;
        *old = State { turn, ..state };
        drop(old);
        self.rouse();
        Ok(())
    }

    /// The number of workers.
    pub(crate) fn count(&self) -> usize {
        self.lock().replicas.len()
    }

    /// Which worker this process is.
    pub(crate) fn worker(&self) -> usize {
        self.lock().worker
    }

    /// Whether this process is the chief, which has replica 0.
    #[cfg(feature = "checkpoint")]
    pub(crate) fn is_chief(&self) -> bool {
        self.worker() == 0
    }

    /// The replicas of this worker.
    pub(crate) fn local(&self) -> Range<usize> {
        self.lock().local()
    }

    /// The replicas of all workers.
    pub(crate) fn num_replicas(&self) -> usize {
        self.lock().replicas.last().map_or(0, |last| last.end)
    }

    /// How many variables there are.
    pub(crate) fn variables(&self) -> u64 {
        self.lock().variables
    }

    /// Sets how many variables there are.
    pub(crate) fn set_variables(&self, variables: u64) {
        self.lock().variables = variables;
    }

    /// The turn of a run, until it is dropped, as the one of this thread, which calls a merge
    /// function of that run.
    pub(crate) fn hand_over(&self) -> CallGuard<'_> {
        let before = self.lock().turn.replace((thread::current().id(), "ReplicaContext::merge_call"));
        CallGuard { workers: self, before }
    }

    /// Lets this thread alone use the communicators, until the turn is dropped.
    pub(crate) fn take_turn(&self, call: &'static str, timeout: Duration) -> Result<CallGuard<'_>> {
        let own = thread::current().id();
        let mut state = self.wait(call, timeout, |state| state.turn.is_none_or(|(thread, _)| thread == own))?;
        let before = state.turn.replace((own, call));
        state.call_failed &= before.is_some();
        state.turns += u64::from(before.is_none());
        Ok(CallGuard { workers: self, before })
    }

    /// The communicator of each replica of this worker, taken from home.
    pub(super) fn take_all(&self, call: &'static str, timeout: Duration) -> Result<Vec<Option<Communicator>>> {
        let mut state = self.wait(call, timeout, |state| state.home.iter().all(Option::is_some))?;
        Ok(state.home.iter_mut().map(Option::take).collect())
    }

    /// The communicator of the replica at this place, once whoever has it has put it home: before
    /// the deadline of its call.
    pub(super) fn take(&self, place: usize) -> Communicator {
        let mut state = self.lock();
        loop {
            if let Some(communicator) = state.home[place].take() {
                return communicator;
            }
            state = self.changed.wait(state).expect("nobody panics holding the state");
        }
    }

    /// Whether the group was ended, in this turn of its workers or one before. The first turn of
    /// this worker that finds it so fails.
    ///
    /// # Errors
    /// [`Error::Aborted`] or [`Error::Left`], once.
    pub(super) fn has_ended(&self, call: &'static str) -> Result<bool> {
        let mut state = self.lock();
        let (turn, failed) = (state.turns, state.failed);
        let Some(first) = state.home.iter_mut().flatten().next() else { return Ok(false) };
        let aborter = first.abort_handle();
        if !aborter.is_aborted() || (!failed && aborter.ended_after(turn)) {
            return Ok(false);
        }
        // In a group that was ended no call waits for anybody.
        match first.barrier() {
            Err(mut error) if !failed => {
                let (Error::Aborted { call: named, .. } | Error::Left { call: named, .. }) = &mut error else {
                    return Ok(true);
                };
                *named = call.to_owned();
                state.failed = true;
                Err(error)
            }
            _ => Ok(true),
        }
    }

    /// Counts turns from here on: the group was renewed.
    pub(super) fn begin_anew(&self) {
        let mut state = self.lock();
        (state.failed, state.turns) = (false, 0);
    }

    /// Says that a call within the turn has failed, if that has ended the group.
    pub(super) fn call_failed(&self) {
        let mut state = self.lock();
        state.call_failed |= state.has_ended();
    }

    /// Ends the group in the name of this worker, whose turn it is: a call within it has failed.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.call_failed = true;
        if let Some(first) = state.home.iter().flatten().next() {
            first.abort_handle().abort_in(state.turns, Reason::Failure);
        }
    }

    /// The number of the turn that it is.
    pub(crate) fn turn(&self) -> u64 {
        self.lock().turns
    }

    /// No replica of this worker is one that has returned from a run that goes on. All
    /// communicators are home.
    pub(crate) fn rouse(&self) {
        let mut state = self.lock();
        let local = state.local();
        state.home.iter_mut().flatten().for_each(|communicator| communicator.set_idle(local.clone(), false));
    }

    pub(super) fn put_home(&self, place: usize, communicator: Communicator) {
        self.lock().home[place] = Some(communicator);
        self.changed.notify_all();
    }

    /// The state, once it is `ready`.
    fn wait(
        &self,
        call: &'static str,
        timeout: Duration,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>> {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| !ready(state));
        match waited.expect("nobody panics holding the state") {
            (state, result) if result.timed_out() => {
                let (_, other) = state.turn.unzip();
                let last = format!(
                    "its {} on another thread has not ended; a call on a new thread within that one cannot begin",
                    other.unwrap_or("call")
                );
                Err(Error::Timeout {
                    call: call.to_owned(),
                    waited: timeout,
                    missing: vec![(state.local().start, last)],
                })
            }
            (state, _) => Ok(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics holding the state")
    }
}

impl State {
    /// See [`Workers::meet`]; `variables` is how many this worker has.
    fn meet(
        call: &'static str,
        mut communicators: Vec<Communicator>,
        (worker, workers): (usize, usize),
        cluster: &str,
        variables: u64,
    ) -> Result<State> {
        let Some(first) = communicators.first().map(Communicator::rank) else {
            return Err(Error::invalid(call, "communicators", "one for each replica of this worker", "none"));
        };
        let (size, count) = (communicators[0].size(), communicators.len());
        for (place, communicator) in communicators.iter().enumerate() {
            let found = (communicator.rank(), communicator.size());
            if found != (first + place, size) {
                let expected = format!("rank {} of {size} after the one before", first + place);
                let found = format!("rank {} of {}", found.0, found.1);
                return Err(Error::invalid(call, format!("communicators[{place}]"), expected, found));
            }
        }
        let tell = |communicator: &mut Communicator| {
            let describe = || vec![("cluster".to_owned(), cluster.to_owned())];
            let agreement = Agreement { call: Some(Kind::Workers), digest: digest(cluster), describe: &describe };
            let mut all = vec![[0u64; 4]; size];
            let own = [worker as u64, variables, first as u64, count as u64];
            let (send, recv) = (Some(own.as_slice().into()), all.as_flattened_mut().into());
            communicator.execute(Call::AllGather { send, recv, counts: None }, &agreement)?;
            // Nobody fails before all have heard: it would end the group under a worker that still
            // makes its strategy.
            communicator.barrier().map(|()| all)
        };
        let told: Vec<Result<Vec<[u64; 4]>>> = thread::scope(|scope| {
            let tell = &tell;
            let threads: Vec<_> =
                communicators.iter_mut().map(|communicator| scope.spawn(move || tell(communicator))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a collective does not panic")).collect()
        });
        let told = told.into_iter().collect::<Result<Vec<_>>>()?.swap_remove(0);
        let variables = told.iter().map(|&[_, variables, ..]| variables).max().unwrap_or(variables);
        let processes: Vec<Range<usize>> =
            told.iter().map(|&[_, _, first, count]| first as usize..first.saturating_add(count) as usize).collect();
        let told: Vec<u64> = told.into_iter().map(|[worker, ..]| worker).collect();
        let replicas: Vec<Range<usize>> = (0..workers as u64)
            .map(|worker| {
                let start = told.partition_point(|&other| other < worker);
                start..start + told[start..].iter().take_while(|&&other| other == worker).count()
            })
            .collect();
        if !told.is_sorted() || replicas.iter().any(Range::is_empty) || told.last() >= Some(&(workers as u64)) {
            let expected = format!("replicas of all {workers} workers, in their order");
            return Err(Error::invalid(call, "communicators", expected, format!("replicas of workers {told:?}")));
        }
        // Two processes may say that they are the same worker. All ranks look at all, so that all
        // refuse.
        for (&worker, own) in told.iter().zip(&processes) {
            let all = &replicas[worker as usize];
            if own != all {
                let expected = format!("replicas {all:?}, which are worker {worker}'s, all from one process");
                return Err(Error::invalid(call, "communicators", expected, format!("only {own:?} from one")));
            }
        }
        let home = communicators.into_iter().map(Some).collect();
        Ok(State { replicas, worker, home, turn: None, turns: 0, failed: false, call_failed: false, variables })
    }

    /// The replicas of this worker.
    fn local(&self) -> Range<usize> {
        self.replicas[self.worker].clone()
    }

    /// Whether the group was ended.
    fn has_ended(&self) -> bool {
        self.home.iter().flatten().any(|communicator| communicator.abort_handle().is_aborted())
    }
}

/// The right of a thread to use the communicators.
pub(crate) struct CallGuard<'w> {
    workers: &'w Workers,
    /// Whose turn it was, and is again.
    before: Option<(ThreadId, &'static str)>,
}

impl CallGuard<'_> {
    /// Says that it has failed, or a call within it, which is what a turn does once if the group
    /// was ended. Within a run it is the run that fails.
    pub(crate) fn failed(&self) {
        let mut state = self.workers.lock();
        let ended = state.has_ended();
        state.call_failed |= ended;
        state.failed |= ended && self.before.is_none();
    }

    /// Whether this thread had its turn before this one.
    pub(crate) fn is_within_another(&self) -> bool {
        self.before.is_some()
    }

    /// Whether a call within it has.
    pub(super) fn call_failed(&self) -> bool {
        self.workers.lock().call_failed
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.workers.lock().turn = self.before;
        self.workers.changed.notify_all();
    }
}
