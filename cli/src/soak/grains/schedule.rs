//! The schedules of a soak with grains. They are the same for the same seed.

use super::super::draw::Draw;
use consonance_kernels::digest::mix;
use std::{ops::Range, time::Duration};

/// The steps of a training.
pub(super) const STEPS: u64 = 24;

/// The most legs of a training.
const MOST_LEGS: u64 = 3;

/// A loss can be in one of so many steps. It is put off by fewer steps than the second number. A
/// loss in step `s` is noticed in the step before, in `s` or in the one after.
const LOSS_STEPS: usize = 4;
const PUT_OFF: u64 = 2;

/// The most replicas of a leg.
const MOST_REPLICAS: u64 = 8;

/// The numbers of grains: at least one for each replica.
const GRAINS: Range<u64> = MOST_REPLICAS..17;

/// A process is killed up to this long after it began its step.
const SOON: Duration = Duration::from_millis(10);

/// Sizes of packs: one for all tensors, one a tensor, and the default.
const PACKS: [usize; 3] = [0, 1, 64 << 10];

/// The kind of the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Dense,
    Sparse,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Dense, Kind::Sparse];
}

/// A training that is disturbed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) kind: Kind,
    pub(super) legs: Vec<Leg>,
}

/// The steps of a training on one number of replicas. The next leg resumes from the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) steps: Range<u64>,
    pub(super) processes: usize,
    /// The replicas of each process.
    pub(super) replicas: usize,
    pub(super) bytes_per_pack: usize,
    /// Whether a killed process is replaced. The only process of a leg always is.
    pub(super) replaces: bool,
    /// The steps in which processes are killed.
    pub(super) losses: Vec<Loss>,
}

/// The processes that are killed in a step, and the time from their beginning of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) step: u64,
    pub(super) victims: Vec<(usize, Duration)>,
}

/// Returns the number of grains of all schedules of this seed.
pub(super) fn grains(seed: u64) -> usize {
    (GRAINS.start + mix(0, seed) % (GRAINS.end - GRAINS.start)) as usize
}

impl Schedule {
    /// Returns the schedule with this number.
    pub(super) fn draw(seed: u64, number: u64) -> Schedule {
        let mut draw = Draw::new(seed, number);
        let kind = Kind::ALL[draw.below(2) as usize];
        let legs = 1 + draw.below(MOST_LEGS);
        let legs = (0..legs).map(|leg| Leg::draw(&mut draw, STEPS * leg / legs..STEPS * (leg + 1) / legs));
        Schedule { kind, legs: legs.collect() }
    }
}

impl Leg {
    fn draw(draw: &mut Draw, steps: Range<u64>) -> Leg {
        let all = 1 + draw.below(MOST_REPLICAS);
        let divisors: Vec<u64> = (1..=all).filter(|number| all.is_multiple_of(*number)).collect();
        let processes = divisors[draw.below(divisors.len() as u64) as usize] as usize;
        let bytes_per_pack = PACKS[draw.below(PACKS.len() as u64) as usize];
        let replaces = processes == 1 || draw.below(2) == 0;
        let (mut left, mut losses) = ((0..processes).collect::<Vec<_>>(), Vec::new());
        // The step after the last loss is in the leg, so that all losses are noticed in it.
        for slot in (steps.start + 1..steps.end - PUT_OFF).step_by(LOSS_STEPS) {
            if replaces {
                left = (0..processes).collect();
            }
            let most = if processes == 1 { 1 } else { left.len() as u64 - 1 };
            let count = if draw.below(2) == 0 { 0 } else { most.min(1 + draw.below(2)) };
            let step = slot + draw.below(PUT_OFF);
            let victims: Vec<(usize, Duration)> = (0..count)
                .map(|_| {
                    let victim = left.swap_remove(draw.below(left.len() as u64) as usize);
                    (victim, Duration::from_micros(draw.below(SOON.as_micros() as u64)))
                })
                .collect();
            if !victims.is_empty() {
                losses.push(Loss { step, victims });
            }
        }
        Leg { steps, processes, replicas: all as usize / processes, bytes_per_pack, replaces, losses }
    }

    /// Returns the step in which a process is killed, and the time from its beginning of it. `life`
    /// is the number of processes that had this index before.
    pub(super) fn doom(&self, index: usize, life: usize) -> Option<(u64, Duration)> {
        let victims = self.losses.iter().flat_map(|loss| loss.victims.iter().map(|victim| (loss.step, victim)));
        let dooms = victims.filter(|(_, (victim, _))| *victim == index);
        dooms.map(|(step, (_, after))| (step, *after)).nth(life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_is_one_sequence_of_schedules() {
        let schedules = |seed: u64| (1..50).map(|number| Schedule::draw(seed, number)).collect::<Vec<_>>();
        assert_eq!(schedules(7), schedules(7));
        assert!(schedules(7).iter().all(|one| !schedules(8).contains(one)));
    }

    #[test]
    fn schedules_have_all_numbers_of_replicas_and_all_kinds_of_losses() {
        let mut found = HashSet::new();
        for number in 1..=200 {
            let Schedule { kind, legs } = Schedule::draw(3, number);
            assert_eq!((legs[0].steps.start, legs.last().map(|leg| leg.steps.end)), (0, Some(STEPS)));
            for leg in legs {
                let (all, is_alone) = (leg.processes * leg.replicas, leg.processes == 1);
                let killed: usize = leg.losses.iter().map(|loss| loss.victims.len()).sum();
                assert!(leg.replaces || killed < leg.processes, "{leg:?}");
                assert!(leg.losses.is_sorted_by(|one, next| one.step + 3 <= next.step), "{leg:?}");
                for Loss { step, victims } in &leg.losses {
                    assert!(leg.steps.start < *step && step + 2 <= leg.steps.end, "{leg:?}");
                    assert!(is_alone || victims.len() < leg.processes, "{leg:?}");
                }
                found.insert((kind, all, is_alone, killed > 0, leg.replaces));
            }
        }
        for kind in Kind::ALL {
            for all in 2..=8 {
                for (is_alone, replaces) in [(true, true), (false, true), (false, false)] {
                    assert!(found.contains(&(kind, all, is_alone, true, replaces)), "{kind:?} {all} {is_alone}");
                }
            }
        }
        assert!((1..100).map(grains).collect::<HashSet<_>>().len() == (GRAINS.end - GRAINS.start) as usize);
    }
}
