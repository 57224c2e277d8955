//! A warp: 32 lanes that execute together where their branches agree.
//!
//! Lanes at the same step are a *group*. The group at the lowest step runs, until it reaches the
//! next group's step, where both are one group again. So lanes that diverge meet at the latest
//! where their paths do, whatever the shape of the branches.

use super::{
    failure::{Failure, Party},
    machine::Machine,
};
use crate::{
    fault::FaultKind,
    memory::{Event, Region, Stamp},
    program::{Action, Condition, LANES, Plane, Program, Register},
};

/// The lanes at a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) step: usize,
    pub(crate) lanes: u32,
    /// Whether they wait for other lanes, or for other warps.
    pub(crate) is_waiting: bool,
}

/// The content of a register of 64 bits before the first write.
const UNWRITTEN: u64 = 0xa5a5_5a5a_c3c3_3c3c;

/// A warp of a block.
pub(crate) struct Warp {
    pub(crate) index: u32,
    pub(crate) planes: Vec<Plane>,
    pub(crate) masks: Vec<u32>,
    carries: u32,
    pub(crate) groups: Vec<Group>,
    /// The lanes that are threads of the block, and those of them that ended.
    pub(crate) lanes: u32,
    pub(crate) exited: u32,
    /// The barriers that it has passed: of the block, and of its own.
    pub(crate) barriers: u32,
    pub(crate) warp_barriers: u32,
    /// The local memory of its lanes, one after the other.
    pub(crate) local: Region,
    /// The last event of each step.
    stamps: Vec<Stamp>,
}

/// The reason why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has executed as much as it was asked to.
    Paused,
    /// All its lanes wait at the barrier of this step.
    AtBarrier(usize),
    /// All its lanes ended.
    Ended,
}

impl Warp {
    /// Returns a warp whose planes hold what the program's constants say. The others hold a value
    /// that no kernel can depend on.
    pub(crate) fn new(index: u32, program: &Program) -> Warp {
        Warp {
            index,
            planes: program.planes.iter().map(|bits| [UNWRITTEN >> (64 - bits); LANES]).collect(),
            masks: vec![u32::MAX; program.predicates as usize],
            carries: 0,
            groups: Vec::new(),
            lanes: 0,
            exited: 0,
            barriers: 0,
            warp_barriers: 0,
            local: Region::default(),
            stamps: Vec::new(),
        }
    }

    /// Puts the lanes at the first step.
    pub(crate) fn begin(&mut self, lanes: u32, program: &Program) {
        self.lanes = lanes;
        self.groups = vec![Group { step: 0, lanes, is_waiting: false }];
        (self.exited, self.barriers, self.warp_barriers) = (0, 0, 0);
        self.local = Region::new(program.local_bytes as usize * LANES);
        self.stamps.clear();
        self.stamps.resize(program.code.len(), 0);
    }

    /// Runs about `budget` instructions.
    pub(crate) fn run(&mut self, machine: &mut Machine<'_>, mut budget: u32) -> Result<Stop, Failure> {
        while budget > 0 {
            self.merge();
            let Some(at) = self.groups.iter().position(|group| !group.is_waiting) else {
                return self.stopped(machine.program);
            };
            let group = self.groups.remove(at);
            let bound = self.groups.get(at).map_or(usize::MAX, |next| next.step);
            self.run_group(group, bound, machine, &mut budget)?;
        }
        Ok(Stop::Paused)
    }

    /// Sorts groups by their steps, and makes one of those at the same step.
    fn merge(&mut self) {
        if self.groups.len() < 2 {
            return;
        }
        self.groups.sort_unstable_by_key(|group| group.step);
        self.groups.dedup_by(|next, group| {
            let is_same = next.step == group.step;
            if is_same {
                // Together they may be all that an instruction waits for.
                (group.lanes, group.is_waiting) = (group.lanes | next.lanes, false);
            }
            is_same
        });
    }

