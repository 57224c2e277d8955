//! Ending a group from any thread.

use super::abort::{Abort, Fault, Reason};
use crate::group::member::Member;
use std::{ops::Range, time::Duration};

/// Ends a group from any thread, without waiting.
#[derive(Clone)]
pub struct Aborter {
    member: Member,
}

impl Aborter {
    pub(in crate::group) fn new(member: Member) -> Aborter {
        Aborter { member }
    }

    /// Ends the group, and the groups split from it, in the name of this rank. If this rank was
    /// [told](crate::group::Witness::blame) of a rank that had left before, it ends the group in
    /// the name of that rank. Every rank that waits in the group, or calls anything in it later,
    /// gets [`Fault::Aborted`](crate::group::Fault::Aborted). The first abort wins.
    pub fn abort(&self, reason: Reason) {
        self.end(None, reason);
    }

    /// Like [`abort`](Aborter::abort), in this `turn` of its process, a number that all processes
    /// of the group count alike.
    pub fn abort_in(&self, turn: u64, reason: Reason) {
        self.end(Some(turn), reason);
    }

    fn end(&self, turn: Option<u64>, reason: Reason) {
        let Member { state, world, generation } = &self.member;
        if !state.forked() {
            let culprit = state.culprit(*generation, world.rank());
            let reason = if culprit == world.rank() { reason } else { Reason::Leave };
            state.abort_in(*generation, turn, Abort { rank: culprit, reason });
        }
    }

    /// Whether the group was ended in a turn that comes after `turn`, by fewer than 64. False where
    /// the end has no turn.
    pub fn ended_after(&self, turn: u64) -> bool {
        let Member { state, world, generation } = &self.member;
        !state.forked() && state.ended_after(*generation, world.rank(), turn)
    }

    /// Ends the group because `rank` did not come before a deadline of this one, which has waited
    /// for `timeout`. Returns the rank at fault: if `rank` waits for another one in turn, the end
    /// of that chain.
    pub fn give_up(&self, rank: usize, timeout: Duration) -> usize {
        let Member { state, world, generation } = &self.member;
        if state.forked() {
            return rank;
        }
        match state.give_up(*generation, world.rank(), &[rank], timeout / 2) {
            Fault::Missing(missing) => missing.first().copied().unwrap_or(rank),
            Fault::Aborted(abort) => abort.rank,
            _ => rank,
        }
    }

    /// Returns the rank that holds up `rank`: itself, or the end of its chain of waits.
    pub fn held_up_by(&self, rank: usize) -> usize {
        let Member { state, world, .. } = &self.member;
        if state.forked() { rank } else { state.end_of_waits(world.rank(), rank) }
    }

    /// Returns the abort that ended the group, if it was ended; `None` in a forked process.
    pub fn aborted(&self) -> Option<Abort> {
        if self.member.state.forked() { None } else { self.member.aborted() }
    }

    /// Records that the process of `ranks` takes part no more, and why. If they had not all left
    /// before, this ends the group for good.
    pub fn lose(&self, ranks: Range<usize>, reason: Reason) {
        self.member.state.lose(ranks, reason);
    }
}
