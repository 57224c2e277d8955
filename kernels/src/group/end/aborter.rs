//! Ending a group from any thread.

use super::abort::{Abort, Fault, Reason};
use crate::{group::state::GroupState, shm::records::Generation};
use std::{ops::Range, sync::Arc, time::Duration};

/// Ends a group from any thread, without waiting.
#[derive(Clone)]
pub struct Aborter {
    state: Arc<GroupState>,
    generation: Generation,
    rank: usize,
}

impl Aborter {
    pub(crate) fn new(state: Arc<GroupState>, generation: Generation, rank: usize) -> Aborter {
        Aborter { state, generation, rank }
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
        if !self.state.forked() {
            let culprit = self.state.culprit(self.generation, self.rank);
            let reason = if culprit == self.rank { reason } else { Reason::Leave };
            self.state.abort_in(self.generation, turn, Abort { rank: culprit, reason });
        }
    }

    /// Whether the group was ended in a turn that comes after `turn`, by fewer than 64. False where
    /// the end has no turn.
    pub fn ended_after(&self, turn: u64) -> bool {
        !self.state.forked() && self.state.ended_after(self.generation, turn)
    }

    /// Ends the group because `rank` did not come before a deadline of this one, which has waited
    /// for `timeout`. Returns the rank at fault: if `rank` waits for another one in turn, the end
    /// of that chain.
    pub fn give_up(&self, rank: usize, timeout: Duration) -> usize {
        if self.state.forked() {
            return rank;
        }
        match self.state.give_up(self.generation, self.rank, &[rank], timeout / 2) {
            Fault::Missing(missing) => missing.first().copied().unwrap_or(rank),
            Fault::Aborted(abort) => abort.rank,
            _ => rank,
        }
    }

    /// Returns the rank that holds up `rank`: itself, or the end of its chain of waits.
    pub fn held_up_by(&self, rank: usize) -> usize {
        if self.state.forked() { rank } else { self.state.end_of_waits(self.rank, rank) }
    }

    /// Returns the abort that ended the group, if it was ended; `None` in a forked process.
    pub fn aborted(&self) -> Option<Abort> {
        if self.state.forked() { None } else { self.state.aborted(self.generation) }
    }

    /// Records that the process of `ranks` takes part no more, and why. If they had not all left
    /// before, this ends the group for good.
    pub fn lose(&self, ranks: Range<usize>, reason: Reason) {
        self.state.lose(ranks, reason);
    }
}
