//! The workers that share a strategy's replicas, and the communicators of this worker's replicas.
//!
//! **Communicators** last as long as the strategy. Each replica of all workers has a rank. Unused
//! communicators are at *home*, here. A replica holds its own while it runs. In a merge function
//! all are home again, for the cross-replica calls of the function. Every such call is also a
//! collective of all replicas, with a thread for each replica of this worker. So a worker that
//! makes another call is named at once, whatever it calls.
//!
//! **Turns.** All workers make the same calls in the same order, so a worker makes one at a time. A
//! thread takes a *turn* for a run or a cross-replica call; other threads wait for it, at most
//! until their deadline. A run hands its turn to its merge functions.
//!
//! **Renewal.** After an abort (a replica failed or a deadline passed) every worker renews the
//! group at the beginning of a turn, and they wait for each other there. Before that, each worker
//! has one turn that fails: its current one, else its next. So the programs of all workers see the
//! failure, and programs that react alike stay in step. Turns are counted from the last renewal. A
//! failed run aborts the group in its turn. A worker that is behind goes on with the turns before
//! that one. These make no collective, since the worker that failed has not waited for them.
//!
//! **Reform.** A group that has lost a worker is not renewed: the remaining workers form another
//! group, with new communicators, or on engines of messages with the same ones. An attempt that
//! fails there leaves the communicators in groups that have not formed. Then every turn fails until
//! a repeated call has formed the group.

use super::{
    claims::{Claim, Roles, remaining, tell},
    common_settings::{Common, next_group},
};
use crate::{
    Communicator, Device, Error, Result,
    cluster::Majority,
    comm::{
        engine::{AbortHandle, OnGpu},
        options::Configuration,
    },
};
use consonance_kernels::group::Reason;
use std::{
    ops::Range,
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, ThreadId},
    time::Duration,
};

pub(crate) struct Workers {
    state: Mutex<GroupState>,
    changed: Condvar,
}

struct GroupState {
    /// The number of the group in this process.
    group: u64,
    /// The replicas of each worker.
    replicas: Vec<Range<usize>>,
    /// The number of this worker.
    worker: usize,
    /// Of the communicator of the first replica of this worker, also while that is not home.
    abort_handle: AbortHandle,
    /// The communicator of each replica of this worker, if it is home.
    home: Vec<Option<Communicator>>,
    /// The thread whose turn it is, and its call.
    turn: Option<(ThreadId, &'static str)>,
    /// The number of turns of this worker since the group was made or renewed.
    turns: u64,
    /// Whether a turn of this worker has failed because the group was aborted.
    failed: bool,
    /// Whether a call within the current turn has failed for this reason.
    call_failed: bool,
    /// Whether the group has formed: false from the beginning of a reform on the same
    /// communicators until it is done.
    formed: bool,
    /// The number of variables.
    variables: u64,
    /// The number of threads that wait for a change. A notification costs a system call, so it is
    /// sent only if there are some.
    waiting: usize,
}

impl Workers {
    /// Forms the workers of a group: each rank tells the others its worker. A collective of all
    /// ranks.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the communicators are not those of consecutive replicas, if a
    /// worker has none, or if two processes claim to be the same worker; otherwise those of a
    /// collective.
    pub(crate) fn meet(
        call: &'static str,
        (communicators, devices): (Vec<Communicator>, &[Device]),
        (worker, workers): (usize, usize),
        common: &Common,
    ) -> Result<Workers> {
        let state = Mutex::new(GroupState::meet(call, (communicators, devices), (worker, workers), common, 0)?);
        let workers = Workers { state, changed: Condvar::new() };
        workers.rouse();
        Ok(workers)
    }

    /// Replaces the group, like [`meet`](Workers::meet): this worker is now `worker` of `workers`.
    /// New variables are numbered from the largest number of variables of a worker.
    pub(crate) fn meet_again(
        &self,
        call: &'static str,
        (communicators, devices): (Vec<Communicator>, &[Device]),
        (worker, workers): (usize, usize),
        common: &Common,
    ) -> Result<()> {
        let variables = self.variables();
        self.replace(GroupState::meet(call, (communicators, devices), (worker, workers), common, variables)?);
        Ok(())
    }

