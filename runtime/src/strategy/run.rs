//! `run`: one function on every replica, each on a thread of its own.

use super::Strategy;
use super::{Held, workers::Turn};
use crate::{Communicator, Error, PerReplica, ReplicaContext, Result, context, replica::Board};
use consonance_kernels::step::{Aborter, Reason, Seat};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

impl Strategy {
    /// Runs `replica_fn` on every replica at once and gives the result of every replica of this process.
    ///
    /// Replicas run on threads that are kept between calls; with one replica, on the calling thread. What differs between
    /// replicas comes from the context, or from [`run_with`](Strategy::run_with).
    ///
    /// # Errors
    /// If a replica returns an error or panics, that is the result, with the replica's id; replicas that wait for it in a
    /// collective are freed. A failed run leaves nothing behind: the next one works. [`Error::WrongContext`] inside a replica
    /// or in another strategy's scope.
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
    pub fn run<R: Send>(&self, replica_fn: impl Fn(&ReplicaContext<'_>) -> Result<R> + Sync) -> Result<PerReplica<R>> {
        let arguments = PerReplica::new(vec![(); self.local_replicas().len()]);
        self.run_as("Strategy::run", arguments, |replica, ()| replica_fn(replica))
    }

    /// [`run`](Strategy::run) with an argument for each replica of this process, which it gets as its own.
    ///
    /// # Errors
    /// As [`run`](Strategy::run), and [`Error::InvalidCall`] if there are not as many arguments as replicas. Where there are several
    /// workers, this is a failed run for the others, too.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = PerReplica::new(vec![Tensor::from([0, 1, 2]), Tensor::from([3, 4])]);
    /// let sizes = strategy.run_with(batches, |_, batch| Ok(batch.shape()[0]))?;
    /// assert_eq!(sizes.values(), [3, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn run_with<A: Send, R: Send>(
        &self,
        arguments: PerReplica<A>,
        replica_fn: impl Fn(&ReplicaContext<'_>, A) -> Result<R> + Sync,
    ) -> Result<PerReplica<R>> {
        self.run_as("Strategy::run_with", arguments, replica_fn)
    }

    fn run_as<A: Send, R: Send>(
        &self,
        call: &'static str,
        arguments: PerReplica<A>,
        replica_fn: impl Fn(&ReplicaContext<'_>, A) -> Result<R> + Sync,
    ) -> Result<PerReplica<R>> {
        let checked = context::require_cross_replica(call, self)
            .and_then(|()| self.check_count(call, "arguments", arguments.values().len()));
        self.or_fail(call, checked)?;
        let turn = self.turn(call)?;
        // Only now: before its turn another thread may have renumbered them.
        let replicas = self.local_replicas();
        let configuration = self.options().configuration();
        let board = Board::new(replicas.len());
        let team = match replicas.len() == 1 && !self.0.pin_threads {
            true => None,
            false => Some(self.team_or_end().inspect_err(|_| turn.iter().for_each(Turn::failed))?),
        };
        let communicators: Vec<Held> = match self.workers() {
            Some(workers) => self.hold(workers, call)?,
            None => (Seat::group(replicas.len(), configuration.timeout).into_iter())
                .map(|seat| Held::of_run(Communicator::on_seat(seat, configuration)))
                .collect(),
        };
        let tasks: Vec<_> = (communicators.into_iter().zip(arguments))
            .map(|(communicator, argument)| Mutex::new(Task::Given(communicator, argument)))
            .collect();
        let replica = |place: usize| {
            let Task::Given(communicator, argument) = replace(&tasks[place], Task::Running) else { return };
            let (id, aborter) = (replicas.start + place, communicator.aborter());
            let replica = ReplicaContext::new(self, id, communicator, &board);
            let body = || context::within(self, Some(id), || replica_fn(&replica, argument));
            let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(id, &*panic)));
            if let Err(error) = &result {
                free_the_others(&aborter, error);
            }
            // The context is dropped after this, which tells replicas that still wait for this one that it has left.
            replace(&tasks[place], Task::Finished(result));
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
            Ok(Task::Finished(result)) => result,
            _ => unreachable!("the team has run every replica, and nobody panics holding a task"),
        });
        all_or_worst(results.collect()).map(PerReplica::new).map_err(|(place, error)| {
            // The replica that failed has ended the group.
            turn.iter().for_each(Turn::failed);
            with_replica(replicas.start + place, error)
        })
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

/// What a replica is given and what it leaves.
enum Task<A, R> {
    Given(Held, A),
    Running,
    Finished(Result<R>),
}

fn replace<T>(place: &Mutex<T>, value: T) -> T {
    std::mem::replace(&mut *place.lock().expect("nobody panics holding a task"), value)
}

fn panicked(replica: usize, panic: &(dyn Any + Send)) -> Error {
    Error::Panic { replica, message: panic_message(panic) }
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}

/// Ends the group of a replica that failed, unless the group has told all replicas already.
fn free_the_others(aborter: &Aborter, error: &Error) {
    match error {
        Error::Panic { .. } => aborter.abort(Reason::Panic),
        _ => aborter.abort(Reason::Failure),
    }
}

/// All results, or the error that says most with its place: a replica's own before one that only tells of another replica's.
pub(super) fn all_or_worst<R>(results: Vec<Result<R>>) -> Result<Vec<R>, (usize, Error)> {
    let mut values = Vec::with_capacity(results.len());
    let mut worst: Option<(usize, Error)> = None;
    for (place, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(error) => {
                if worst.as_ref().is_none_or(|(_, worst)| tells_of_another(worst) > tells_of_another(&error)) {
                    worst = Some((place, error));
                }
            }
        }
    }
    worst.map_or(Ok(values), Err)
}

/// How much an error is the consequence of another replica's.
fn tells_of_another(error: &Error) -> u8 {
    match error.root() {
        Error::Aborted { .. } => 3,
        Error::Left { .. } => 2,
        Error::Mismatch { .. } | Error::Timeout { .. } => 1,
        _ => 0,
    }
}

/// The error with the id of the replica that returned it, where it does not name a replica already.
fn with_replica(replica: usize, error: Error) -> Error {
    match error {
        Error::Mismatch { .. } | Error::Left { .. } | Error::Timeout { .. } | Error::Aborted { .. } => error,
        Error::Panic { .. } | Error::Replica { .. } | Error::InvalidCall { replica: Some(_), .. } => error,
        Error::UnknownReduceOp { replica: Some(_), .. } => error,
        error => Error::Replica { replica, source: Box::new(error) },
    }
}
