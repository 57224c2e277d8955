//! The calls and the fault of each round of a soak. They are the same for the same seed.

use crate::launcher::Cable;
use consonance_harness::cases::{Counts, Script, Source};
use consonance_kernels::digest::mix;
use consonance_spec::{Extent, Flow, ReduceOp, Work};
use std::time::Duration;

/// One round in this many has a fault.
const FAULT_PERIOD: u64 = 12;

/// One call in this many has data that pass through the shared staging memory in several parts.
const LARGE_PERIOD: u64 = 12;

/// Number of elements of a rank in a large call.
const LARGE: std::ops::Range<u64> = 5_000..40_000;

/// A fault happens up to this long after its process began the round.
const SOON: Duration = Duration::from_millis(20);

/// The parameters that determine a soak.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of everything random.
    pub seed: u64,
    /// The number of processes.
    pub processes: usize,
    /// The number of ranks in each process.
    pub replicas: usize,
    /// The number of hosts that this machine plays, with the processes dealt to them in turn. With
    /// one host the processes are on this machine as it is.
    pub hosts: usize,
    /// Whether processes are killed and stopped.
    pub faults: bool,
}

/// The fault of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The affected process.
    pub(super) victim: usize,
    /// The time from its beginning of the round to the fault.
    pub(super) after: Duration,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The process is killed. If there is a second victim, that process is killed this long after
    /// the first, perhaps while they form a group again.
    Kill(Option<(usize, Duration)>),
    /// The process is stopped, and goes on after this time. No other process notices.
    Pause(Duration),
    /// The process is stopped until all others have given it up.
    Stop,
}

impl What {
    /// Whether the round is repeated until an error ends it.
    pub(super) fn ends(self) -> bool {
        !matches!(self, What::Pause(_))
    }
}

impl Plan {
    /// Returns the arguments that repeat a round, over these cables.
    pub(super) fn again(&self, cable: Option<Cable>, round: u64) -> String {
        let Plan { seed, processes, replicas, hosts, faults } = *self;
        let on_hosts = if hosts > 1 { format!(" --hosts {hosts}") } else { String::new() };
        let over = cable.map_or(String::new(), |cable| format!(" --cable {cable}"));
        let no_faults = if faults { "" } else { " --no-faults" };
        format!(
            "--processes {processes} --replicas {replicas}{on_hosts}{over} --seed {seed} --round {round}{no_faults} --seconds 60"
        )
    }

    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.processes * self.replicas
    }

    pub(super) fn word(&self, round: u64, salt: u64) -> u64 {
        // The seed is mixed by itself first, so that another seed does not give the same rounds in
        // another order.
        mix(mix(mix(0, self.seed), round), salt)
    }

    /// Returns the calls of all ranks in a round. If an error ends the round, the calls can be
    /// repeated with the same results.
    pub(super) fn script(&self, round: u64) -> Script {
        let bytes: Vec<u8> = (0..256).flat_map(|i| self.word(round, i).to_le_bytes()).collect();
        let mut script = Script::read_for(&mut Source::new(&bytes), self.ranks());
        let repeated = self.fault(round).is_some_and(|fault| fault.what.ends());
        for (call, number) in script.calls.iter_mut().zip(1000..) {
            let word = self.word(round, number);
            if word.is_multiple_of(LARGE_PERIOD) {
                let count = (LARGE.start + (word >> 8) % (LARGE.end - LARGE.start)) as usize;
                match &mut call.counts {
                    Counts::Even(even) => {
                        *even = if call.kind.has_parts() { count / script.size } else { count };
                    }
                    Counts::Ragged(counts) => counts[word as usize % script.size] = count,
                    Counts::Pairs(counts) => counts[word as usize % script.size][0] = count,
                }
            }
            if repeated {
                match (call.kind.flow(), call.kind.work(), call.kind.extent()) {
                    // The minimum of results that are already the minimum is the same again.
                    (_, Work::Combines, _) if call.in_place => call.op = ReduceOp::Min,
                    // A group that was split off makes an all-reduce in place.
                    (Flow::Control, _, _) => call.op = ReduceOp::Min,
                    // All ranks' parts change places.
                    (Flow::Everyone, Work::Moves, Extent::Parts) => call.in_place = false,
                    // Data received twice are the same.
                    (_, Work::Combines, _) | (_, Work::Moves, Extent::Whole) => {}
                    (Flow::FromRoot | Flow::ToRoot | Flow::Pair, Work::Moves, Extent::Parts) => {}
                }
            }
        }
        script
    }

    /// Returns the fault of a round, if it has one.
    pub(super) fn fault(&self, round: u64) -> Option<Fault> {
        const SALT: u64 = 2000;
        let word = |number: u64| self.word(round, SALT + number);
        let below = |number, limit: Duration| Duration::from_micros(word(number) % limit.as_micros() as u64);
        if !self.faults || self.processes < 2 || !word(0).is_multiple_of(FAULT_PERIOD) {
            return None;
        }
        let victim = (word(1) % self.processes as u64) as usize;
        let what = match word(2) % 8 {
            0..3 => What::Kill(None),
            3 => {
                let other = (victim + 1 + (word(3) % (self.processes - 1) as u64) as usize) % self.processes;
                What::Kill(Some((other, below(4, 10 * SOON))))
            }
            4..7 => What::Pause(below(5, 5 * SOON)),
            _ => What::Stop,
        };
        Some(Fault { victim, after: below(6, SOON), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { seed: 7, processes: 3, replicas: 2, hosts: 1, faults: true };

    #[test]
    fn a_seed_is_one_sequence_of_calls_and_faults() {
        let rounds = |seed: u64| {
            let plan = Plan { seed, ..PLAN };
            (1..50).map(|round| format!("{:?} {:?}", plan.script(round), plan.fault(round))).collect::<Vec<_>>()
        };
        assert_eq!(rounds(7), rounds(7));
        assert!(rounds(7).iter().all(|one| !rounds(8).contains(one)));
    }

    #[test]
    fn every_fault_comes_to_every_process() {
        for victim in 0..3 {
            let faults: Vec<What> = (1..2000)
                .filter_map(|round| PLAN.fault(round))
                .filter(|f| f.victim == victim)
                .map(|f| f.what)
                .collect();
            assert!(faults.contains(&What::Kill(None)));
            assert!(faults.iter().any(|what| matches!(what, What::Kill(Some((other, _))) if *other != victim)));
            assert!(faults.iter().any(|what| matches!(what, What::Pause(_))));
            assert!(faults.contains(&What::Stop));
        }
        assert!((1..2000).all(|round| Plan { faults: false, ..PLAN }.fault(round).is_none()));
    }
}