    /// After a loss, forms the group of the workers that are left, on the engines of the
    /// communicators. Each of them makes this call. They keep their order, and are numbered anew;
    /// so are variables, as in [`meet_again`](Workers::meet_again).
    ///
    /// # Errors
    /// Those of [`Engine::reform`](crate::raw::Engine::reform) and of a collective. The call may
    /// then be repeated.
    pub(crate) fn reform(
        &self,
        call: &'static str,
        configuration: Configuration,
        (devices, common): (&[Device], &Common),
        majority: Majority,
    ) -> Result<()> {
        let home = self.take_all(call, configuration.timeout)?;
        let mut communicators: Vec<_> = home.into_iter().flatten().collect();
        let variables = self.variables();
        let claims = remaining(&mut communicators, |(place, count), communicator| {
            communicator.configure(configuration);
            if majority == Majority::Waived {
                communicator.waive_majority();
            }
            let met = communicator.reform();
            // An engine that refuses keeps its group.
            if !matches!(met, Err(Error::WrongContext { .. })) {
                self.lock().formed = false;
            }
            met?;
            let Some(first) = communicator.rank().checked_sub(place) else {
                communicator.abort_handle().abort(Reason::Failure);
                let problem = "the other replicas take one of this worker for lost".to_owned();
                return Err(Error::WrongContext { call, problem });
            };
            // The first rank stands for the worker: a worker whose last reform failed has kept its
            // number, and others may have another by now.
            let on_gpu = devices[place].gpu().is_some().into();
            tell(communicator, [first, variables as usize, first, count, on_gpu], common)
        });
        let first = communicators.first().map_or(0, Communicator::rank);
        match claims.and_then(|claims| Roles::new(call, &claims, first, None)) {
            Ok(roles) => {
                self.replace(GroupState::new(communicators, roles));
                Ok(())
            }
            Err(error) => {
                let mut state = self.lock();
                state.home = communicators.into_iter().map(Some).collect();
                self.notify(state);
                Err(error)
            }
        }
    }

    /// Goes on with another group.
    fn replace(&self, state: GroupState) {
        let mut old = self.lock();
        let (turn, waiting) = (old.turn, old.waiting);
        *old = GroupState { turn, waiting, ..state };
        drop(old);
        self.rouse();
    }

    /// Returns the number of the group in this process.
    pub(crate) fn group(&self) -> u64 {
        self.lock().group
    }

    /// Returns the number of workers.
    pub(crate) fn count(&self) -> usize {
        self.lock().replicas.len()
    }

    /// Returns the number of this worker.
    pub(crate) fn worker(&self) -> usize {
        self.lock().worker
    }

    /// Returns whether this process is the chief, which has replica 0.
    #[cfg(feature = "checkpoint")]
    pub(crate) fn is_chief(&self) -> bool {
        self.worker() == 0
    }

    /// Returns the replicas of this worker.
    pub(crate) fn local(&self) -> Range<usize> {
        self.lock().local()
    }

    /// Returns the number of replicas of all workers.
    pub(crate) fn num_replicas(&self) -> usize {
        self.lock().replicas.last().map_or(0, |last| last.end)
    }

    /// Returns the number of variables.
    pub(crate) fn variables(&self) -> u64 {
        self.lock().variables
    }

    /// Sets the number of variables.
    pub(crate) fn set_variables(&self, variables: u64) {
        self.lock().variables = variables;
    }

    /// Hands the turn of a run to this thread, which calls a merge function of that run, until the
    /// guard is dropped.
    pub(crate) fn hand_over(&self) -> CallGuard<'_> {
        let before = self.lock().turn.replace((thread::current().id(), "ReplicaContext::merge_call"));
        CallGuard { workers: self, before }
    }

