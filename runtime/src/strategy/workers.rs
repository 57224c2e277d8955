//! The workers that share a strategy's replicas, and the communicators of the replicas of this one.
//!
//! The communicators last as long as the strategy: a rank for each replica of all workers. While nobody uses them they are at
//! *home*, here. A replica holds its own while it runs; in a merge function all are home again, for the cross-replica calls that
//! the function makes. Every such call is a collective of all replicas too, in which a thread stands for each replica of this
//! worker: so a worker that calls something else is named at once, whatever it calls.
//!
//! All workers make the same calls in the same order, hence one at a time: a thread takes its *turn*, for a run or a
//! cross-replica call, and others wait for it, never past their deadline. A run hands its turn to its merge functions.
//!
//! A group that was ended, because a replica failed or a deadline passed, is renewed by every worker at the beginning of a turn,
//! where they wait for each other. Each of them first has a turn that fails: the one in which it is, or else its next. So the
//! programs of all workers see the failure, and those that do the same about it are in step afterwards. A group that has lost a
//! worker is not renewed: the workers that are left form another, with communicators of its own.

use super::{Strategy, run::all_or_worst};
use crate::{Communicator, Error, Result, backend::Arguments, call::Call, context};
use consonance_kernels::{step::Reason, team::Team};
use consonance_spec::{Kind, call::digest};
use std::{
    ops::{Deref, DerefMut, Range},
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
    /// The thread whose turn it is.
    turn: Option<ThreadId>,
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
    /// [`Error::InvalidCall`] if the communicators are not those of replicas that follow each other, if a worker has none, or if
    /// two processes say that they are the same worker;
    /// those of a collective.
    pub(super) fn meet(
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

    /// Goes on with the workers of another group, as [`meet`](Workers::meet) does: this one is `worker` of `workers` now. New
    /// variables are numbered from what all of them have.
    pub(super) fn meet_again(
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

    /// The turn of a run, until it is dropped, as the one of this thread, which calls a merge function of that run.
    pub(crate) fn hand_over(&self) -> Turn<'_> {
        let before = self.lock().turn.replace(thread::current().id());
        Turn { workers: self, before }
    }

    /// Lets this thread alone use the communicators, until the turn is dropped.
    pub(super) fn take_turn(&self, call: &'static str, timeout: Duration) -> Result<Turn<'_>> {
        let own = Some(thread::current().id());
        let mut state = self.wait(call, timeout, |state| state.turn.is_none() || state.turn == own)?;
        let before = std::mem::replace(&mut state.turn, own);
        state.call_failed &= before.is_some();
        Ok(Turn { workers: self, before })
    }

    /// The communicator of each replica of this worker, taken from home.
    fn take_all(&self, call: &'static str, timeout: Duration) -> Result<Vec<Option<Communicator>>> {
        let mut state = self.wait(call, timeout, |state| state.home.iter().all(Option::is_some))?;
        Ok(state.home.iter_mut().map(Option::take).collect())
    }

    /// The communicator of the replica at this place, once whoever has it has put it home: before the deadline of its call.
    fn take(&self, place: usize) -> Communicator {
        let mut state = self.lock();
        loop {
            if let Some(communicator) = state.home[place].take() {
                return communicator;
            }
            state = self.changed.wait(state).expect("nobody panics holding the state");
        }
    }

    /// Whether the group was ended. The first turn of this worker that finds it so fails.
    ///
    /// # Errors
    /// [`Error::Aborted`], once.
    fn has_ended(&self, call: &'static str) -> Result<bool> {
        let mut state = self.lock();
        let Some(first) = state.home.iter_mut().flatten().next() else { return Ok(false) };
        if first.aborter().aborted().is_none() {
            return Ok(false);
        }
        // In a group that was ended no call waits for anybody.
        match first.barrier() {
            Err(Error::Aborted { replica, reason, lost, calls, .. }) if !state.failed => {
                state.failed = true;
                Err(Error::Aborted { call: call.to_owned(), replica, reason, lost, calls })
            }
            _ => Ok(true),
        }
    }

    /// Says that a call within the turn has failed, if that has ended the group.
    fn call_failed(&self) {
        let mut state = self.lock();
        state.call_failed |= state.has_ended();
    }

    /// Ends the group in the name of this worker, whose turn it is: a call within it has failed.
    fn end(&self) {
        let mut state = self.lock();
        state.call_failed = true;
        if let Some(first) = state.home.iter().flatten().next() {
            first.aborter().abort(Reason::Failure);
        }
    }

    /// No replica of this worker is one that has returned from a run that goes on. All communicators are home.
    pub(super) fn rouse(&self) {
        let mut state = self.lock();
        let local = state.local();
        state.home.iter_mut().flatten().for_each(|communicator| communicator.rest(local.clone(), false));
    }

    fn put_home(&self, place: usize, communicator: Communicator) {
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
            (_, result) if result.timed_out() => {
                let call = format!("{call} (another thread uses the strategy)");
                Err(Error::Timeout { call, waited: timeout, missing: Vec::new() })
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
            let arguments = Arguments { call: Some(Kind::Workers), digest: digest(cluster), describe: &describe };
            let mut all = vec![[0u64; 4]; size];
            let own = [worker as u64, variables, first as u64, count as u64];
            let (send, recv) = (Some(own.as_slice().into()), all.as_flattened_mut().into());
            communicator.call_with(Call::AllGather { send, recv, counts: None }, &arguments)?;
            // Nobody fails before all have heard: it would end the group under a worker that still makes its strategy.
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
            told.iter().map(|&[_, _, first, count]| first as usize..(first + count) as usize).collect();
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
        // Two processes may say that they are the same worker. All ranks look at all, so that all refuse.
        for (&worker, own) in told.iter().zip(&processes) {
            let all = &replicas[worker as usize];
            if own != all {
                let expected = format!("replicas {all:?}, which are worker {worker}'s, all from one process");
                return Err(Error::invalid(call, "communicators", expected, format!("only {own:?} from one")));
            }
        }
        let home = communicators.into_iter().map(Some).collect();
        Ok(State { replicas, worker, home, turn: None, failed: false, call_failed: false, variables })
    }

    /// The replicas of this worker.
    fn local(&self) -> Range<usize> {
        self.replicas[self.worker].clone()
    }

    /// Whether the group was ended.
    fn has_ended(&self) -> bool {
        self.home.iter().flatten().any(|communicator| communicator.aborter().aborted().is_some())
    }
}

/// The right of a thread to use the communicators.
pub(crate) struct Turn<'w> {
    workers: &'w Workers,
    /// Whose turn it was, and is again.
    before: Option<ThreadId>,
}

impl Turn<'_> {
    /// Says that it has failed, or a call within it, which is what a turn does once if the group was ended. Within a run it is the run
    /// that fails.
    pub(super) fn failed(&self) {
        let mut state = self.workers.lock();
        let ended = state.has_ended();
        state.call_failed |= ended;
        state.failed |= ended && self.before.is_none();
    }

    /// Whether this thread had its turn before this one.
    pub(super) fn is_within_another(&self) -> bool {
        self.before.is_some()
    }

    /// Whether a call within it has.
    fn call_failed(&self) -> bool {
        self.workers.lock().call_failed
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.workers.lock().turn = self.before;
        self.workers.changed.notify_all();
    }
}

/// A replica's communicator in use. One that has a home goes there when this is dropped; another one leaves its group.
pub(crate) struct Held {
    /// The strategy whose workers it belongs to, and the replica's place among those of this one.
    home: Option<(Strategy, usize)>,
    /// None while it is lent.
    communicator: Option<Communicator>,
}

impl Held {
    /// A communicator of one run.
    pub(super) fn of_run(communicator: Communicator) -> Held {
        Held { home: None, communicator: Some(communicator) }
    }

    /// Gives it up to another thread of this process, which makes this replica's calls until it is [put
    /// back](Held::put_back).
    pub(crate) fn give_up(&mut self) -> Communicator {
        self.communicator.take().expect("nobody uses what is lent")
    }

    /// Puts back what was given up.
    pub(crate) fn put_back(&mut self, communicator: Communicator) {
        self.communicator = Some(communicator);
    }

    /// Lends it to a merge function, if it has a home.
    pub(crate) fn lend(&mut self) {
        if let Some((strategy, place)) = &self.home
            && let Some(workers) = strategy.workers()
            && let Some(communicator) = self.communicator.take()
        {
            workers.put_home(*place, communicator);
        }
    }

    /// Takes it back.
    pub(crate) fn take_back(&mut self) {
        if let Some((strategy, place)) = &self.home
            && let Some(workers) = strategy.workers()
            && self.communicator.is_none()
        {
            self.communicator = Some(workers.take(*place));
        }
    }
}

impl Deref for Held {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        self.communicator.as_ref().expect("nobody uses what is lent")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Communicator {
        self.communicator.as_mut().expect("nobody uses what is lent")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((strategy, place)) = &self.home
            && let Some(workers) = strategy.workers()
            && let Some(mut communicator) = self.communicator.take()
        {
            // This replica makes no more calls in the run: who waits for it in this process is told so.
            communicator.rest(workers.local(), true);
            workers.put_home(*place, communicator);
        }
    }
}

impl Strategy {
    /// The workers, where there are several.
    pub(crate) fn workers(&self) -> Option<&Workers> {
        self.0.workers.as_ref()
    }

    /// The right to use the communicators of a group that works, where there are several workers.
    pub(super) fn turn(&self, call: &'static str) -> Result<Option<Turn<'_>>> {
        let Some(workers) = self.workers() else { return Ok(None) };
        let turn = workers.take_turn(call, self.options().configuration().timeout)?;
        // Within a run it is the run that fails.
        if !turn.is_within_another() && workers.has_ended(call)? {
            self.each(workers, call, Communicator::renew)?;
            workers.lock().failed = false;
        }
        Ok(Some(turn))
    }

    /// The communicators of all replicas of this worker.
    pub(super) fn hold(&self, workers: &Workers, call: &'static str) -> Result<Vec<Held>> {
        let communicators = workers.take_all(call, self.options().configuration().timeout)?;
        let held = |(place, communicator)| Held { home: Some((self.clone(), place)), communicator };
        Ok(communicators.into_iter().enumerate().map(held).collect())
    }

    /// `work` with the communicator of every replica of this worker at once, in a collective of all workers, if there are several.
    pub(crate) fn across<R: Send>(
        &self,
        call: &'static str,
        work: impl Fn(&mut Communicator) -> Result<R> + Sync,
    ) -> Option<Result<Vec<R>>> {
        let workers = self.workers()?;
        Some(self.in_turn(call, || self.each(workers, call, work)))
    }

    /// `work` in one turn, which all cross-replica calls have that it makes.
    pub(crate) fn in_turn<R>(&self, call: &'static str, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let turn = self.turn(call)?;
        let result = work();
        if let Some(turn) = &turn
            && turn.call_failed()
        {
            turn.failed();
        }
        result
    }

    fn each<R: Send>(
        &self,
        workers: &Workers,
        call: &'static str,
        work: impl Fn(&mut Communicator) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let configuration = self.options().configuration();
        let team = match self.0.devices.len() {
            1 => None,
            _ => Some(self.team_or_end()?),
        };
        let held = self.hold(workers, call)?;
        let tasks: Vec<_> = held.into_iter().map(|held| Mutex::new((Some(held), None))).collect();
        let each = |place: usize| {
            let held = tasks[place].lock().expect("nobody panics holding a task").0.take();
            let result = held.map(|mut held| {
                held.configure(configuration);
                work(&mut held)
            });
            tasks[place].lock().expect("nobody panics holding a task").1 = result;
        };
        match team {
            None => each(0),
            Some(mut team) => {
                team.run(&each);
                self.give_back(team);
            }
        }
        workers.rouse();
        let results = tasks.into_iter().map(|task| match task.into_inner() {
            Ok((_, Some(result))) => result,
            _ => unreachable!("the team has done every task, and nobody panics holding one"),
        });
        all_or_worst(results.collect()).map_err(|(_, error)| {
            // The system's is here one of a communicator, which has no memory for a call.
            if matches!(error, Error::Aborted { .. } | Error::Timeout { .. } | Error::System { .. }) {
                workers.call_failed();
            }
            error
        })
    }

    /// A [team](Strategy::team), before the communicators are taken from home. Without one this worker makes no call, and the other workers,
    /// if there are several, are told by the end of the group: it takes a team to tell them more.
    pub(super) fn team_or_end(&self) -> Result<Team> {
        self.team().inspect_err(|_| {
            if let Some(workers) = self.workers() {
                workers.end();
            }
        })
    }

    /// The value, or the error of which the other workers, who make the same call, are told.
    pub(crate) fn or_refuse<T>(&self, kind: Kind, checked: Result<T>) -> Result<T> {
        checked.inspect_err(|error| {
            if context::replica().is_some() {
                // The others make no such call in their replicas, and the run has the communicators.
                return;
            }
            // What came of it counts for the turn; this worker has an error of its own already.
            let _ = self.across(kind.name(), |communicator| communicator.refuse(kind, error));
        })
    }

    /// The value, or the error for which a run does not begin here: for the other workers, who run theirs, one that has failed.
    pub(super) fn or_fail<T>(&self, call: &'static str, checked: Result<T>) -> Result<T> {
        checked.inspect_err(|_| {
            if context::replica().is_none() {
                let _ = self.across(call, |communicator| {
                    communicator.aborter().abort(Reason::Failure);
                    // Waits for nobody now; its error makes this a turn that has failed.
                    communicator.barrier()
                });
            }
        })
    }
}
