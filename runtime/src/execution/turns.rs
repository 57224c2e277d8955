//! Cross-replica calls on the engines of a strategy. With several workers each takes a turn, in
//! which it uses all communicators of this worker.

use super::{CallGuard, CommLease, Strategy, Workers, context};
use crate::{
    Communicator, Error, Result, Tensor,
    comm::{agreement::Agreement, call::Call},
    worst_error::all_or_worst,
};
use consonance_kernels::{digest::digest, group::Reason, os::thread_pool::Team};
use consonance_spec::Kind;
use std::sync::{Arc, Mutex};

impl Strategy {
    /// Takes a turn: the right to use the communicators of this worker. Renews the group first if
    /// it was aborted. `None` without other workers.
    pub(crate) fn turn(&self, call: &'static str) -> Result<Option<CallGuard<'_>>> {
        let Some(workers) = self.workers() else { return Ok(None) };
        let turn = workers.take_turn(call, self.options().configuration().timeout)?;
        // Within a run, the run itself fails.
        if !turn.is_within_another() && workers.has_ended(call)? {
            self.each(workers, call, Communicator::renew)?;
            workers.begin_anew();
        }
        Ok(Some(turn))
    }

    /// Leases the communicators of all replicas of this worker.
    pub(crate) fn hold(&self, workers: &Arc<Workers>, call: &'static str) -> Result<Vec<CommLease>> {
        let communicators = workers.take_all(call, self.options().configuration().timeout)?;
        let held = |(place, communicator)| CommLease::of_workers(workers.clone(), place, communicator);
        Ok(communicators.into_iter().enumerate().map(held).collect())
    }

    /// Runs `work` on the communicator of every replica of this worker in parallel, as a collective
    /// of all workers. `None` without other workers.
    pub(crate) fn across<R: Send>(
        &self,
        call: &'static str,
        work: impl Fn(&mut Communicator) -> Result<R> + Sync,
    ) -> Option<Result<Vec<R>>> {
        let workers = self.workers()?;
        Some(self.in_turn(call, || self.each(workers, call, work)))
    }

    /// Runs `work` on the communicator of every replica of this process in parallel, as a
    /// collective of all replicas.
    pub(crate) fn on_engines<R: Send>(
        &self,
        call: &'static str,
        work: impl Fn(&mut Communicator) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        if let Some(done) = self.across(call, &work) {
            return done;
        }
        let team = self.team_of_several()?;
        let leases = self.group(self.options().configuration())?.into_iter().map(CommLease::of_run).collect();
        let (results, communicators): (Vec<_>, Vec<_>) = self.on_leases(leases, team, work).into_iter().unzip();
        if let Some(communicators) = communicators.into_iter().collect() {
            self.keep(communicators);
        }
        all_or_worst(results).map_err(|(_, error)| error)
    }

    /// Runs `work` in one turn, which its cross-replica calls share.
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
        workers: &Arc<Workers>,
        call: &'static str,
        work: impl Fn(&mut Communicator) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let team = self.team_of_several()?;
        let results = self.on_leases(self.hold(workers, call)?, team, work);
        workers.rouse();
        all_or_worst(results.into_iter().map(|(result, _)| result).collect()).map_err(|(_, error)| {
            // A `System` error comes from a communicator here: it got no memory for a call. A panic
            // of an engine has aborted the group.
            match error {
                Error::Aborted { .. }
                | Error::Left { .. }
                | Error::Timeout { .. }
                | Error::System { .. }
                | Error::Panic { .. } => workers.call_failed(),
                _ => {}
            }
            error
        })
    }