    /// Returns why no group runs.
    fn stopped(&self, program: &Program) -> Result<Stop, Failure> {
        let Some(first) = self.groups.first() else { return Ok(Stop::Ended) };
        let is_barrier = |group: &Group| matches!(program.code[group.step].action, Action::Barrier(_));
        if self.groups.len() == 1 && is_barrier(first) && first.lanes == self.lanes {
            return Ok(Stop::AtBarrier(first.step));
        }
        let waiting = self.groups.iter().find(|group| is_barrier(group)).unwrap_or(first);
        let kind = if is_barrier(waiting) { FaultKind::BarrierDivergence } else { FaultKind::WarpDivergence };
        let what = format!(
            "lanes {:#010x} of warp {} wait here; lanes {:#010x} of it have ended",
            waiting.lanes, self.index, self.exited
        );
        let failure = Failure::new(kind, waiting.step, waiting.lanes.trailing_zeros(), what);
        let other = self.groups.iter().find(|group| group.step != waiting.step);
        Err(match other {
            Some(other) => {
                let (warp, lane) = (self.index, other.lanes.trailing_zeros());
                failure.with(Party::Thread { warp, lane, step: other.step })
            }
            None => failure,
        })
    }

    /// Runs a group up to the step `bound`, or until it branches while there are others.
    fn run_group(
        &mut self,
        mut group: Group,
        bound: usize,
        machine: &mut Machine<'_>,
        budget: &mut u32,
    ) -> Result<(), Failure> {
        let program = machine.program;
        loop {
            let step = &program.code[group.step];
            let active = group.lanes & self.holds(step.guard);
            machine.count(group.step, active)?;
            *budget = budget.saturating_sub(1);
            if active == 0 {
                group.step += 1;
                if group.step >= bound || *budget == 0 {
                    break;
                }
                continue;
            }
            match &step.action {
                Action::Branch { target } => {
                    if self.split(&mut group, active, *target) {
                        break;
                    }
                    if *budget == 0 {
                        break;
                    }
                    continue;
                }
                Action::BranchIndexed { index, targets } => {
                    let rest = Group { step: group.step + 1, lanes: group.lanes & !active, is_waiting: false };
                    self.branch_indexed(group.step, active, &self.planes[*index as usize].clone(), targets)?;
                    if rest.lanes != 0 {
                        self.groups.push(rest);
                    }
                    return Ok(());
                }
                Action::Exit => {
                    self.exited |= active;
                    group.lanes &= !active;
                    // Whoever waited for these lanes waits no more.
                    self.groups.iter_mut().for_each(|group| group.is_waiting = false);
                    if group.lanes == 0 {
                        return Ok(());
                    }
                }
                Action::Trap => {
                    return Err(Failure::new(FaultKind::Trap, group.step, active.trailing_zeros(), ""));
                }
                Action::Barrier(_) => {
                    self.groups.push(Group { step: group.step, lanes: active, is_waiting: true });
                    group.lanes &= !active;
                    if group.lanes == 0 {
                        return Ok(());
                    }
                }
                Action::WarpBarrier { members }
                | Action::Shuffle(super::Shuffle { members, .. })
                | Action::Vote(super::Vote { members, .. }) => {
                    if !self.is_complete(&group, active, *members)? {
                        self.groups.push(Group { is_waiting: true, ..group });
                        return Ok(());
                    }
                    self.exchange(&step.action, group.step, active)?;
                }
                Action::Load(access) => self.load(access, group.step, active, machine)?,
                Action::Store(access) => self.store(access, group.step, active, machine)?,
                action => self.compute(action, active, group.lanes),
            }
            group.step += 1;
            if group.step >= bound || *budget == 0 {
                break;
            }
        }
        self.groups.push(group);
        Ok(())
    }

    /// Lets the active lanes go to a step, the others to the next one. Returns whether there is
    /// more than one group now.
    fn split(&mut self, group: &mut Group, active: u32, target: usize) -> bool {
        if active == group.lanes {
            group.step = target;
        } else {
            self.groups.push(Group { step: target, lanes: active, is_waiting: false });
            *group = Group { step: group.step + 1, lanes: group.lanes & !active, is_waiting: false };
        }
        !self.groups.is_empty()
    }

