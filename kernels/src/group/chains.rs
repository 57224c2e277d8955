//! Who holds up whom: at a deadline, a rank follows the chain of waits to its end.
//!
//! The peer for which a rank waits may wait for another rank in turn, and that one for a third. The
//! rank at the end of the chain waits for nobody: it computes, was stopped, or does not come.
//! Errors name that rank alone (`consonance_spec::blame::ends_of_waits`).
//!
//! Each rank publishes for whom it sleeps, in the group of the wait (`Sleeper::waits_for`) and,
//! because another group of the rank may be the one that is held up, in the top group
//! (`Sleeper::blocker`). If several threads of a rank wait in several groups, `blocker` is that of
//! the wait that began last.
//!
//! # The races, by name
//!
//! * **Stopped in a wait.** A rank that is stopped while it sleeps looks as if it waited, long
//!   after its peer has come. But the peer has signalled it then (`Sleeper::progress`). So only a
//!   rank that has seen all such signals (`Sleeper::seen`) waits; any other rank has to run first,
//!   and is an end. The signals of ranks that leave or end a group do not count.
//! * **Two deadlines.** A rank that gives up at its own deadline, in a group or at a message that
//!   others do not share, stays in the chain for a while, and for ever if it was told of a rank
//!   that left: its peers are held up by the same rank.
//! * **A circle.** Ranks that wait for each other have no end: each is told of the peer for which
//!   it waits.

use super::{
    abort::{Abort, Reason},
    fault::Fault,
    state::GroupState,
};
use crate::{
    os::clock,
    shm::records::{Generation, Sleeper},
    sync::atomics::Ordering,
};
use std::time::Duration;

impl GroupState {
    /// Publishes that a thread of `rank` sleeps until `peer` makes progress. It checks afterwards
    /// whether `peer` has.
    pub(super) fn say_waits(&self, rank: usize, peer: usize) {
        self.records()[rank].sleeper.waits_for.store(peer as u32 + 1, Ordering::Relaxed);
        self.say_blocked(rank, peer);
    }

    /// Does the same where `rank` waits for a message of `peer`, or until `peer` takes one.
    pub(super) fn say_blocked(&self, rank: usize, peer: usize) {
        let Sleeper { blocker, progress, seen, gave_up, .. } = self.sleeper(rank);
        // Relaxed: a rank that reads these words late names another rank of the chain.
        seen.store(progress.load(Ordering::Relaxed), Ordering::Relaxed);
        blocker.store(self.top_rank(peer) as u32 + 1, Ordering::Relaxed);
        gave_up.store(0, Ordering::Relaxed);
    }

    /// Wakes `rank`, which sleeps until the calling rank makes progress: it has.
    pub(super) fn wake_for_progress(&self, rank: usize) {
        self.sleeper(rank).progress.fetch_add(1, Ordering::Relaxed);
        self.wake(rank);
    }

    /// Publishes that the thread of `rank` that said that it waits goes on.
    pub(super) fn say_goes_on(&self, rank: usize, peer: usize) {
        self.records()[rank].sleeper.waits_for.store(0, Ordering::Relaxed);
        self.say_unblocked(rank, peer);
    }

