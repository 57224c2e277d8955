//! Ranks that make the same calls with different knobs, in turn.

use super::work::{Company, Work};
use crate::bench::limits::{cores, median};
use consonance::{Communicator, ReduceOp};
use consonance_harness::{
    calls::{Call, Counts},
    counted_calls::pair_of_processes,
};
use consonance_kernels::{
    os::thread_pool::Team,
    tuning::{Origin, Tuning, adopt},
};
use consonance_spec::Kind;
use std::{
    ops::RangeInclusive,
    sync::{Barrier, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Turns with each value: fewer, if a single call takes long.
const TURNS: RangeInclusive<usize> = 3..=7;

/// The ranks of a trial, with the same knobs. Those of processes are threads that meet like ranks
/// of two processes.
pub(super) struct Ranks {
    tuning: Tuning,
    /// The groups that were needed so far.
    groups: Vec<(Company, Vec<Mutex<Communicator>>)>,
}

impl Ranks {
    /// Makes the ranks of groups with these knobs.
    pub(super) fn new(tuning: &Tuning) -> Ranks {
        Ranks { tuning: *tuning, groups: Vec::new() }
    }

    /// Returns the ranks that make this call, in a group with these knobs, which the process has
    /// from now on.
    fn group(&mut self, work: Work) -> &[Mutex<Communicator>] {
        adopt(&self.tuning, Origin::Measured);
        let known = self.groups.iter().position(|(company, _)| *company == work.company);
        let index = known.unwrap_or_else(|| {
            let ranks = match work.company {
                Company::Threads => Communicator::threads(2),
                Company::Processes => pair_of_processes().into(),
            };
            self.groups.push((work.company, ranks.into_iter().map(Mutex::new).collect()));
            self.groups.len() - 1
        });
        &self.groups[index].1
    }

    /// Makes `rounds` calls on these buffers, and returns the seconds of each on the slowest rank.
    fn turn(&mut self, team: &mut Team, work: Work, buffers: &[Buffers], rounds: usize) -> Result<f64, String> {
        let ranks = self.group(work);
        let (start, results) = (Barrier::new(ranks.len()), Mutex::new(Vec::new()));
        team.run(&|index| {
            let mut rank = ranks[index].lock().unwrap_or_else(PoisonError::into_inner);
            let result = buffers[index].calls(&mut rank, work.kind, rounds, &start);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let times = results.into_iter().collect::<consonance::Result<Vec<f64>>>().map_err(|error| error.to_string())?;
        Ok(times.into_iter().fold(0.0, f64::max) / rounds as f64)
    }
}

/// The buffers of a rank in all turns of a trial: new pages would take longer than a call.
struct Buffers {
    count: usize,
    /// Made at the first turn, by the rank's own thread.
    kept: Mutex<[Vec<f32>; 2]>,
}

impl Buffers {
    fn new(count: usize) -> Buffers {
        Buffers { count, kept: Mutex::default() }
    }

    /// Makes the calls of one rank, after one to begin with, and returns the seconds of all. The
    /// ranks meet before each call, as those of a program do that compute between calls: in a loop
    /// of calls alone a rank runs ahead of the others.
    fn calls(&self, rank: &mut Communicator, kind: Kind, rounds: usize, start: &Barrier) -> consonance::Result<f64> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let [own, all] = &mut *kept;
        own.resize(self.count, 1.0);
        all.resize(if kind == Kind::AllGather { rank.size() * self.count } else { self.count }, 0.0);
        let mut once = |rank: &mut Communicator| {
            let send = (kind != Kind::Broadcast).then_some(&own[..]);
            let (op, counts) = (ReduceOp::Max, Counts::Even);
            Call { kind, op, root: 0, counts, send, recv: Some(&mut all[..]) }.make(rank)
        };
        once(rank)?;
        start.wait();
        let mut seconds = 0.0;
        for _ in 0..rounds {
            rank.barrier()?;
            let begin = Instant::now();
            once(rank)?;
            seconds += begin.elapsed().as_secs_f64();
        }
        Ok(seconds)
    }
}

/// Returns the median time of a call of `count` elements, in seconds, of each of `all` ranks, whose
/// knobs differ. They take turns, for about `slice`.
///
/// # Errors
/// If the system gives no threads, or a call fails.
pub(super) fn times(work: Work, count: usize, all: &mut [&mut Ranks], slice: Duration) -> Result<Vec<f64>, String> {
    let ranks = all[0].group(work).len();
    let pins: Vec<Option<usize>> = (0..ranks).map(|rank| Some(rank % cores())).collect();
    let mut team = Team::new("tune", &pins).map_err(|error| format!("the threads of {ranks} ranks: {error}"))?;
    let buffers: Vec<Buffers> = (0..ranks).map(|_| Buffers::new(count)).collect();
    // In the first turn ranks also make their buffers.
    all[0].turn(&mut team, work, &buffers, 1)?;
    let begin = Instant::now();
    all[0].turn(&mut team, work, &buffers, 2)?;
    // A turn begins with a call that is not timed. The ranks meet before each of the others.
    let one = (begin.elapsed().as_secs_f64() / 3.0).max(1e-7);
    let slice = slice.as_secs_f64() / all.len() as f64;
    let turns = ((slice / (2.0 * one)) as usize).clamp(*TURNS.start(), *TURNS.end());
    let rounds = (slice / turns as f64 / one).clamp(1.0, 1e6) as usize;
    let mut times = vec![Vec::new(); all.len()];
    for _ in 0..turns {
        for (ranks, times) in all.iter_mut().zip(&mut times) {
            times.push(ranks.turn(&mut team, work, &buffers, rounds)?);
        }
    }
    Ok(times.into_iter().map(median).collect())
}
