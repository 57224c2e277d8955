//! Two ranks that make the same calls with two values of a knob, in turn.

use super::work::{Call, Work};
use consonance::{Communicator, ReduceOp};
use consonance_harness::counted::pair_of_processes;
use consonance_kernels::{
    os::thread_pool::Team,
    tuning::{Origin, Tuning, Value, adopt},
};
use std::{
    sync::{Barrier, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Turns with each value.
const TURNS: usize = 7;

/// Two ranks that meet like ranks of two processes, and two threads, with the same knobs.
pub(super) struct Ranks {
    tuning: Tuning,
    processes: [Mutex<Communicator>; 2],
    threads: [Mutex<Communicator>; 2],
}

impl Ranks {
    /// Makes the ranks of a group with these knobs.
    pub(super) fn new(tuning: &Tuning) -> Result<Ranks, String> {
        adopt(tuning, Origin::Measured);
        let mut threads = Communicator::threads(2).into_iter().map(Mutex::new);
        let (Some(first), Some(second)) = (threads.next(), threads.next()) else {
            return Err("no group of two threads".to_owned());
        };
        Ok(Ranks { tuning: *tuning, processes: pair_of_processes().map(Mutex::new), threads: [first, second] })
    }

    /// Makes `rounds` calls, and returns the seconds of each on the slower rank.
    fn turn(&mut self, team: &mut Team, work: Work, count: usize, rounds: usize) -> Result<f64, String> {
        adopt(&self.tuning, Origin::Measured);
        let ranks = if work.call == Call::BroadcastThreads { &self.threads } else { &self.processes };
        let (start, results) = (Barrier::new(2), Mutex::new(Vec::new()));
        team.run(&|index| {
            let mut rank = ranks[index].lock().unwrap_or_else(PoisonError::into_inner);
            let result = calls(&mut rank, work.call, count, rounds, &start);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let times = results.into_iter().collect::<consonance::Result<Vec<f64>>>().map_err(|error| error.to_string())?;
        Ok(times.into_iter().fold(0.0, f64::max) / rounds as f64)
    }
}

/// Makes the calls of one rank, after one to begin with, and returns the seconds of all.
fn calls(rank: &mut Communicator, call: Call, count: usize, rounds: usize, start: &Barrier) -> consonance::Result<f64> {
    let (own, mut all) = (vec![1f32; count], vec![0f32; 2 * count]);
    let mut shared = if call == Call::AllReduceAlloc { Some(rank.alloc::<f32>(count)?) } else { None };
    let mut once = || match call {
        Call::AllReduce => rank.all_reduce_into(ReduceOp::Max, &own, &mut all[..count]),
        Call::AllReduceAlloc => match &mut shared {
            Some(shared) => rank.all_reduce(ReduceOp::Max, shared),
            None => Ok(()),
        },
        Call::AllGather => rank.all_gather_into(&own, &mut all),
        Call::AllGatherV => {
            let counts = [count / 2, count];
            let part = counts[rank.rank()];
            rank.all_gather_v(Some(&own[..part]), &mut all[..counts[0] + counts[1]], &counts)
        }
        Call::AllToAll => rank.all_to_all_into(&own, &mut all[..count]),
        Call::Broadcast | Call::BroadcastThreads => rank.broadcast(&mut all[..count], 0),
        Call::Reduce => {
            let root = rank.rank() == 0;
            rank.reduce_into(ReduceOp::Max, &own, root.then_some(&mut all[..count]), 0)
        }
        Call::ReduceScatter => rank.reduce_scatter_into(ReduceOp::Max, &own, &mut all[..count / 2]),
    };
    once()?;
    start.wait();
    let begin = Instant::now();
    for _ in 0..rounds {
        once()?;
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Returns the time of a call with the values of `other`, as a part of that with the values of
/// `known`. Takes about `slice`.
///
/// # Errors
/// If the system gives no threads, or a call fails.
pub(super) fn compare(
    work: &Work,
    values: (Value, Value),
    known: &mut Ranks,
    other: &mut Ranks,
    slice: Duration,
) -> Result<f64, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let team = Team::new("tune", &[Some(0), Some(1 % cores)]);
    let mut team = team.map_err(|error| format!("the threads of two ranks: {error}"))?;
    let count = work.count(values);
    let one = known.turn(&mut team, *work, count, 2)?.max(1e-7);
    let rounds = (slice.as_secs_f64() / (2 * TURNS) as f64 / one).clamp(1.0, 1e6) as usize;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        before.push(known.turn(&mut team, *work, count, rounds)?);
        after.push(other.turn(&mut team, *work, count, rounds)?);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(median(&mut after) / median(&mut before))
}