    /// Does the same after a wait for a message.
    pub(super) fn say_unblocked(&self, rank: usize, peer: usize) {
        let Sleeper { blocker, gave_up, .. } = self.sleeper(rank);
        let said = self.top_rank(peer) as u32 + 1;
        // A rank that gave up stays in the chain. Another thread of the rank may wait for another
        // peer, or begin to.
        if blocker.load(Ordering::Relaxed) == said && gave_up.load(Ordering::Relaxed) == 0 {
            let _ = blocker.compare_exchange(said, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Publishes that the wait of `rank` for `peer`, if it said that one last, was in vain: its
    /// deadline has passed, `peer` has left, or the group has ended. The rank stays in the chain
    /// for the time of `patience`.
    pub(super) fn say_gives_up(&self, rank: usize, peer: usize, patience: Duration) {
        let Sleeper { blocker, gave_up, .. } = self.sleeper(rank);
        if blocker.load(Ordering::Relaxed) == self.top_rank(peer) as u32 + 1 {
            let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
            gave_up.store(now().saturating_add(nanos).max(1), Ordering::Relaxed);
        }
    }

    /// Takes `rank`, which makes no call now, out of its chain: a new generation begins.
    pub(super) fn say_begins_anew(&self, rank: usize) {
        let Sleeper { blocker, gave_up, .. } = self.sleeper(rank);
        gave_up.store(0, Ordering::Relaxed);
        blocker.store(0, Ordering::Relaxed);
    }

    /// Clears the note of the last generation about the rank that `rank` was told of.
    pub(super) fn forget(&self, rank: usize) {
        // Relaxed: no rank is in a call.
        self.progress_at_top(rank).told.store(0, Ordering::Relaxed);
    }

    /// Ends the group because `rank` has waited for the ranks `awaited` until its deadline, and for
    /// the first of them last. Returns the fault: the ranks that hold it up, or the end of the
    /// group by another rank. For `patience` see [`say_gives_up`](GroupState::say_gives_up).
    pub(super) fn give_up(&self, generation: Generation, rank: usize, awaited: &[usize], patience: Duration) -> Fault {
        let first = self.end_of_waits(rank, awaited[0]);
        let missing = self.ends_of_waits(rank, awaited);
        self.say_gives_up(rank, awaited[0], patience);
        match self.abort(generation, Abort { rank: first, reason: Reason::Deadline }) {
            true => Fault::Missing(missing),
            false => self.aborted(generation).map_or(Fault::Missing(missing), Fault::Aborted),
        }
    }

    /// Returns the ranks that hold up `rank`, which waits for the ranks `awaited`, each once, in
    /// ascending order.
    pub(super) fn ends_of_waits(&self, rank: usize, awaited: &[usize]) -> Vec<usize> {
        let mut ends: Vec<usize> = awaited.iter().map(|&peer| self.end_of_waits(rank, peer)).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Returns the rank that holds up `rank`, which waits for `peer`: the end of the chain of waits
    /// that begins there. If the end is no rank of this group, returns the last rank of the chain
    /// that is one; if there is no end, returns `peer`. A rank that gave up a wait a short time ago
    /// counts as one that waits.
    pub(super) fn end_of_waits(&self, rank: usize, peer: usize) -> usize {
        let own = self.top_rank(rank);
        let generation = |rank: usize| self.top().records()[rank].counters.generation.load(Ordering::Relaxed);
        let (mut at, mut last) = (self.top_rank(peer), peer);
        // No chain without a circle is longer. Other processes write the words that it is read
        // from.
        for _ in 0..self.top().records().len() {
            // A rank of an earlier generation waits for nobody any more: it has to begin this one.
            let Some(next) = self.blocker(at).filter(|_| generation(at) >= generation(own)) else { return last };
            if next == own {
                return peer;
            }
            last = self.member(next).unwrap_or(last);
            at = next;
        }
        peer
    }

    /// Returns the rank that held up `rank`, if `rank` gave up its wait for it a short time ago,
    /// and has not waited since.
    pub(super) fn gave_up_for(&self, rank: usize) -> Option<usize> {
        // Relaxed: the caller was told of what `rank` did after it gave up.
        let has_given_up = self.sleeper(rank).gave_up.load(Ordering::Relaxed) != 0;
        let next = self.blocker(self.top_rank(rank)).filter(|_| has_given_up)?;
        Some(self.end_of_waits(rank, self.member(next)?))
    }

    /// Returns the rank for which the rank `at` waits or has waited in vain; both are in the
    /// numbering of the top group.
    fn blocker(&self, at: usize) -> Option<usize> {
        let top = self.top();
        let Sleeper { blocker, progress, seen, gave_up, .. } = &top.records()[at].sleeper;
        let here = self.member(at).and_then(|rank| {
            let peer = self.records()[rank].sleeper.waits_for.load(Ordering::Relaxed);
            let peer = usize::try_from(peer).ok()?.checked_sub(1)?;
            (peer < self.records().len()).then(|| self.top_rank(peer))
        });
        let anywhere = || usize::try_from(blocker.load(Ordering::Relaxed)).ok()?.checked_sub(1);
        let next = here.or_else(anywhere).filter(|&next| next < top.records().len() && next != at);
        let has_seen_all = || seen.load(Ordering::Relaxed) == progress.load(Ordering::Relaxed);
        let waits = match gave_up.load(Ordering::Relaxed) {
            0 => has_seen_all(),
            until => {
                // A rank that was told that another one left can do nothing more in a group that
                // has that one.
                let is_for_ever = |next| self.member(next).is_some() && top.has_left(Generation::END, next);
                now() <= until || next.is_some_and(is_for_ever)
            }
        };
        next.filter(|_| waits)
    }
}

/// Returns the time in nanoseconds by the clock of the host.
fn now() -> u64 {
    clock::now().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::state::Key;
    use consonance_spec::blame::ends_of_waits;
    use std::{iter, sync::Arc, thread};

    const GENERATION: Generation = Generation(0);
    const LONG: Duration = Duration::from_secs(60);

    /// A group in which each rank waits so, and has seen every signal.
    fn waiting(waits: &[Option<usize>]) -> Arc<GroupState> {
        let state = GroupState::new(waits.len());
        for (rank, wait) in waits.iter().enumerate() {
            wait.iter().for_each(|&peer| state.say_waits(rank, peer));
        }
        state
    }

    /// Returns every way in which these ranks wait for each other.
    fn all_waits(ranks: usize) -> impl Iterator<Item = Vec<Option<usize>>> {
        // A rank waits for one of the others, or for nobody: as many ways as ranks.
        (0..ranks.pow(ranks as u32)).map(move |ways| {
            let of = |rank: usize| match ways / ranks.pow(rank as u32) % ranks {
                0 => None,
                way => Some((rank + way) % ranks),
            };
            (0..ranks).map(of).collect()
        })
    }

    #[test]
    fn a_deadline_names_the_ranks_of_the_spec() {
        for waits in (1..=4).flat_map(all_waits) {
            for (rank, peer) in (0..waits.len()).filter_map(|rank| Some((rank, waits[rank]?))) {
                let others = (0..waits.len()).filter(|&other| other != rank && other != peer);
                let awaited: Vec<usize> = iter::once(peer).chain(others).collect();
                let state = waiting(&waits);
                let fault = state.give_up(GENERATION, rank, &awaited, LONG);
                assert_eq!(fault, Fault::Missing(ends_of_waits(&waits, rank, &awaited)), "{rank} in {waits:?}");
                let named = ends_of_waits(&waits, rank, &[peer])[0];
                let end = Abort { rank: named, reason: Reason::Deadline };
                assert_eq!(state.aborted(GENERATION), Some(end), "{rank} in {waits:?}");
            }
        }
    }

    #[test]
    fn a_rank_that_was_signalled_and_sleeps_on_holds_up_the_others() {
        // Rank 3 was stopped while it slept until rank 1 came. Rank 1 came, and waits for it now.
        let waits = [Some(1), Some(3), Some(1), Some(1)];
        let state = waiting(&waits);
        assert_eq!(state.end_of_waits(0, 1), 1, "a circle");
        state.wake(3);
        assert_eq!(state.end_of_waits(0, 1), 1, "no progress of rank 1");
        state.wake_for_progress(3);
        assert_eq!([state.end_of_waits(0, 1), state.end_of_waits(1, 3)], [3, 3]);
    }

    #[test]
    fn a_rank_that_goes_on_ends_the_chain() {
        let state = waiting(&[Some(1), Some(2), None]);
        assert_eq!(state.end_of_waits(0, 1), 2);
        state.say_goes_on(1, 2);
        assert_eq!(state.end_of_waits(0, 1), 1);
        state.say_blocked(1, 2);
        assert_eq!(state.end_of_waits(0, 1), 2, "it waits for a message");
        state.say_unblocked(1, 0);
        assert_eq!(state.end_of_waits(0, 1), 2, "another thread does not wait for rank 0 any more");
        state.say_unblocked(1, 2);
        assert_eq!(state.end_of_waits(0, 1), 1);
    }

    #[test]
    fn the_second_deadline_is_told_of_the_first() {
        let state = waiting(&[Some(1), Some(2), None]);
        assert_eq!(state.give_up(GENERATION, 1, &[2], LONG), Fault::Missing(vec![2]));
        state.say_goes_on(1, 2);
        let end = Abort { rank: 2, reason: Reason::Deadline };
        assert_eq!(state.give_up(GENERATION, 0, &[1], LONG), Fault::Aborted(end));
    }

    #[test]
    fn a_rank_that_gave_up_is_held_up_for_a_while() {
        let state = waiting(&[Some(1), Some(2), None]);
        state.say_gives_up(1, 2, LONG);
        state.wake(1);
        state.say_goes_on(1, 2);
        assert_eq!(state.end_of_waits(0, 1), 2);
        assert_eq!([0, 1, 2].map(|rank| state.gave_up_for(rank)), [None, Some(2), None]);
        // It waits again, and goes on.
        state.say_waits(1, 2);
        assert_eq!(state.end_of_waits(0, 1), 2);
        state.say_goes_on(1, 2);
        assert_eq!(state.end_of_waits(0, 1), 1);
    }

    #[test]
    fn a_rank_that_does_not_begin_the_next_generation_holds_up_those_that_do() {
        let state = waiting(&[Some(1), Some(2), None]);
        state.say_gives_up(0, 1, LONG);
        state.say_goes_on(0, 1);
        state.records()[2].counters.generation.store(1, Ordering::Relaxed);
        assert_eq!(state.ends_of_waits(2, &[0, 1]), [0, 1]);
    }

    #[test]
    fn a_rank_that_only_looked_for_a_message_is_soon_the_end_of_the_chain() {
        let state = waiting(&[Some(1), None, None]);
        state.say_blocked(1, 2);
        state.say_gives_up(1, 2, Duration::from_millis(1));
        state.say_unblocked(1, 2);
        thread::sleep(Duration::from_millis(2));
        assert_eq!((state.end_of_waits(0, 1), state.gave_up_for(1)), (1, None));
    }

    #[test]
    fn a_rank_that_was_told_of_a_leaver_is_held_up_by_it_in_groups_of_both() {
        let top = GroupState::new(3);
        let pair = top.child(GENERATION, Key::Split(1, 0), &[0, 1], 0);
        top.say_waits(1, 2);
        top.say_gives_up(1, 2, Duration::ZERO);
        top.say_goes_on(1, 2);
        top.leave(Generation::END, 2);
        thread::sleep(Duration::from_millis(1));
        assert_eq!((top.end_of_waits(0, 1), pair.end_of_waits(0, 1)), (2, 1));
    }

    #[test]
    fn a_chain_goes_through_other_groups() {
        let top = GroupState::new(4);
        // Its ranks are 3 and 1 of the top group.
        let pair = top.child(GENERATION, Key::Split(1, 3), &[3, 1], 0);
        let three = top.child(GENERATION, Key::Split(1, 0), &[0, 1, 2], 0);
        // Rank 0 waits in the group of three for rank 1, which waits in the pair for rank 3.
        three.say_waits(0, 1);
        pair.say_waits(1, 0);
        top.say_waits(2, 0);
        assert_eq!(top.end_of_waits(2, 0), 3);
        assert_eq!(three.end_of_waits(0, 1), 1, "rank 3 is not in the group: the last before it");
        // Rank 3 waits in the top group for rank 2, which is also in the group of three.
        top.say_waits(3, 2);
        top.say_goes_on(2, 0);
        assert_eq!(three.end_of_waits(0, 1), 2);
    }

    #[test]
    fn values_that_no_rank_writes_end_the_chain() {
        let state = waiting(&[Some(1), None, None]);
        for value in [4, 5, u32::MAX] {
            state.records()[1].sleeper.waits_for.store(value, Ordering::Relaxed);
            state.sleeper(1).blocker.store(value, Ordering::Relaxed);
            assert_eq!(state.end_of_waits(0, 1), 1, "{value}");
        }
        // It waits for itself.
        state.say_waits(1, 1);
        assert_eq!(state.end_of_waits(0, 1), 1);
    }
}