    fn branch_indexed(&mut self, step: usize, active: u32, index: &Plane, targets: &[usize]) -> Result<(), Failure> {
        for lane in lanes(active) {
            let Some(target) = targets.get(index[lane] as usize) else {
                let what = format!("the index {} is not below the number of labels, {}", index[lane], targets.len());
                return Err(Failure::new(FaultKind::Undefined, step, lane as u32, what));
            };
            self.groups.push(Group { step: *target, lanes: 1 << lane, is_waiting: false });
        }
        Ok(())
    }

    /// Returns the stamp of lane 0 for an access at this step.
    pub(crate) fn stamp(&mut self, step: usize, machine: &mut Machine<'_>) -> Result<Stamp, Failure> {
        let event = Event {
            block: machine.block,
            warp: self.index,
            barriers: self.barriers,
            warp_barriers: self.warp_barriers,
            step: step as u32,
        };
        let last = self.stamps[step];
        if last != 0 && machine.events.of(last) == event {
            return Ok(last);
        }
        let stamp = machine.events.add(event);
        let what = "the launch has more accesses than can be told apart";
        self.stamps[step] = stamp.ok_or_else(|| Failure::new(FaultKind::InstructionLimit, step, 0, what))?;
        Ok(self.stamps[step])
    }

    /// Returns the lanes for which a condition holds.
    pub(crate) fn holds(&self, condition: Condition) -> u32 {
        self.masks[condition.predicate as usize] ^ if condition.is_negated { u32::MAX } else { 0 }
    }

    /// Executes an instruction in which each lane computes for itself.
    fn compute(&mut self, action: &Action, active: u32, group: u32) {
        let mut result = [0; LANES];
        let plane = |at: &Register| &self.planes[*at as usize];
        let to = match action {
            Action::Unary { to, a, compute } => {
                compute(plane(a), &mut result);
                to
            }
            Action::Binary { to, a, b, compute } => {
                compute(plane(a), plane(b), &mut result);
                to
            }
            Action::Ternary { to, a, b, c, compute } => {
                compute(plane(a), plane(b), plane(c), &mut result);
                to
            }
            Action::Quaternary { to, operands, compute, bits } => {
                for (at, result) in result.iter_mut().enumerate() {
                    *result = compute(operands.map(|operand| self.planes[operand as usize][at]), *bits);
                }
                to
            }
            Action::Carry { to, operands, compute, sets } => {
                let mut carries = 0;
                for (at, result) in result.iter_mut().enumerate() {
                    let values = operands.map(|operand| self.planes[operand as usize][at]);
                    let carry;
                    (*result, carry) = compute(values, self.carries >> at & 1 == 1);
                    carries |= u32::from(carry) << at;
                }
                if *sets {
                    self.carries = self.carries & !active | carries & active;
                }
                to
            }
            Action::Select { to, a, b, condition } => {
                let mask = self.holds(*condition);
                let (a, b) = (plane(a), plane(b));
                result = std::array::from_fn(|at| if mask >> at & 1 == 1 { a[at] } else { b[at] });
                to
            }
            Action::Compare { to, complement, a, b, compute, combine, with } => {
                let holds = compute(plane(a), plane(b));
                let with = self.holds(*with);
                self.set_mask(*to, combine(holds, with), active);
                if let Some(complement) = complement {
                    self.set_mask(*complement, combine(!holds, with), active);
                }
                return;
            }
            Action::Logic { to, a, b, compute } => {
                let value = compute(self.holds(*a), self.holds(*b));
                return self.set_mask(*to, value, active);
            }
            Action::ActiveLanes { to } => {
                result = [group.into(); LANES];
                to
            }
            _ => return,
        };
        self.set_plane(*to, &result, active);
    }

    pub(crate) fn set_plane(&mut self, to: Register, result: &Plane, active: u32) {
        let to = &mut self.planes[to as usize];
        if active == u32::MAX {
            *to = *result;
        } else {
            for at in 0..LANES {
                to[at] = if active >> at & 1 == 1 { result[at] } else { to[at] };
            }
        }
    }

    pub(crate) fn set_mask(&mut self, to: u32, value: u32, active: u32) {
        let to = &mut self.masks[to as usize];
        *to = *to & !active | value & active;
    }
}

/// Returns the lanes of a mask, the lowest first.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}
