//! A library that is measured: its ranks, and its measurements of one call at a time.

use super::{
    ROUNDS,
    case::{Case, Collective},
    group::{Failure, Group, Samples},
    hosts::Played,
    leaves::Timed,
    limits,
    pace::Step,
    rivals::Rival,
    row,
};
use std::time::{Duration, Instant};

/// Runs of the first steps. The fastest tells how many fit a round.
const TRIES: usize = 5;

/// The subject of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Who {
    Ours,
    /// Our ranks with leaves.
    Leaves(Timed),
    Rival(Rival),
    /// A copy of the bytes that a call must move at least, or their way between hosts.
    Limit,
}

impl Who {
    pub(super) fn name(&self) -> String {
        match self {
            Who::Ours => "consonance".to_owned(),
            Who::Leaves(timed) => timed.name().to_owned(),
            Who::Rival(rival) => rival.name(),
            Who::Limit => row::LIMIT.to_owned(),
        }
    }
}

/// The ranks of one library for one collective.
pub(super) struct Library {
    pub(super) who: Who,
    pub(super) collective: Collective,
    /// The library's version, if it is known.
    pub(super) version: Option<String>,
    /// The ranks, or the reason why there are none.
    pub(super) group: Result<Group, String>,
    /// Round trips of a cache line between the cores of the first two ranks, in seconds: one from
    /// right before each round of this case. None if there is one rank or one core.
    pub(super) trips: Vec<f64>,
    /// The last case that was measured, and its step.
    pub(super) last: Option<(Case, Option<Step>)>,
    pub(super) batches: usize,
    pub(super) samples: Samples,
}

impl Library {
    /// Whether the library's call is in place.
    pub(super) fn in_place(&self, case: &Case) -> bool {
        match &self.who {
            Who::Rival(rival) => rival.in_place(case.collective, case.in_place),
            Who::Ours | Who::Leaves(_) | Who::Limit => case.in_place,
        }
    }

    /// Makes the buffers and the first calls, whose time tells how many batches fit a round.
    ///
    /// # Errors
    /// A failure of our own ranks. A rival's failure is kept for its rows.
    pub(super) fn begin(
        &mut self,
        case: Case,
        step: Option<Step>,
        sets: usize,
        time: Duration,
        played: Option<&Played>,
    ) -> Result<(), String> {
        self.last = Some((case, step));
        let case = Case { in_place: self.in_place(&case), ..case };
        let who = self.who.clone();
        let describe = |rank| match &who {
            Who::Rival(rival) => rival.describe(&case, rank),
            Who::Ours | Who::Leaves(_) | Who::Limit => b"\n".to_vec(),
        };
        let batches = self.ask(|group| {
            group.prepare(&case, sets, describe)?;
            // The first batch touches new memory, so it is not timed.
            group.run(1, 0, step)?;
            // All ranks of all libraries sleep before and after.
            let before = played.map(Played::crossed).transpose()?;
            // A rank of steps may lose its core for longer than the steps take.
            let mut seconds = f64::INFINITY;
            for _ in 0..if step.is_some() { TRIES } else { 1 } {
                let begin = Instant::now();
                group.run(1, sets, step)?;
                seconds = seconds.min(begin.elapsed().as_secs_f64());
            }
            let rounds = ROUNDS as f64 * seconds;
            if let Some((played, before)) = played.zip(before) {
                played.check(&case, sets, &before)?;
            }
            Ok(((time.as_secs_f64() / rounds) as usize).clamp(1, 1 << 20))
        })?;
        self.batches = batches.unwrap_or(0);
        Ok(())
    }

    /// Measures one round.
    ///
    /// # Errors
    /// As [`begin`](Library::begin).
    pub(super) fn measure(&mut self) -> Result<(), String> {
        let (batches, turn) = (self.batches, self.samples.seconds.len());
        if batches == 0 {
            return Ok(());
        }
        // All ranks of all libraries sleep now.
        let (case, step) = self.last.unzip();
        let step = step.flatten();
        // Busy processes share the cores with the measurement.
        let is_alone = case.is_none_or(|case| case.ranks < 2) || step.is_some();
        let trip = if is_alone { None } else { limits::probe().map_err(|error| error.to_string())? };
        let Some(samples) = self.ask(|group| group.run(batches, turn, step))? else { return Ok(()) };
        self.trips.extend(trip);
        // No rank can learn anything from another in less than half of a round trip.
        let least = trip.filter(|_| self.who == Who::Limit).map_or(0.0, |seconds| seconds / 2.0);
        self.samples.seconds.extend(samples.seconds.into_iter().map(|seconds| seconds.max(least)));
        self.samples.cpu_seconds += samples.cpu_seconds;
        self.samples.wrong += samples.wrong;
        Ok(())
    }

    /// Asks the library's ranks for something, if there are any. A rival that fails loses its
    /// ranks.
    fn ask<T>(&mut self, what: impl FnOnce(&mut Group) -> Result<T, Failure>) -> Result<Option<T>, String> {
        let Ok(group) = &mut self.group else { return Ok(None) };
        match what(group) {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if !matches!(self.who, Who::Rival(_)) => Err(failure.to_string()),
            Err(failure) => {
                self.group = Err(failure.to_string());
                Ok(None)
            }
        }
    }
}
