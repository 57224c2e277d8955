//! The ends of a group: aborts and losses.
//!
//! One word says how a group ended last, and for which generations. A loss takes the place of an
//! abort there. But the lost process may have ended because of that abort, and a slow rank may not
//! have looked yet: so the head keeps the abort, too. A rank is told of the abort first, and of the
//! loss in its next call (`consonance_spec::generations`). Its record has how far it is
//! (`Counters::heard`). Every call, handle and report of the rank takes the same end: that of
//! which its current call is told, or its last one.

use super::GroupState;
use crate::{
    group::end::abort::{Abort, Reason},
    shm::records::Generation,
    sync::atomics::{AtomicU64, Ordering},
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
            if generation == Generation::END {
                // Relaxed: the loss is released after it.
                self.backing.head().replaced.fetch_max(now, Ordering::Relaxed);
            }
            // SYNC POINT end: a rank that reads the abort sees its author's earlier writes; pairs
            // with `own_word`.
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

    /// Returns the end of this group in `generation`, if it has ended, of which `rank` is told. The
    /// rank at fault is one of this group or of an ancestor.
    #[inline]
    pub(crate) fn aborted(&self, generation: Generation, rank: usize) -> Option<Abort> {
        // An ancestor's abort comes first: it is the reason for later aborts of its subgroups.
        let inherited =
            (self.parent.as_ref()).and_then(|parent| parent.state.aborted(parent.generation, parent.members[rank]));
        inherited.or_else(|| self.own_end(generation, rank))
    }

    /// Like `aborted`, and returns the group that was ended, in whose numbering the rank is, and
    /// its generation.
    pub(crate) fn end(&self, generation: Generation, rank: usize) -> Option<(Abort, &GroupState, Generation)> {
        let inherited =
            self.parent.as_ref().and_then(|parent| parent.state.end(parent.generation, parent.members[rank]));
        inherited.or_else(|| self.own_end(generation, rank).map(|abort| (abort, self, generation)))
    }

    /// Whether this group has been ended in `generation`, as `rank` is told, in a turn of the
    /// author that comes after `turn`.
    pub(crate) fn ended_after(&self, generation: Generation, rank: usize, turn: u64) -> bool {
        self.own_word(generation, rank).is_some_and(|word| Abort::is_after(word, turn))
    }

    /// Notes that a call of `rank` is told how this group has ended in `generation`.
    #[cold]
    pub(crate) fn hear(&self, generation: Generation, rank: usize) {
        // Relaxed, as what follows: nobody else reads the note.
        self.note_end(generation, rank, &|heard, told| _ = heard.fetch_max(told, Ordering::Relaxed));
    }

    /// Notes that `rank` begins a call. If its last one was told how this group has ended in
    /// `generation`, this one is told of a loss.
    #[cold]
    pub(crate) fn begin_after_end(&self, generation: Generation, rank: usize) {
        self.note_end(generation, rank, &|heard, told| {
            _ = heard.compare_exchange(told, told + 1, Ordering::Relaxed, Ordering::Relaxed);
        });
    }

    /// Notes that `rank` needs no news of an abort of this `generation`, only of a loss.
    #[cold]
    pub(crate) fn pass_over_abort(&self, generation: Generation, rank: usize) {
        self.note_end(generation, rank, &|heard, told| _ = heard.fetch_max(told + 1, Ordering::Relaxed));
    }

    /// Writes a note of `rank` in this group and in those that it was split from, where they have
    /// ended. `note` also gets the least note for the generation.
    fn note_end(&self, generation: Generation, rank: usize, note: &impl Fn(&AtomicU64, u64)) {
        if let Some(parent) = &self.parent {
            parent.state.note_end(parent.generation, parent.members[rank], note);
        }
        if self.own_word(generation, rank).is_some() {
            note(&self.records()[rank].counters.heard, 2 * generation.mark());
        }
    }

    #[inline]
    fn own_end(&self, generation: Generation, rank: usize) -> Option<Abort> {
        let word = self.own_word(generation, rank)?;
        let abort = Abort::read(word, generation)?;
        // A peer may have written a rank that does not exist; callers use the rank as an index.
        Some(Abort { rank: abort.rank.min(self.records().len() - 1), ..abort })
    }

    /// Returns the word of the end of `generation` of which `rank` is told.
    #[inline]
    fn own_word(&self, generation: Generation, rank: usize) -> Option<u64> {
        // SYNC POINT end: pairs with `abort_in`.
        let word = self.backing.head().abort.load(Ordering::Acquire);
        Abort::read(word, generation).map(|_| self.first_word(word, generation, rank))
    }

    /// Returns the abort of `generation` that the loss in `word` has replaced, if `rank` was not
    /// told of it. Otherwise returns `word`.
    #[cold]
    fn first_word(&self, word: u64, generation: Generation, rank: usize) -> u64 {
        let is_told = || self.records()[rank].counters.heard.load(Ordering::Relaxed) > 2 * generation.mark();
        if Abort::read(word, Generation::END).is_none() || is_told() {
            return word;
        }
        let replaced = self.backing.head().replaced.load(Ordering::Relaxed);
        Abort::read(replaced, generation).map_or(word, |_| replaced)
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
