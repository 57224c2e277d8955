//! The end of a group, from any thread.

use super::{
    abort::{Abort, Reason},
    state::GroupState,
};
use crate::shm::records::Generation;
use std::{ops::Range, sync::Arc};

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

    /// Ends the group, and those split from it, in the name of this rank, or of the one that had
    /// left before if this one was [told](crate::group::Endpoint::blame) of it: every rank that
    /// waits in it, or calls anything in it later, gets
    /// [`Fault::Aborted`](crate::group::Fault::Aborted). The first to say so wins.
    pub fn abort(&self, reason: Reason) {
        self.end(None, reason);
    }

    /// [`abort`](Aborter::abort) in this `turn` of its process, a number that the processes of the
    /// group count alike.
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

    /// Ends the group because `rank` did not come before a deadline of this one.
    pub fn give_up(&self, rank: usize) {
        if !self.state.forked() {
            self.state.abort(self.generation, Abort { rank, reason: Reason::Deadline });
        }
    }

    /// Who ended the group, if somebody has; nobody, as far as a fork can tell.
    pub fn aborted(&self) -> Option<Abort> {
        if self.state.forked() { None } else { self.state.aborted(self.generation) }
    }

    /// Says that the process of `ranks` takes part no more, and why. If they had not all left
    /// before, this ends the group for good.
    pub fn lose(&self, ranks: Range<usize>, reason: Reason) {
        self.state.lose(ranks, reason);
    }
}
