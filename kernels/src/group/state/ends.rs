//! The ends of a group: aborts and losses.

use super::GroupState;
use crate::{
    group::end::abort::{Abort, Reason},
    shm::records::Generation,
    sync::atomics::Ordering,
};
use std::ops::Range;

impl GroupState {
    /// Ends this group, in `generation`, and the groups split from it. Never waits for a rank.
    /// Returns false if it had ended before.
    pub(crate) fn abort(&self, generation: Generation, abort: Abort) -> bool {
        self.abort_in(generation, None, abort)
    }

    /// Like `abort`, with the author's `turn`, for [`ended_after`](GroupState::ended_after).
    pub(crate) fn abort_in(&self, generation: Generation, turn: Option<u64>, abort: Abort) -> bool {
        let word = &self.backing.head().abort;
        let mut now = word.load(Ordering::Relaxed);
        while Abort::read(now, generation).is_none() {
            // SYNC POINT end: a rank that reads the abort sees its author's earlier writes; pairs
            // with `own_end`.
            match word.compare_exchange(now, abort.word(generation, turn), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    self.wake_all();
                    return true;
                }
                Err(other) => now = other,
            }
        }
        false
    }

    /// Returns the abort of this group in `generation`, if there is one; its rank is a rank of this
    /// group or of an ancestor.
    #[inline]
    pub(crate) fn aborted(&self, generation: Generation) -> Option<Abort> {
        // An ancestor's abort comes first: it is the reason for later aborts of its subgroups.
        let inherited = self.parent.as_ref().and_then(|parent| parent.state.aborted(parent.generation));
        inherited.or_else(|| self.own_end(generation))
    }

    /// Like `aborted`, and returns the group that was ended, in whose numbering the rank is, and
    /// its generation.
    pub(crate) fn end(&self, generation: Generation) -> Option<(Abort, &GroupState, Generation)> {
        let inherited = self.parent.as_ref().and_then(|parent| parent.state.end(parent.generation));
        inherited.or_else(|| self.own_end(generation).map(|abort| (abort, self, generation)))
    }

    /// Whether this group has been ended in `generation`, in a turn of the author that comes after
    /// `turn`.
    pub(crate) fn ended_after(&self, generation: Generation, turn: u64) -> bool {
        // Relaxed: nothing else is read because of this word.
        let word = self.backing.head().abort.load(Ordering::Relaxed);
        Abort::read(word, generation).is_some() && Abort::is_after(word, turn)
    }

    fn own_end(&self, generation: Generation) -> Option<Abort> {
        // SYNC POINT end: pairs with `abort_in`.
        let abort = Abort::read(self.backing.head().abort.load(Ordering::Acquire), generation)?;
        // A peer may have written a rank that does not exist; callers use the rank as an index.
        Some(Abort { rank: abort.rank.min(self.records().len() - 1), ..abort })
    }

    /// Records that the process of `ranks` takes part no more, and why. If they had not all left
    /// before, this ends the group for good: in the name of the rank that had left before, if one
    /// of them was told of it.
    pub(crate) fn lose(&self, ranks: Range<usize>, reason: Reason) {
        let gone = |rank: &usize| {
            let counters = &self.records()[*rank].counters;
            // Relaxed: the system told the caller of the loss, after that process's last write.
            let left = counters.left.load(Ordering::Relaxed);
            left <= counters.generation.load(Ordering::Relaxed)
        };
        if let Some(rank) = ranks.clone().find(gone) {
            let culprits = ranks.clone().map(|rank| self.culprit(Generation::default(), rank));
            let abort = match { culprits }.find(|culprit| !ranks.contains(culprit)) {
                Some(rank) => Abort { rank, reason: Reason::Departure },
                None => Abort { rank, reason },
            };
            self.abort(Generation::END, abort);
        }
    }
}
