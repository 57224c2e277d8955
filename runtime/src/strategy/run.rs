//! `run`: one function on every replica, each on its own thread.

use crate::{
    Communicator, Error, PerReplica, ReplicaContext, Result, Strategy,
    comm::engine::AbortHandle,
    execution::{CallGuard, CommLease, context},
    panics,
    profile::{Event, RunSpan, Span},
    replica::{MergeBoard, Running},
    worst_error::all_or_worst,
};
use consonance_kernels::group::Reason;
use std::{any::type_name_of_val, panic::Location, sync::Mutex};

impl Strategy {
    /// Runs `replica_fn` on every replica at once and returns the result of every replica of this
    /// process.
    ///
    /// The first replica of this process runs on the calling thread, unless `pin_threads` is set.
    /// Each other replica runs on a thread that is kept between calls. Arguments that differ
    /// between replicas come from the context, or from [`run_with`](Strategy::run_with).
    ///
    /// A thread that `replica_fn` starts is outside of the replica. A run on it is another run of
    /// this strategy: with one worker it runs beside this one, with several it waits until this one
    /// has ended. So a replica must not wait for that thread: the wait ends by the timeout.
    ///
    /// # Errors
    /// The error or panic of a replica, with the replica's id. Replicas that wait for it in a
    /// collective fail at once. The next run after a failed one works. [`Error::WrongContext`]
    /// inside a replica or in another strategy's scope.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let totals = strategy.run(|replica| {
    ///     let loss = Tensor::from(replica.replica_id_in_sync_group() as f32 + 1.0);
    ///     replica.all_reduce(ReduceOp::Sum, loss)
    /// })?;
    /// assert_eq!(strategy.local_results(&totals), [Tensor::from(3.0f32), Tensor::from(3.0f32)]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    #[track_caller]
    pub fn run<R: Send>(&self, replica_fn: impl Fn(&ReplicaContext<'_>) -> Result<R> + Sync) -> Result<PerReplica<R>> {
        let arguments = PerReplica::new(vec![(); self.local_replicas().len()]);
        let function = (type_name_of_val(&replica_fn), Location::caller());
        self.run_as("Strategy::run", function, arguments, |replica, ()| replica_fn(replica))
    }

    /// Does [`run`](Strategy::run) with one argument for each replica of this process.
    ///
    /// # Errors
    /// As [`run`](Strategy::run), and [`Error::InvalidCall`] if the numbers of arguments and
    /// replicas differ. [`Error::Mismatch`] if the arguments of this process break a rule of
    /// [`StaticShapes`](crate::StaticShapes). With several workers the run then fails on the
    /// others, too. Those of other workers are compared in the collectives of `replica_fn`.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = PerReplica::new(vec![Tensor::from([0, 1, 2]), Tensor::from([3, 4])]);
    /// let sizes = strategy.run_with(batches, |_, batch| Ok(batch.shape()[0]))?;
    /// assert_eq!(sizes.values(), [3, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    #[track_caller]
    pub fn run_with<A: Send, R: Send>(
        &self,
        arguments: PerReplica<A>,
        replica_fn: impl Fn(&ReplicaContext<'_>, A) -> Result<R> + Sync,
    ) -> Result<PerReplica<R>> {
        let function = (type_name_of_val(&replica_fn), Location::caller());
        self.run_as("Strategy::run_with", function, arguments, replica_fn)
    }

    fn run_as<A: Send, R: Send>(
        &self,
        call: &'static str,
        function: (&'static str, &'static Location<'static>),
        arguments: PerReplica<A>,
        replica_fn: impl Fn(&ReplicaContext<'_>, A) -> Result<R> + Sync,
    ) -> Result<PerReplica<R>> {
        let checked = context::require_cross_replica(call, self)
            .and_then(|()| self.check_count(call, "arguments", arguments.values().len()))
            .and_then(|()| self.check_arguments(call, &arguments));
        self.or_fail(call, checked)?;
        self.count_shapes(function, &arguments);
        let contract = self.contract().map(|contract| contract.within_run(arguments.shapes()));
        let turn = self.turn(call)?;
        // Read the ids only after the turn began: before it another thread may renumber the
        // replicas.
        let replicas = self.local_replicas();
        let configuration = self.options().configuration();
        let board = MergeBoard::new(replicas.len());
        let number = self.workers().map_or(0, |workers| workers.turn());
        let team = match replicas.len() == 1 && !self.pins_threads() {
            true => None,
            false => Some(self.team_or_end().inspect_err(|_| turn.iter().for_each(CallGuard::failed))?),
        };
        let communicators: Vec<CommLease> = match self.workers() {
            Some(workers) => self.hold(workers, call)?,
            None => self.group(configuration)?.into_iter().map(CommLease::of_run).collect(),
        };
        let tasks: Vec<_> = (communicators.into_iter().zip(arguments))
            .map(|(communicator, argument)| Mutex::new(Task::Given(communicator, argument)))
            .collect();
        let replica = |place: usize| {
            let Task::Given(communicator, argument) = replace(&tasks[place], Task::Running) else { return };
            let (id, aborter) = (replicas.start + place, communicator.abort_handle());
            let running =
                Running::new(ReplicaContext::new(self.clone(), contract.clone(), id, communicator, board.clone()));
            let span = Span::of_run(id, self.num_replicas_in_sync());
            let traced = RunSpan::begin(id, self.num_replicas_in_sync());
            let body = || {
                context::within(self, Some(id), || {
                    let replica = running.context();
                    let result = replica_fn(&replica, argument)?;
                    // The calls that were enqueued are of this run.
                    replica.held().synchronize().map(|()| result)
                })
            };
            let result = panics::catch(body).unwrap_or_else(|message| Err(Error::Panic { replica: id, message }));
            if let Some(span) = span {
                span.end(Event::Run);
            }
            traced.end();
            if let Err(error) = &result {
                free_the_others(&aborter, number, error);
            }
            // Replicas that still wait for this one get an error that it has left: from `end_run`
            // here, or when its communicator is returned.
            let own = running.end().and_then(Communicator::end_run);
            replace(&tasks[place], Task::Finished(result, own));
        };
        match team {
            None => replica(0),
            Some(mut team) => {
                team.run(&replica);
                self.give_back(team);
            }
        }
        if let Some(workers) = self.workers() {
            workers.rouse();
        }
        let results = tasks.into_iter().map(|task| match task.into_inner() {
            Ok(Task::Finished(result, own)) => (result, own),
            _ => unreachable!("the team has run every replica, and nobody panics holding a task"),
        });
        let (results, communicators): (Vec<Result<R>>, Vec<Option<Communicator>>) = results.unzip();
        if let Some(communicators) = communicators.into_iter().collect() {
            self.keep(communicators);
        }
        if results.iter().any(Result::is_err) {
            // The replica that failed has aborted the group. Record it before the other results are
            // dropped: a drop may panic.
            turn.iter().for_each(CallGuard::failed);
        }
        all_or_worst(results).map(PerReplica::new).map_err(|(place, error)| with_replica(replicas.start + place, error))
    }

    /// Checks that there are as many values as replicas of this process.
    pub(super) fn check_count(&self, call: &'static str, argument: &str, found: usize) -> Result<()> {
        let replicas = self.local_replicas().len();
        if found == replicas {
            return Ok(());
        }
        let expected = format!("{replicas} values, one for each replica of {self}");
        Err(Error::invalid(call, argument, expected, found.to_string()))
    }
}

/// The state of one replica's task: its input, then its result.
enum Task<A, R> {
    Given(CommLease, A),
    Running,
    /// The result, and the communicator if this strategy keeps it.
    Finished(Result<R>, Option<Communicator>),
}

fn replace<T>(place: &Mutex<T>, value: T) -> T {
    std::mem::replace(&mut *place.lock().expect("nobody panics holding a task"), value)
}

/// Aborts the group of a replica that failed, so that the others stop waiting for it. If the group
/// is aborted already, the first reason stays.
fn free_the_others(aborter: &AbortHandle, turn: u64, error: &Error) {
    match error {
        Error::Panic { .. } => aborter.abort_in(turn, Reason::Panic),
        _ => aborter.abort_in(turn, Reason::Failure),
    }
}

/// Adds the id of the replica that returned the error, unless the error already names a replica.
fn with_replica(replica: usize, error: Error) -> Error {
    match error {
        Error::Mismatch { .. } | Error::Left { .. } | Error::Timeout { .. } | Error::Aborted { .. } => error,
        Error::Panic { .. } | Error::Replica { .. } | Error::InvalidCall { replica: Some(_), .. } => error,
        Error::UnknownReduceOp { replica: Some(_), .. } => error,
        error => Error::Replica { replica, source: Box::new(error) },
    }
}
