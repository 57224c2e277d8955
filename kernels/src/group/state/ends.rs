//! The ends of a group: aborts and losses.
//!
//! One word says how a group ended last, and for which generations. A loss takes the place of an
//! abort there. But the lost process may have ended because of that abort, and a slow rank may not
//! have looked yet: so the head keeps the abort, too. A rank is told of the abort first, and of the
//! loss in its next call (`consonance_spec::generations`). Its record has how far it is
//! (`Counters::heard`). Every call, handle and report of the rank takes the same end: that of
//! which its current call is told, or its last one.
//!
//! A group that was split off ends with its ancestors, too. If it was aborted before any of them
//! had ended, their end may be a consequence: its word says so, and a rank is told of its abort
//! first. Otherwise the end of the ancestor is the reason, and the only one that is told.

use super::{GroupState, Parent};
use crate::{
    group::end::abort::{Abort, Reason},
    shm::records::Generation,
    sync::atomics::{AtomicU64, Ordering},
};
use std::ops::Range;

/// The end of a group, as one of its ranks is told.
pub(crate) struct Ended<'s> {
    pub(crate) abort: Abort,
    /// The group that was ended, in whose numbering the ranks are: the rank's own, or an ancestor.
    pub(crate) state: &'s GroupState,
    /// Its generation.
    pub(crate) generation: Generation,
    /// The rank that is told.
    rank: usize,
}

impl GroupState {
    /// Ends this group, in `generation`, and the groups split from it. Never waits for a rank.
    /// Returns false if it had ended before.
    pub(crate) fn abort(&self, generation: Generation, abort: Abort) -> bool {
        self.abort_in(generation, None, abort)
    }

    /// Like `abort`, with the author's `turn`, for [`ended_after`](GroupState::ended_after).
    pub(crate) fn abort_in(&self, generation: Generation, turn: Option<u64>, abort: Abort) -> bool {
        // Asked before the word is written. If an ancestor ends in between, neither end is the
        // reason for the other.
        let comes_first = self.parent.as_ref().is_some_and(|parent| !parent.has_ended());
        let new = abort.word(generation, turn, comes_first);
        let word = &self.backing.head().abort;
        let mut now = word.load(Ordering::Relaxed);
        while Abort::read(now, generation).is_none() {
            if generation == Generation::END {
                // Relaxed: the loss is released after it.
                self.backing.head().replaced.fetch_max(now, Ordering::Relaxed);
            }
            // SYNC POINT end: a rank that reads the abort sees its author's earlier writes; pairs
            // with `last_word`.
            match word.compare_exchange(now, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    self.wake_all();
                    return true;
                }
                Err(other) => now = other,
            }
        }
        false
    }

    /// Returns the end of this group in `generation`, if it has ended, of which `rank` is told. The
    /// rank at fault is one of this group or of an ancestor.
    #[inline]
    pub(crate) fn aborted(&self, generation: Generation, rank: usize) -> Option<Abort> {
        if self.has_ended(generation) { self.end(generation, rank).map(|end| end.abort) } else { None }
    }

    /// Like `aborted`, and returns the group that was ended.
    #[cold]
    pub(crate) fn end(&self, generation: Generation, rank: usize) -> Option<Ended<'_>> {
        // Asked before the own word: a rank that sees the end of an ancestor sees the abort that is
        // the reason for it.
        let inherited =
            self.parent.as_ref().and_then(|parent| parent.state.end(parent.generation, parent.members[rank]));
        let is_next =
            |word: &u64| inherited.is_none() || Abort::comes_before_ancestors(*word) && !self.is_told(generation, rank);
        let own = self.own_word(generation, rank).filter(is_next).and_then(|word| Abort::read(word, generation));
        let Some(abort) = own else { return inherited };
        // A peer may have written a rank that does not exist; callers use the rank as an index.
        let abort = Abort { rank: abort.rank.min(self.records().len() - 1), ..abort };
        Some(Ended { abort, state: self, generation, rank })
    }

    /// Whether this group has been ended in `generation`, as `rank` is told, in a turn of the
    /// author that comes after `turn`.
    pub(crate) fn ended_after(&self, generation: Generation, rank: usize, turn: u64) -> bool {
        self.own_word(generation, rank).is_some_and(|word| Abort::is_after(word, turn))
    }

    /// Notes that a call of `rank` is told how this group has ended in `generation`.
    #[cold]
    pub(crate) fn hear(&self, generation: Generation, rank: usize) {
        if let Some(Ended { state, generation, rank, .. }) = self.end(generation, rank) {
            // Relaxed, as the notes below: nobody else reads them.
            state.heard(rank).fetch_max(2 * generation.mark(), Ordering::Relaxed);
        }
    }

    /// Notes that `rank` begins a call. If its last one was told how this group has ended in
    /// `generation`, or one that it was split from, this one is told of the next end.
    #[cold]
    pub(crate) fn begin_after_end(&self, generation: Generation, rank: usize) {
        if let Some(parent) = &self.parent {
            parent.state.begin_after_end(parent.generation, parent.members[rank]);
        }
        let told = 2 * generation.mark();
        _ = self.heard(rank).compare_exchange(told, told + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that `rank` needs no news of an abort of this `generation`, only of a loss. The group
    /// was split from none.
    #[cold]
    pub(crate) fn pass_over_abort(&self, generation: Generation, rank: usize) {
        self.heard(rank).fetch_max(2 * generation.mark() + 1, Ordering::Relaxed);
    }

    pub(super) fn heard(&self, rank: usize) -> &AtomicU64 {
        &self.records()[rank].counters.heard
    }

    /// Whether an earlier call of `rank` was told how this group has ended in `generation`.
    fn is_told(&self, generation: Generation, rank: usize) -> bool {
        self.heard(rank).load(Ordering::Relaxed) > 2 * generation.mark()
    }

    /// Whether this group or one that it was split from has ended in `generation`.
    // Inlined: every call asks.
    #[inline]
    pub(crate) fn has_ended(&self, generation: Generation) -> bool {
        Abort::ends(self.last_word(), generation) || self.parent.as_ref().is_some_and(Parent::has_ended)
    }

    /// Returns the word of the last end of this group alone.
    #[inline]
    fn last_word(&self) -> u64 {
        // SYNC POINT end: pairs with `abort_in`.
        self.backing.head().abort.load(Ordering::Acquire)
    }

    /// Returns the word of the end of `generation` in this group alone of which `rank` is told: the
    /// abort that a loss has replaced, if `rank` was not told of it.
    fn own_word(&self, generation: Generation, rank: usize) -> Option<u64> {
        let word = self.last_word();
        Abort::read(word, generation)?;
        if Abort::read(word, Generation::END).is_none() || self.is_told(generation, rank) {
            return Some(word);
        }
        let replaced = self.backing.head().replaced.load(Ordering::Relaxed);
        Some(Abort::read(replaced, generation).map_or(word, |_| replaced))
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

impl Parent {
    /// Whether the parent or one of its own ancestors has ended.
    fn has_ended(&self) -> bool {
        self.state.has_ended(self.generation)
    }
}