    /// Takes a turn: only this thread may use the communicators until the guard is dropped.
    pub(crate) fn take_turn(&self, call: &'static str, timeout: Duration) -> Result<CallGuard<'_>> {
        let own = thread::current().id();
        let mut state = self.wait(call, timeout, |state| state.turn.is_none_or(|(thread, _)| thread == own))?;
        let before = state.turn.replace((own, call));
        state.call_failed &= before.is_some();
        state.turns += u64::from(before.is_none());
        Ok(CallGuard { workers: self, before })
    }

    /// Takes the communicator of each replica of this worker from home.
    pub(super) fn take_all(&self, call: &'static str, timeout: Duration) -> Result<Vec<Option<Communicator>>> {
        let mut state = self.wait(call, timeout, |state| state.home.iter().all(Option::is_some))?;
        Ok(state.home.iter_mut().map(Option::take).collect())
    }

    /// Takes the communicator of the replica at this position from home. Waits until its user has
    /// put it home, which happens before the deadline of that user's call.
    pub(super) fn take(&self, place: usize) -> Communicator {
        let mut state = self.lock();
        loop {
            if let Some(communicator) = state.home[place].take() {
                return communicator;
            }
            state.waiting += 1;
            state = self.changed.wait(state).expect("nobody panics holding the state");
            state.waiting -= 1;
        }
    }

    /// Returns whether the group was aborted in this turn of its workers or an earlier one. The
    /// first turn of this worker that notices it fails.
    ///
    /// # Errors
    /// [`Error::Aborted`] or [`Error::Left`], once. [`Error::WrongContext`] while the group has not
    /// formed.
    pub(super) fn has_ended(&self, call: &'static str) -> Result<bool> {
        let mut state = self.lock();
        if !state.formed {
            let problem = "the workers that are left after a loss have not formed a group: repeat `reform`".to_owned();
            return Err(Error::WrongContext { call, problem });
        }
        let (turn, failed) = (state.turns, state.failed);
        let Some(first) = state.home.iter_mut().flatten().next() else { return Ok(false) };
        let aborter = first.abort_handle();
        if !aborter.is_aborted() || (!failed && aborter.ended_after(turn)) {
            return Ok(false);
        }
        // In an aborted group no call waits.
        if let Err(mut error) = first.barrier()
            && let Error::Aborted { call: named, .. } | Error::Left { call: named, .. } = &mut error
            && !failed
        {
            *named = call.to_owned();
            state.failed = true;
            return Err(error);
        }
        // On an engine of messages another replica may not have been told yet. It would not renew
        // its group, and the others would wait for it.
        for communicator in state.home.iter().flatten() {
            let aborter = communicator.abort_handle();
            if !aborter.is_aborted() {
                aborter.abort(Reason::Failure);
            }
        }
        Ok(true)
    }

    /// Restarts the count of turns, after the group was renewed.
    pub(super) fn begin_anew(&self) {
        let mut state = self.lock();
        (state.failed, state.turns) = (false, 0);
    }

    /// Records that a call within the turn has failed, if the group is aborted.
    pub(super) fn call_failed(&self) {
        let mut state = self.lock();
        state.call_failed |= state.has_ended();
    }

    /// Aborts the group in the name of this worker: a call within its turn has failed.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.call_failed = true;
        if let Some(first) = state.home.iter().flatten().next() {
            first.abort_handle().abort_in(state.turns, Reason::Failure);
        }
    }

    /// Returns the number of the current turn.
    pub(crate) fn turn(&self) -> u64 {
        self.lock().turns
    }

    /// Clears the idle flag of every local replica: the run is over and all communicators are home.
    pub(crate) fn rouse(&self) {
        let mut state = self.lock();
        let local = state.local();
        state.home.iter_mut().flatten().for_each(|communicator| communicator.set_idle(local.clone(), false));
    }

    pub(super) fn put_home(&self, place: usize, communicator: Communicator) {
        let mut state = self.lock();
        state.home[place] = Some(communicator);
        self.notify(state);
    }

