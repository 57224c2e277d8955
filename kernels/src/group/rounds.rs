//! The rounds of a group, and ranks that make no calls for a while.

use super::{endpoint::Seat, fault::Fault};
use crate::{shm::records::Round, sync::atomics::Ordering};
use std::ops::Range;

impl Seat {
    /// Begins the next round of a group that was ended, unless a process died: waits until every rank has done the same.
    /// Groups that were split off remain ended. Does nothing where the group has not been ended.
    ///
    /// # Errors
    /// See [`Fault`]. The new round has ended too, then, and may be followed by another.
    pub fn renew(&mut self) -> Result<(), Fault> {
        if self.hub.forked() {
            return Err(Fault::Forked);
        }
        let Some(abort) = self.hub.aborted(self.round) else { return Ok(()) };
        let round = self.hub.next_round(self.round).ok_or(Fault::Aborted(abort))?;
        self.begin_call();
        (self.round, self.epoch, self.left) = (round, round.base(), None);
        if let Some(stage) = &mut self.stage {
            stage.renew(round);
        }
        // SYNC POINT round: who sees a rank in this round sees that it reads nothing of the last one any more; pairs below.
        self.hub.lines()[self.world.rank()].progress.round.store(round.0, Ordering::Release);
        self.wake();
        // SYNC POINT round: pairs above.
        let all = self.wait_for_all(|line| line.progress.round.load(Ordering::Acquire) >= round.0);
        if let Err(Fault::Left(rank)) = all {
            self.left = Some(rank);
        }
        all?;
        // Only now: until it is in this round, a rank may still look for the counts by which it finishes a call of the last one.
        let progress = &self.hub.lines()[self.world.rank()].progress;
        for count in [&progress.done, &progress.staged, &progress.folded, &progress.read] {
            count.store(round.base(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Says that this rank, a thread, makes no more calls in this round: who waits for it is told that it has left.
    ///
    /// # Panics
    /// If the group is one of processes.
    pub fn leave_round(&mut self) {
        assert!(self.stage.is_none(), "a group of threads");
        self.left = Some(self.world.rank());
        self.hub.leave_round(self.round, self.world.rank());
    }

    /// Begins the next round of a group of threads that was split from none, once all ranks have left this one. False if a rank has
    /// not, if there are no more rounds, or if the group was ended.
    ///
    /// # Panics
    /// If the group is another one.
    pub fn begin_round(&mut self) -> bool {
        assert!(self.stage.is_none() && !self.hub.has_parent(), "a whole group of threads");
        let all_left = (0..self.world.size()).all(|rank| self.hub.has_left(self.round, rank));
        if !all_left || self.hub.aborted(self.round).is_some() {
            return false;
        }
        let Some(round) = Round(self.round.mark()).below_end() else { return false };
        (self.round, self.epoch, self.left) = (round, round.base(), None);
        self.hub.forget(self.world.rank());
        true
    }

    /// Says whether this rank rests: it makes no call before `company`, ranks of the same process, have ended theirs. One of
    /// them that waits for it is told that it has left.
    pub fn rest(&mut self, company: Range<usize>, resting: bool) {
        self.company = company;
        if self.hub.forked() {
            return;
        }
        // SYNC POINT rest: who sees that this rank rests sees how far it had come; pairs with `has_left`.
        self.hub.lines()[self.world.rank()].progress.resting.store(resting.into(), Ordering::Release);
        if resting {
            self.company.clone().for_each(|rank| self.hub.wake(rank));
        }
    }
}
