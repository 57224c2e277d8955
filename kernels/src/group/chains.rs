//! Chains of waits: at a deadline, a rank follows the chain of waits to its end.
//!
//! The peer for which a rank waits may wait for another rank in turn, and that one for a third. The
//! rank at the end of the chain waits for nobody: it computes, was stopped, or does not come.
//! Errors name that rank alone (`consonance_spec::blame::ends_of_waits`).
//!
//! Each rank publishes for whom it sleeps, in the group of the wait (`Sleeper::waits_for`) and,
//! because another group of the rank may be the one that is held up, in the top group
//! (`Sleeper::blocker`, a [`Blocked`]). If several threads of a rank wait in several groups, the
//! word is that of the wait that began last.
//!
//! # The races, by name
//!
//! * **Stopped in a wait.** A rank that is stopped while it sleeps looks as if it waited, long
//!   after its peer has come. But the peer has signalled it then (`Sleeper::progress`). So only a
//!   rank that has seen all such signals ([`Blocked`]) waits; any other rank has to run first, and
//!   is an end. The signals of ranks that leave or end a group do not count.
//! * **Stopped in a wake-up.** A rank that is stopped after it told a peer of progress, and before
//!   it woke the peer, leaves it asleep as one that has to run first. So a sleeper looks again
//!   when half of its time has passed ([`WakeEvent::sleep`](crate::sync::wait::WakeEvent::sleep)).
//! * **Two deadlines.** A rank that gives up at its own deadline, in a group or at a message that
//!   others do not share, stays in the chain for a while, and for ever if it was told of a rank
//!   that left: its peers are held up by the same rank.
//! * **A circle.** Ranks that wait for each other have no end: each is told of the peer for which
//!   it waits.

use super::{
    end::abort::{Abort, Fault, Reason},
    state::GroupState,
};
use crate::{
    os::clock,
    shm::records::{Generation, Sleeper},
    sync::atomics::Ordering,
};
use std::time::Duration;

/// The content of `Sleeper::blocker`: the rank that is waited for plus 1, in the numbering of the
/// top group, or 0 after the wait; [`GAVE_UP`]; and in the upper half `Sleeper::progress`, as it
/// was when the waiting rank last checked what it waits for.
#[derive(Clone, Copy)]
pub(super) struct Blocked(u64);

/// The bit of a [`Blocked`] whose wait was in vain. The rank stays in its chain for a while, and
/// the end of the wait does not take the word back.
const GAVE_UP: u64 = 1 << 31;

impl Blocked {
    /// Returns the word of a rank that waits for the rank `peer` of the top group, and has seen
    /// this much progress.
    fn new(peer: usize, seen: u32) -> Self {
        Self(u64::from(seen) << 32 | (peer as u64 + 1) & (GAVE_UP - 1))
    }

    /// Returns the rank that is waited for, if it is one.
    fn peer(self) -> Option<usize> {
        usize::try_from(self.0 & (GAVE_UP - 1)).ok()?.checked_sub(1)
    }

    /// Returns the word once that wait has ended. Another thread of the rank, which
    /// `Sleeper::waits_for` names, may have seen the same progress, and wait on.
    fn ended(self) -> Self {
        Self(u64::from(self.seen()) << 32)
    }

    fn has_given_up(self) -> bool {
        self.0 & GAVE_UP != 0
    }

