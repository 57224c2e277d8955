//! A block: warps that take turns, and meet at barriers.

use super::{
    failure::{Failure, Party},
    machine::Machine,
    random::Random,
    warp::{Stop, Warp, lanes},
};
use crate::{
    fault::FaultKind,
    program::{Action, Barrier, BarrierReduction, LANES, ReductionKind},
};

/// A warp's failure, with the warp.
pub(crate) struct BlockFailure {
    pub(crate) warp: u32,
    pub(crate) failure: Failure,
}

/// The largest number of instructions that a warp executes before another one has its turn.
const LONGEST_TURN: usize = 64;

/// Runs the warps of a block to their end. Returns the number of barriers.
pub(crate) fn run(warps: &mut [Warp], machine: &mut Machine<'_>, random: &mut Random) -> Result<u64, BlockFailure> {
    let mut running: Vec<usize> = (0..warps.len()).collect();
    let mut waiting: Vec<(usize, usize)> = Vec::new();
    let mut ended: Option<u32> = None;
    let mut barriers = 0;
    loop {
        while !running.is_empty() {
            let turn = random.below(running.len());
            let at = running[turn];
            // A warp alone needs no turns.
            let budget = if running.len() == 1 { u32::MAX } else { 1 + random.below(LONGEST_TURN) as u32 };
            let stop = warps[at].run(machine, budget);
            match stop.map_err(|failure| BlockFailure { warp: at as u32, failure })? {
                Stop::Paused => continue,
                Stop::AtBarrier(step) => waiting.push((at, step)),
                Stop::Ended => ended = Some(at as u32),
            }
            running.swap_remove(turn);
        }
        let Some(&(first, step)) = waiting.first() else { return Ok(barriers) };
        let lane = warps[first].lanes.trailing_zeros();
        let divergence = |other: Option<Party>, what: &str| BlockFailure {
            warp: first as u32,
            failure: Failure { other, ..Failure::new(FaultKind::BarrierDivergence, step, lane, what) },
        };
        if let Some(ended) = ended {
            return Err(divergence(None, &format!("the warp {ended} ended, and does not reach the barrier")));
        }
        if let Some((other, its_step)) = waiting.iter().find(|(_, its_step)| *its_step != step) {
            let party = Party::Thread { warp: *other as u32, lane: 0, step: *its_step };
            return Err(divergence(Some(party), "two warps wait at different barriers"));
        }
        let Action::Barrier(barrier) = &machine.program.code[step].action else {
            unreachable!("warps wait at barriers");
        };
        check(barrier, warps).map_err(|what| divergence(None, &what))?;
        if let Some(reduction) = &barrier.reduction {
            reduce(reduction, warps);
        }
        for (at, step) in waiting.drain(..) {
            let warp = &mut warps[at];
            warp.barriers += 1;
            warp.groups[0].step = step + 1;
            warp.groups[0].is_waiting = false;
            running.push(at);
        }
        barriers += 1;
    }
}

/// Returns what is wrong unless all threads wait for all threads at one barrier.
fn check(barrier: &Barrier, warps: &[Warp]) -> Result<(), String> {
    let threads: u32 = warps.iter().map(|warp| warp.lanes.count_ones()).sum();
    let first = warps[0].planes[barrier.id as usize][0];
    for warp in warps {
        for lane in lanes(warp.lanes) {
            let id = warp.planes[barrier.id as usize][lane];
            if id != first {
                return Err(format!("threads wait at the barriers {first} and {id}"));
            }
            if id > 15 {
                return Err(format!("the barrier {id} is none: there are 16"));
            }
            let expected = barrier.threads.map_or(threads.into(), |plane| warp.planes[plane as usize][lane]);
            if expected != threads.into() {
                return Err(format!("the barrier expects {expected} threads of a block of {threads}"));
            }
        }
    }
    Ok(())
}

fn reduce(reduction: &BarrierReduction, warps: &mut [Warp]) {
    let (mut count, mut all) = (0, true);
    for warp in warps.iter() {
        let holds = warp.holds(reduction.source) & warp.lanes;
        count += u64::from(holds.count_ones());
        all &= holds == warp.lanes;
    }
    for warp in warps {
        let lanes = warp.lanes;
        let mask = |holds| if holds { u32::MAX } else { 0 };
        match reduction.kind {
            ReductionKind::Count => warp.set_plane(reduction.to, &[count; LANES], lanes),
            ReductionKind::And => warp.set_mask(reduction.to, mask(all), lanes),
            ReductionKind::Or => warp.set_mask(reduction.to, mask(count > 0), lanes),
        }
    }
}