    /// Waits until the state is `ready`, and returns it.
    fn wait(
        &self,
        call: &'static str,
        timeout: Duration,
        ready: impl Fn(&GroupState) -> bool,
    ) -> Result<MutexGuard<'_, GroupState>> {
        let mut state = self.lock();
        if ready(&state) {
            return Ok(state);
        }
        state.waiting += 1;
        let waited = self.changed.wait_timeout_while(state, timeout, |state| !ready(state));
        let (mut state, result) = waited.expect("nobody panics holding the state");
        state.waiting -= 1;
        match result.timed_out() {
            true => {
                let (own, other) = (state.local().start, state.turn.map_or("call", |(_, call)| call));
                let late = state.abort_handle.held_up_by(own);
                let last = match late == own {
                    true => format!(
                        "its {other} on another thread has not ended; a call on a new thread within that one cannot \
                         begin"
                    ),
                    false => format!("the {other} of replica {own} on another thread waits for it"),
                };
                Err(Error::Timeout { call: call.to_owned(), waited: timeout, missing: vec![(late, last)] })
            }
            false => Ok(state),
        }
    }

    /// Tells the threads that wait for a change of `state`, if there are some.
    fn notify(&self, state: MutexGuard<'_, GroupState>) {
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().expect("nobody panics holding the state")
    }
}

impl GroupState {
    /// See [`Workers::meet`]. `variables` is the number of variables of this worker.
    fn meet(
        call: &'static str,
        (communicators, devices): (Vec<Communicator>, &[Device]),
        (worker, workers): (usize, usize),
        common: &Common,
        variables: u64,
    ) -> Result<GroupState> {
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
        let mut communicators = OnGpu::place(call, communicators, devices)?;
        let own = |device: &Device| [worker, variables as usize, first, count, device.gpu().is_some().into()];
        let claims: Vec<Result<Vec<Claim>>> = thread::scope(|scope| {
            let threads: Vec<_> = communicators
                .iter_mut()
                .zip(devices)
                .map(|(communicator, device)| scope.spawn(move || tell(communicator, own(device), common)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a collective does not panic")).collect()
        });
        let claims = claims.into_iter().collect::<Result<Vec<_>>>()?.swap_remove(0);
        common.check_grains(call, size)?;
        Ok(GroupState::new(communicators, Roles::new(call, &claims, worker, Some(workers))?))
    }

    fn new(mut communicators: Vec<Communicator>, roles: Roles) -> GroupState {
        let Roles { replicas, worker, variables, mixed } = roles;
        communicators.iter_mut().for_each(|communicator| communicator.mixed = mixed);
        let abort_handle = communicators[0].abort_handle();
        let home = communicators.into_iter().map(Some).collect();
        GroupState {
            group: next_group(),
            replicas,
            worker,
            abort_handle,
            home,
            turn: None,
            turns: 0,
            failed: false,
            call_failed: false,
            formed: true,
            variables,
            waiting: 0,
        }
    }

    /// Returns the replicas of this worker.
    fn local(&self) -> Range<usize> {
        self.replicas[self.worker].clone()
    }

    /// Returns whether the group was aborted.
    fn has_ended(&self) -> bool {
        self.home.iter().flatten().any(|communicator| communicator.abort_handle().is_aborted())
    }
}

/// A turn: the right of a thread to use the communicators.
pub(crate) struct CallGuard<'w> {
    workers: &'w Workers,
    /// The turn that this one interrupts, restored when this is dropped.
    before: Option<(ThreadId, &'static str)>,
}

impl CallGuard<'_> {
    /// Records that this turn, or a call inside it, failed because the group was aborted. Each
    /// worker reports an abort once. Within a run, the run itself fails.
    pub(crate) fn failed(&self) {
        let mut state = self.workers.lock();
        let ended = state.has_ended();
        state.call_failed |= ended;
        state.failed |= ended && self.before.is_none();
    }

    /// Returns whether this turn is nested in another one.
    pub(crate) fn is_within_another(&self) -> bool {
        self.before.is_some()
    }

    /// Returns whether a call inside this turn has failed because the group was aborted.
    pub(super) fn call_failed(&self) -> bool {
        self.workers.lock().call_failed
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.workers.lock();
        state.turn = self.before;
        self.workers.notify(state);
    }
}