    fn seen(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl GroupState {
    /// Returns how much progress of others `rank` has been told of. It checks afterwards what it
    /// waits for.
    pub(super) fn progress_seen(&self, rank: usize) -> u32 {
        // Relaxed, as what follows: a rank that reads these words late names another rank of the
        // chain.
        self.sleeper(rank).progress.load(Ordering::Relaxed)
    }

    /// Publishes that a thread of `rank` waits for `peer`, or for a message of it, or until it
    /// takes one, and that this had not come yet after so much progress was `seen`.
    pub(super) fn say_blocked(&self, rank: usize, peer: usize, seen: u32) -> Blocked {
        let blocked = Blocked::new(self.top_rank(peer), seen);
        self.sleeper(rank).blocker.store(blocked.0, Ordering::Relaxed);
        blocked
    }

    /// Publishes that the wait of `rank` that was published so has ended.
    pub(super) fn say_unblocked(&self, rank: usize, blocked: Blocked) {
        // A rank that gave up stays in the chain. Another thread of the rank may wait for another
        // peer, or begin to.
        let Sleeper { blocker, .. } = self.sleeper(rank);
        let _ = blocker.compare_exchange(blocked.0, blocked.ended().0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Wakes `rank`, which sleeps until the calling rank makes progress: it has.
    pub(super) fn wake_for_progress(&self, rank: usize) {
        self.sleeper(rank).progress.fetch_add(1, Ordering::Relaxed);
        self.wake(rank);
    }

    /// Publishes that the wait of `rank` for `peer`, if it said that one last, was in vain: its
    /// deadline has passed, `peer` has left, or the group has ended. The rank stays in the chain
    /// for the time of `patience`.
    pub(super) fn say_gives_up(&self, rank: usize, peer: usize, patience: Duration) {
        let Sleeper { blocker, gave_up, .. } = self.sleeper(rank);
        let blocked = self.blocked(self.top_rank(rank));
        if blocked.peer() == Some(self.top_rank(peer)) {
            let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
            gave_up.store(now().saturating_add(nanos), Ordering::Relaxed);
            let given_up = blocked.0 | GAVE_UP;
            // SYNC POINT vain: pairs with `blocked`, whose caller reads until when.
            let _ = blocker.compare_exchange(blocked.0, given_up, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Publishes that `rank` was told that `peer` has left. If a request of it `has_ended` for that
    /// reason, it was in vain also if no thread of the rank has slept. For `patience` see
    /// [`say_gives_up`](GroupState::say_gives_up).
    pub(super) fn say_left_by(&self, rank: usize, peer: usize, has_ended: bool, patience: Duration) {
        if has_ended && self.blocked(self.top_rank(rank)).peer().is_none() {
            self.say_blocked(rank, peer, self.progress_seen(rank));
        }
        self.say_gives_up(rank, peer, patience);
    }

    /// Takes `rank`, which makes no call now, out of its chain: a new generation begins.
    pub(super) fn say_begins_anew(&self, rank: usize) {
        self.sleeper(rank).blocker.store(0, Ordering::Relaxed);
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
        let is_first = self.abort(generation, Abort { rank: first, reason: Reason::Deadline });
        self.hear(generation, rank);
        match is_first {
            true => Fault::Missing(missing),
            false => self.aborted(generation, rank).map_or(Fault::Missing(missing), Fault::Aborted),
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
    /// and has published no wait since.
    pub(super) fn gave_up_for(&self, rank: usize) -> Option<usize> {
        // Relaxed: the caller was told of what `rank` did after it gave up.
        let has_given_up = self.blocked(self.top_rank(rank)).has_given_up();
        let next = self.blocker(self.top_rank(rank)).filter(|_| has_given_up)?;
        Some(self.end_of_waits(rank, self.member(next)?))
    }

    /// Returns what the rank `at` of the top group has published.
    fn blocked(&self, at: usize) -> Blocked {
        // SYNC POINT vain: pairs with `say_gives_up`.
        Blocked(self.top().records()[at].sleeper.blocker.load(Ordering::Acquire))
    }

    /// Returns the rank for which the rank `at` waits or has waited in vain; both are in the
    /// numbering of the top group.
    fn blocker(&self, at: usize) -> Option<usize> {
        let top = self.top();
        let Sleeper { progress, gave_up, .. } = &top.records()[at].sleeper;
        let here = self.member(at).and_then(|rank| {
            let peer = self.records()[rank].sleeper.waits_for.load(Ordering::Relaxed);
            let peer = usize::try_from(peer).ok()?.checked_sub(1)?;
            (peer < self.records().len()).then(|| self.top_rank(peer))
        });
        let blocked = self.blocked(at);
        let next = here.or_else(|| blocked.peer()).filter(|&next| next < top.records().len() && next != at);
        let waits = if blocked.has_given_up() {
            // A rank that was told that another one left can do nothing more in a group that has
            // that one.
            let is_for_ever = |next| self.member(next).is_some() && top.has_left(Generation::END, next);
            now() <= gave_up.load(Ordering::Relaxed) || next.is_some_and(is_for_ever)
        } else {
            blocked.seen() == progress.load(Ordering::Relaxed)
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
    use crate::group::{member::Member, state::Key, waiter::Waiter};
    use consonance_spec::{World, blame::ends_of_waits};
    use std::{iter, sync::Arc, thread};

    const GENERATION: Generation = Generation(0);
    const LONG: Duration = Duration::from_secs(60);

    /// A group in which each rank waits so, and has seen every signal.
    fn waiting(waits: &[Option<usize>]) -> Arc<GroupState> {
        let state = GroupState::new(waits.len());
        for (rank, peer) in waits.iter().enumerate().filter_map(|(rank, &wait)| Some((rank, wait?))) {
            wait_for(&state, rank, peer);
        }
        state
    }

    /// Publishes, as `sleep_until` does, that `rank` sleeps until `peer` comes.
    fn wait_for(state: &GroupState, rank: usize, peer: usize) -> Blocked {
        state.records()[rank].sleeper.waits_for.store(peer as u32 + 1, Ordering::Relaxed);
        state.say_blocked(rank, peer, state.progress_seen(rank))
    }

    /// Ends that wait.
    fn go_on(state: &GroupState, rank: usize, blocked: Blocked) {
        state.records()[rank].sleeper.waits_for.store(0, Ordering::Relaxed);
        state.say_unblocked(rank, blocked);
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
                assert_eq!(state.aborted(GENERATION, rank), Some(end), "{rank} in {waits:?}");
            }
        }
    }

    #[test]
    fn a_signalled_rank_still_asleep_holds_up_the_others() {
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
    fn a_rank_stopped_before_its_wake_up_holds_up_the_others() {
        let state = GroupState::new(3);
        let waiter = |rank, timeout| {
            Waiter::new(Member::new(Arc::clone(&state), World::new(rank, 3).unwrap()), Duration::from_millis(timeout))
        };
        let never = |_: &_| false;
        thread::scope(|scope| {
            scope.spawn(|| waiter(1, 2000).wait_for(|peer| peer == 2, never));
            while state.blocked(1).peer().is_none() {
                thread::yield_now();
            }
            // Rank 2 is stopped here.
            state.sleeper(1).progress.fetch_add(1, Ordering::Relaxed);
            assert_eq!(waiter(0, 1500).wait_for(|peer| peer == 1, never), Err(Fault::Missing(vec![2])));
        });
    }

    #[test]
    fn a_continuing_rank_ends_the_chain() {
        let state = waiting(&[Some(1), Some(2), None]);
        assert_eq!(state.end_of_waits(0, 1), 2);
        let blocked = wait_for(&state, 1, 2);
        go_on(&state, 1, blocked);
        assert_eq!(state.end_of_waits(0, 1), 1);
        let of_another_thread = state.say_blocked(1, 0, state.progress_seen(1));
        let blocked = state.say_blocked(1, 2, state.progress_seen(1));
        assert_eq!(state.end_of_waits(0, 1), 2, "it waits for a message");
        state.say_unblocked(1, of_another_thread);
        assert_eq!(state.end_of_waits(0, 1), 2, "another thread does not wait for rank 0 any more");
        state.say_unblocked(1, blocked);
        assert_eq!(state.end_of_waits(0, 1), 1);
    }

    #[test]
    fn a_continuing_thread_leaves_the_wait_of_another_thread() {
        let state = waiting(&[Some(1), Some(2), None]);
        state.wake_for_progress(1);
        wait_for(&state, 1, 2);
        assert_eq!(state.end_of_waits(0, 1), 2);
        let of_another_thread = state.say_blocked(1, 0, state.progress_seen(1));
        state.say_unblocked(1, of_another_thread);
        assert_eq!(state.end_of_waits(0, 1), 2);
    }

    #[test]
    fn the_second_deadline_reports_the_first() {
        let state = waiting(&[Some(1), Some(2), None]);
        let blocked = wait_for(&state, 1, 2);
        assert_eq!(state.give_up(GENERATION, 1, &[2], LONG), Fault::Missing(vec![2]));
        go_on(&state, 1, blocked);
        let end = Abort { rank: 2, reason: Reason::Deadline };
        assert_eq!(state.give_up(GENERATION, 0, &[1], LONG), Fault::Aborted(end));
    }

    #[test]
    fn a_rank_is_held_up_for_a_while_after_its_deadline() {
        let state = waiting(&[Some(1), Some(2), None]);
        let blocked = wait_for(&state, 1, 2);
        state.say_gives_up(1, 2, LONG);
        state.wake(1);
        go_on(&state, 1, blocked);
        assert_eq!(state.end_of_waits(0, 1), 2);
        assert_eq!([0, 1, 2].map(|rank| state.gave_up_for(rank)), [None, Some(2), None]);
        // It waits again, and goes on.
        let blocked = wait_for(&state, 1, 2);
        assert_eq!(state.end_of_waits(0, 1), 2);
        go_on(&state, 1, blocked);
        assert_eq!(state.end_of_waits(0, 1), 1);
    }

    #[test]
    fn a_rank_of_the_last_generation_holds_up_the_next() {
        let state = waiting(&[Some(1), Some(2), None]);
        let blocked = wait_for(&state, 0, 1);
        state.say_gives_up(0, 1, LONG);
        go_on(&state, 0, blocked);
        state.records()[2].counters.generation.store(1, Ordering::Relaxed);
        assert_eq!(state.ends_of_waits(2, &[0, 1]), [0, 1]);
    }

    #[test]
    fn a_rank_polling_for_a_message_soon_ends_the_chain() {
        let state = waiting(&[Some(1), None, None]);
        let blocked = state.say_blocked(1, 2, state.progress_seen(1));
        state.say_gives_up(1, 2, Duration::from_millis(1));
        state.say_unblocked(1, blocked);
        thread::sleep(Duration::from_millis(2));
        assert_eq!((state.end_of_waits(0, 1), state.gave_up_for(1)), (1, None));
    }

    #[test]
    fn a_notified_rank_is_held_up_by_the_leaver_in_groups_of_both() {
        let top = GroupState::new(3);
        let pair = top.child(GENERATION, Key::Split(1, 0), &[0, 1], 0);
        let blocked = wait_for(&top, 1, 2);
        top.say_gives_up(1, 2, Duration::ZERO);
        go_on(&top, 1, blocked);
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
        wait_for(&three, 0, 1);
        wait_for(&pair, 1, 0);
        let blocked = wait_for(&top, 2, 0);
        assert_eq!(top.end_of_waits(2, 0), 3);
        assert_eq!(three.end_of_waits(0, 1), 1, "rank 3 is not in the group: the last before it");
        // Rank 3 waits in the top group for rank 2, which is also in the group of three.
        wait_for(&top, 3, 2);
        go_on(&top, 2, blocked);
        assert_eq!(three.end_of_waits(0, 1), 2);
    }

    #[test]
    fn invalid_values_end_the_chain() {
        let state = waiting(&[Some(1), None, None]);
        for value in [4, 5, u32::MAX] {
            state.records()[1].sleeper.waits_for.store(value, Ordering::Relaxed);
            state.sleeper(1).blocker.store(value.into(), Ordering::Relaxed);
            assert_eq!(state.end_of_waits(0, 1), 1, "{value}");
        }
        // It waits for itself.
        wait_for(&state, 1, 1);
        assert_eq!(state.end_of_waits(0, 1), 1);
    }
}
