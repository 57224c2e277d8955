//! The recovery of the chief after a server was lost.

use super::{
    chief::Chief,
    generation::Generation,
    other_processes::{Others, is_present},
    processes::GLANCE,
    roles::{Inner, Phase},
    strategy::ParameterServerStrategy,
    variable::{Accessed, Layout, ShardedVariable},
};
use crate::{
    Error, Result, Tensor,
    cluster::server_roles::{Place, RoleTask},
};
use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

impl ParameterServerStrategy {
    /// Checks that this is the chief, which has lost a server, and that these are all variables.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    pub(crate) fn check_lost(&self, call: &'static str, variables: &[(String, &ShardedVariable)]) -> Result<()> {
        let layouts: Vec<Arc<Layout>> = variables.iter().map(|(_, variable)| variable.layout.clone()).collect();
        self.inner().check_lost(call, &layouts)
    }

    /// Begins again after a server was lost, with these values of all variables.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    pub(crate) fn begin_again(
        &self,
        call: &'static str,
        timeout: Duration,
        values: Vec<(&ShardedVariable, Tensor)>,
    ) -> Result<()> {
        let values: Vec<(Arc<Layout>, Tensor)> =
            values.into_iter().map(|(variable, value)| (variable.layout.clone(), value)).collect();
        self.inner().recover(call, timeout, &values)
    }
}

impl Inner {
    /// Checks that a server is lost, and that these are all variables.
    ///
    /// # Errors
    /// [`Error::WrongContext`] if none is lost, [`Error::InvalidCall`] for other variables.
    pub(super) fn check_lost(&self, call: &'static str, variables: &[Arc<Layout>]) -> Result<()> {
        self.check_chief(call)?;
        let state = self.lock();
        let chief = lost(call, &state)?.0;
        let all = &chief.program.known.variables;
        let is_one_of = |layout: &Arc<Layout>, others: &[Arc<Layout>]| others.iter().any(|of| Arc::ptr_eq(of, layout));
        let found = if variables.iter().any(|layout| !is_one_of(layout, all)) {
            "one of another strategy".to_owned()
        } else if let Some(layout) = all.iter().find(|layout| !is_one_of(layout, variables)) {
            format!("none for variable {} of {}", layout.number, layout.spec())
        } else {
            return Ok(());
        };
        Err(Error::invalid(call, "variables", "a name for each variable of the strategy", found))
    }

    /// Begins again after a server was lost, with these values of all variables.
    ///
    /// # Errors
    /// As [`Others::recover`].
    pub(super) fn recover(
        &self,
        call: &'static str,
        timeout: Duration,
        values: &[(Arc<Layout>, Tensor)],
    ) -> Result<()> {
        let mut state = self.lock();
        let (chief, others) = lost(call, &state)?;
        chief.leave();
        let others = others.clone();
        let chief = others.recover(call, timeout, values)?;
        *state = Phase::Works(chief, Some(others));
        Ok(())
    }
}

/// Returns the chief that has lost a server, and the other processes.
///
/// # Errors
/// [`Error::WrongContext`] if no server is lost.
fn lost<'p>(call: &'static str, phase: &'p Phase) -> Result<(&'p Arc<Chief>, &'p Arc<Others>)> {
    match phase {
        Phase::Works(chief, Some(others)) if chief.loss().is_some() => Ok((chief, others)),
        Phase::Failed(error) => Err(error.clone()),
        Phase::Works(..) | Phase::Declares(_) => {
            Err(Error::WrongContext { call, problem: "no server is lost".to_owned() })
        }
    }
}

impl Others {
    /// Begins a generation after a server was lost, with these values of all variables. For half of
    /// the time it waits for processes at the places where there is none. Then those that are left
    /// play all servers. If one of them is lost meanwhile, another generation begins.
    ///
    /// # Errors
    /// [`Error::Meeting`] if no server is left, or one does not come before the deadline;
    /// [`Error::Aborted`] if one is lost at the deadline.
    pub(super) fn recover(
        &self,
        call: &'static str,
        timeout: Duration,
        values: &[(Arc<Layout>, Tensor)],
    ) -> Result<Arc<Chief>> {
        let begin = Instant::now();
        loop {
            let generation = self.next_generation(call, begin + timeout / 2)?;
            let begun = self.begin(call, &generation, values, begin + timeout);
            let is_lost = begun.is_err() && self.lock().check_players().is_err();
            if !is_lost || begin.elapsed() >= timeout {
                return begun;
            }
        }
    }

    /// Waits for processes at the places of all servers, and returns the generation of those that
    /// are there.
    ///
    /// # Errors
    /// [`Error::Meeting`] if there is none.
    fn next_generation(&self, call: &'static str, deadline: Instant) -> Result<Generation> {
        let (is_present, mut state) = loop {
            let is_present: Vec<bool> = self.server_links().iter().map(is_present).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            let state = self.lock();
            if left.is_zero() || is_present.iter().all(|&is_present| is_present) {
                break (is_present, state);
            }
            drop(self.changed.wait_timeout(state, left.min(GLANCE)).unwrap_or_else(PoisonError::into_inner));
        };
        let Some(generation) = state.generation.next(&is_present) else {
            let roles = &self.process.roles;
            let names: Vec<String> = roles.servers().iter().map(RoleTask::described).collect();
            let problem = format!("no server is left of {}", names.join(", "));
            let (task, missing) = (roles.task(Place::Chief).described(), (0..names.len()).collect());
            return Err(Error::Meeting { call, task, problem, missing });
        };
        state.generation = generation.clone();
        Ok(generation)
    }
}
