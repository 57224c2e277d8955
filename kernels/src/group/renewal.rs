//! The generations of a group, and idle ranks.

use super::{end::abort::Fault, endpoint::Endpoint};
use crate::{shm::records::Generation, sync::atomics::Ordering};
use std::ops::Range;

impl Endpoint {
    /// Begins the next generation of a group that was ended, unless a process died: waits until
    /// every rank has done the same. Groups that were split off remain ended. Does nothing if the
    /// group has not been ended.
    ///
    /// # Errors
    /// See [`Fault`]. On an error the new generation has ended, too, and may be followed by
    /// another.
    pub fn renew(&mut self) -> Result<(), Fault> {
        if self.state.forked() {
            return Err(Fault::Forked);
        }
        let Some(abort) = self.state.aborted(self.generation) else { return Ok(()) };
        let generation = self.state.next_round(self.generation).ok_or(Fault::Aborted(abort))?;
        self.close_mail(&Fault::Aborted(abort));
        self.begin_call();
        (self.generation, self.sequence, self.left) = (generation, generation.base(), None);
        self.state.say_begins_anew(self.world.rank());
        // The end has been told instead.
        (self.unsettled, self.differing, self.differing_late) = (None, None, None);
        if let Some(staging) = &mut self.staging {
            staging.renew(generation);
        }
        // SYNC POINT generation: a rank that sees this rank in this generation sees that it reads
        // nothing of the last one any more; pairs below.
        self.state.records()[self.world.rank()].counters.generation.store(generation.0, Ordering::Release);
        self.wake();
        // SYNC POINT generation: pairs above.
        let all = self.wait_for_all(|record| record.counters.generation.load(Ordering::Acquire) >= generation.0);
        if let Err(Fault::Left(rank)) = all {
            self.left = Some(rank);
        }
        all?;
        // Only now: a rank that has not entered this generation may still read the counters by
        // which it finishes a call of the last one.
        let counters = &self.state.records()[self.world.rank()].counters;
        for count in [&counters.done, &counters.staged, &counters.folded, &counters.read] {
            count.store(generation.base(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Announces that this rank, a thread, makes no more calls in this generation: a rank that
    /// waits for it fails with [`Fault::Left`].
    ///
    /// # Panics
    /// If the group is one of processes.
    pub fn leave_round(&mut self) {
        assert!(self.staging.is_none(), "a group of threads");
        self.left = Some(self.world.rank());
        self.close_mail(&Fault::Left(self.world.rank()));
        self.state.leave_round(self.generation, self.world.rank());
    }

    /// Begins the next generation of a group of threads that was split from none, once all ranks
    /// have left this one. Returns false if a rank has not left, if there are no more generations,
    /// or if the group was ended.
    ///
    /// # Panics
    /// If the group is one of processes, or was split from another.
    pub fn begin_round(&mut self) -> bool {
        assert!(self.staging.is_none() && !self.state.has_parent(), "a whole group of threads");
        let all_left = (0..self.world.size()).all(|rank| self.state.has_left(self.generation, rank));
        if !all_left || self.state.aborted(self.generation).is_some() {
            return false;
        }
        let Some(generation) = Generation(self.generation.mark()).below_end() else { return false };
        (self.generation, self.sequence, self.left) = (generation, generation.base(), None);
        self.state.forget(self.world.rank());
        self.state.say_begins_anew(self.world.rank());
        true
    }

    /// Marks this rank idle, or not: an idle rank makes no call before the ranks of `company`, of
    /// the same process, have ended theirs. A rank of `company` that waits for it fails with
    /// [`Fault::Left`] instead of timing out.
    pub fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.company = company;
        if self.state.forked() {
            return;
        }
        // SYNC POINT rest: a rank that sees that this rank is idle sees its last call; pairs with
        // `has_left`.
        self.state.records()[self.world.rank()].counters.idle.store(idle.into(), Ordering::Release);
        if idle {
            let own = self.world.rank();
            self.company.clone().filter(|&rank| rank != own).for_each(|rank| self.state.wake(rank));
        }
    }
}
