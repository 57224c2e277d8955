//! The jobs of a soak with parameter servers. They are the same for the same seed.

use super::super::draw::Draw;
use std::{num::NonZeroUsize, time::Duration};

/// The time in which a closure must end. A worker that is stopped for longer is lost.
pub(super) const CLOSURE: Duration = Duration::from_secs(3);

/// The time of a stop that is a loss.
const LONG: Duration = Duration::from_millis(3500);

/// Of so many stops of workers, one is a loss.
const LONG_ONES: u64 = 12;

/// A fault comes up to so many microseconds after the one before it, or after the phase begins.
const SOON_US: u64 = 25_000;

/// A chief's program, and the faults of its workers and servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) workers: usize,
    pub(super) servers: usize,
    /// The shards of each variable.
    pub(super) shards: usize,
    /// The closures of a window; none for the order of arrival.
    pub(super) window: Option<NonZeroUsize>,
    /// Whether closures take elements. Data sets begin anew with a recovery, so in some jobs no
    /// server is killed.
    pub(super) takes: bool,
    pub(super) phases: Vec<Phase>,
}

/// Closures after which all are joined and the variables are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) closures: u64,
    /// The faults, each with the time since the one before.
    pub(super) faults: Vec<(Duration, Fault)>,
}

/// A fault of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// This worker is killed, and replaced.
    KillWorker(usize),
    /// This worker is stopped for a time.
    StopWorker(usize, Duration),
    /// This server is killed.
    KillServer {
        /// Its number.
        server: usize,
        /// Whether it is replaced. The last one always is.
        is_replaced: bool,
    },
    /// This server is stopped for a time.
    StopServer(usize, Duration),
}

impl Job {
    /// Returns the job with this number.
    pub(super) fn draw(seed: u64, number: u64) -> Job {
        let mut draw = Draw::new(seed, number);
        let mut up_to = |most: u64| 1 + draw.below(most) as usize;
        let (workers, servers, shards) = (up_to(3), up_to(3), up_to(4));
        let window = if draw.below(3) == 0 { 0 } else { 1 + draw.below(8) };
        let window = NonZeroUsize::new(window as usize);
        let (takes, loses_servers) = (draw.below(2) == 0, draw.below(2) == 0);
        let phases = 1 + draw.below(3);
        let phase = |_| {
            let closures = 50 + draw.below(200);
            let faults = 1 + draw.below(4);
            let faults = (0..faults).map(|_| {
                let after = Duration::from_micros(draw.below(SOON_US));
                (after, Fault::draw(&mut draw, (workers, servers), loses_servers))
            });
            Phase { closures, faults: faults.collect() }
        };
        let phases = (0..phases).map(phase).collect();
        Job { workers, servers, shards, window, takes, phases }
    }
}

impl Fault {
    fn draw(draw: &mut Draw, (workers, servers): (usize, usize), loses_servers: bool) -> Fault {
        let (worker, server) = (draw.below(workers as u64) as usize, draw.below(servers as u64) as usize);
        let soon = Duration::from_micros(draw.below(2 * SOON_US));
        match draw.below(8) {
            0..=2 => Fault::KillWorker(worker),
            3 if draw.below(LONG_ONES) == 0 => Fault::StopWorker(worker, LONG),
            3 | 4 => Fault::StopWorker(worker, soon),
            5 => Fault::StopServer(server, soon),
            _ if !loses_servers => Fault::KillWorker(worker),
            _ => Fault::KillServer { server, is_replaced: draw.below(3) > 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_sequence_of_jobs_with_all_faults() {
        let jobs = |seed: u64| (1..100).map(|number| Job::draw(seed, number)).collect::<Vec<_>>();
        assert_eq!(jobs(7), jobs(7));
        assert!(jobs(7).iter().all(|one| !jobs(8).contains(one)));
        let all = jobs(7);
        let faults = || all.iter().flat_map(|job| &job.phases).flat_map(|phase| &phase.faults).map(|&(_, fault)| fault);
        let count = |is: fn(Fault) -> bool| faults().filter(|&fault| is(fault)).count();
        let counts = [
            count(|fault| matches!(fault, Fault::KillWorker(_))),
            count(|fault| matches!(fault, Fault::StopWorker(_, time) if time < CLOSURE)),
            count(|fault| matches!(fault, Fault::StopWorker(_, time) if time > CLOSURE)),
            count(|fault| matches!(fault, Fault::KillServer { is_replaced: true, .. })),
            count(|fault| matches!(fault, Fault::KillServer { is_replaced: false, .. })),
            count(|fault| matches!(fault, Fault::StopServer(..))),
        ];
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        let kills_server = |job: &Job| {
            let is_kill = |&(_, fault): &(Duration, Fault)| matches!(fault, Fault::KillServer { .. });
            job.phases.iter().flat_map(|phase| &phase.faults).any(is_kill)
        };
        for (has_window, kills) in [(false, false), (false, true), (true, false), (true, true)] {
            let is_one = |job: &Job| job.takes && job.window.is_some() == has_window && kills_server(job) == kills;
            assert!(all.iter().any(is_one), "window: {has_window}, kills of servers: {kills}");
        }
    }
}