    /// Runs `work` on each of these communicators, by the threads of `team` if there are several.
    /// Also returns each communicator without a home that can go on.
    fn on_leases<R: Send>(
        &self,
        leases: Vec<CommLease>,
        team: Option<Team>,
        work: impl Fn(&mut Communicator) -> Result<R> + Sync,
    ) -> Vec<(Result<R>, Option<Communicator>)> {
        let configuration = self.options().configuration();
        let tasks: Vec<_> = leases.into_iter().map(|lease| Mutex::new((Some(lease), None))).collect();
        let each = |place: usize| {
            let lease = tasks[place].lock().expect("nobody panics holding a task").0.take();
            let done = lease.map(|mut lease| {
                lease.configure(configuration);
                let result = work(&mut lease);
                (result, lease.into_own().and_then(Communicator::end_run))
            });
            tasks[place].lock().expect("nobody panics holding a task").1 = done;
        };
        match team {
            None => each(0),
            Some(mut team) => {
                team.run(&each);
                self.give_back(team);
            }
        }
        let done = tasks.into_iter().map(|task| match task.into_inner() {
            Ok((_, Some(done))) => done,
            _ => unreachable!("the team has done every task, and nobody panics holding one"),
        });
        done.collect()
    }

    /// Returns a [team](Strategy::team_or_end) if this process has several replicas.
    fn team_of_several(&self) -> Result<Option<Team>> {
        if self.0.devices.len() == 1 { Ok(None) } else { self.team_or_end().map(Some) }
    }

    /// Returns a [team](Strategy::team), before the communicators are taken from home. Without a
    /// team this worker can make no call, so an abort of the group tells the other workers, if
    /// there are any: a better message would need a team.
    pub(crate) fn team_or_end(&self) -> Result<Team> {
        self.team().inspect_err(|_| {
            if let Some(workers) = self.workers() {
                workers.end();
            }
        })
    }

    /// Broadcasts the chief's tensor to all workers, if there are several. They agree on its dtype
    /// and size, and on `argument` (name and value).
    pub(crate) fn chiefs(&self, kind: Kind, argument: (&str, &str), tensor: Tensor) -> Result<Tensor> {
        let sent = self.across(kind.name(), |communicator| {
            let mut own = tensor.clone();
            let describe = || vec![(argument.0.to_owned(), argument.1.to_owned())];
            let agreement = Agreement { call: Some(kind), digest: digest(argument.1), describe: &describe };
            communicator.execute(Call::Broadcast { data: own.buf_mut()?, root: 0 }, &agreement).map(|()| own)
        });
        match sent {
            Some(sent) => Ok(sent?.swap_remove(0)),
            None => Ok(tensor),
        }
    }

    /// Makes the workers agree on `argument` (name and value), if there are several.
    pub(crate) fn agree(&self, kind: Kind, argument: (&str, &str)) -> Result<()> {
        let met = self.across(kind.name(), |communicator| {
            let describe = || vec![(argument.0.to_owned(), argument.1.to_owned())];
            communicator.meet(kind, &Agreement { call: Some(kind), digest: digest(argument.1), describe: &describe })
        });
        met.map_or(Ok(()), |met| met.map(drop))
    }

    /// Returns the value. For an error, tells the other workers, which make the same call, and
    /// returns the error.
    pub(crate) fn or_refuse<T>(&self, kind: Kind, checked: Result<T>) -> Result<T> {
        checked.inspect_err(|error| {
            if context::replica().is_some() {
                // The other workers make no such call in their replicas, and the run holds the
                // communicators.
                return;
            }
            // The turn records the result. This worker already has an error of its own.
            let _ = self.across(kind.name(), |communicator| communicator.refuse(kind, error));
        })
    }

    /// Returns the value. An error means that a run does not begin here: aborts the group, so that
    /// for the other workers, which have begun the run, the run fails.
    pub(crate) fn or_fail<T>(&self, call: &'static str, checked: Result<T>) -> Result<T> {
        checked.inspect_err(|_| {
            if context::replica().is_none() {
                let _ = self.across(call, |communicator| {
                    let turn = self.workers().map_or(0, |workers| workers.turn());
                    communicator.abort_handle().abort_in(turn, Reason::Failure);
                    // After the abort this does not wait. Its error marks the turn as failed.
                    communicator.barrier()
                });
            }
        })
    }
}
