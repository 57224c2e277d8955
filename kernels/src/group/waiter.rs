//! Waits of a rank for its peers, and its wake-ups of them.

use super::{
    end::abort::{Fault, Reason},
    member::Member,
};
use crate::{
    shm::records::{Generation, RankRecord},
    sync::atomics::{Ordering, fence},
};
use std::{
    cell::Cell,
    iter,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

/// Whether a wait goes on.
pub type KeepWaiting = Arc<dyn Fn() -> bool + Send + Sync>;

/// The time that a wait sleeps before it asks: a user who interrupts it does not notice the
/// delay.
const ASKS_EVERY: Duration = Duration::from_millis(100);

/// A rank of a group, and how it waits for its peers.
pub(crate) struct Waiter {
    pub(crate) member: Member,
    /// The time that a call waits for peers.
    timeout: Duration,
    /// The time that this call has slept while it waited for peers.
    slept: Cell<Duration>,
    /// The ranks of this process for which this rank does not wait while they are idle.
    company: Range<usize>,
    /// The function that a wait asks now and then.
    pub(super) keep_waiting: Option<KeepWaiting>,
}

impl Waiter {
    pub(super) fn new(member: Member, timeout: Duration) -> Waiter {
        Waiter { member, timeout, slept: Cell::default(), company: 0..0, keep_waiting: None }
    }

    /// Returns a rank of another group that waits as this one does.
    pub(super) fn with(&self, member: Member) -> Waiter {
        Waiter { keep_waiting: self.keep_waiting.clone(), ..Waiter::new(member, self.timeout) }
    }

    /// Returns how long a call waits for peers.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets how long a call waits for peers.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// See [`Endpoint::begin_call`](super::Endpoint::begin_call).
    pub(super) fn begin_call(&self) {
        self.slept.set(Duration::ZERO);
    }

    /// Returns how long the current call, or else the last one, has slept.
    pub(super) fn waited(&self) -> Duration {
        self.slept.get()
    }

    /// Adds a wait in another group to this call's.
    #[inline]
    pub(super) fn add_wait(&self, waited: Duration) {
        self.slept.set(self.slept.get() + waited);
    }

    /// Waits until `ready` holds for every peer's record, at most for the rest of the call's
    /// timeout.
    pub(crate) fn wait_for_all(&self, ready: impl Fn(&RankRecord) -> bool) -> Result<(), Fault> {
        self.wait_for(|_| true, ready)
    }

    /// Does [`wait_for_all`](Waiter::wait_for_all) for the peers that are `awaited`.
    #[inline]
    pub(crate) fn wait_for(
        &self,
        awaited: impl Fn(usize) -> bool,
        ready: impl Fn(&RankRecord) -> bool,
    ) -> Result<(), Fault> {
        let (member, mut begun) = (&self.member, None);
        let late = || member.world.peers().filter(|&peer| awaited(peer) && !ready(&member.records()[peer]));
        let shares_core = || member.shares_core(late());
        for peer in member.world.peers().filter(|&peer| awaited(peer)) {
            let record = &member.records()[peer];
            if ready(record) || member.state.wait_policy.look(&|| ready(record), shares_core) {
                continue;
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            self.sleep_until(peer, (&awaited, &ready), self.deadline(begun))?;
        }
        if let Some(begun) = begun {
            self.add_wait(begun.elapsed());
        }
        Ok(())
    }

    /// Waits until the group is ended because the process of `peer` is gone, at most for the call's
    /// timeout.
    pub(crate) fn wait_for_end(&self, peer: usize) -> Fault {
        let never = self.sleep_until(peer, (&|_| true, &|_| false), self.deadline(Instant::now()));
        never.expect_err("nothing is waited for but the end")
    }

    /// Returns when a wait that begins now exceeds the call's timeout; `None` is past the end of
    /// the clock.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.timeout.saturating_sub(self.slept.get()))
    }

    /// Sleeps until `ready` holds for the record of `peer`. If the deadline passes, the ranks that
    /// hold up the peers that are `awaited` and not `ready` are missing.
    fn sleep_until(
        &self,
        peer: usize,
        (awaited, ready): (&impl Fn(usize) -> bool, &impl Fn(&RankRecord) -> bool),
        deadline: Option<Instant>,
    ) -> Result<(), Fault> {
        let Member { state, world, generation } = &self.member;
        let record = &state.records()[peer];
        let own = world.rank();
        let waits_for = &state.records()[own].sleeper.waits_for;
        let event = &state.sleeper(own).wake;
        let mut blocked = None;
        let mut asks_at = self.keep_waiting.as_ref().map(|_| Instant::now() + ASKS_EVERY);
        let result = loop {
            let count = event.count();
            waits_for.store(peer as u32 + 1, Ordering::Relaxed);
            let seen = state.progress_seen(own);
            // SYNC POINT sleep: pairs with the fence in `wake`, and with `WakeEvent::signal`.
            fence(Ordering::SeqCst);
            if ready(record) {
                break Ok(());
            }
            blocked = Some(state.say_blocked(own, peer, seen));
            // Asked before the end: a peer that left because of an abort had seen it.
            let has_left = self.has_left(peer);
            if let Some(abort) = self.member.aborted() {
                // A call that was complete before the group ended is complete.
                if ready(record) {
                    break Ok(());
                }
                state.hear(*generation, own);
                break Err(Fault::Aborted(abort));
            }
            if has_left {
                // The peer may have come this far before it left.
                break if ready(record) { Ok(()) } else { Err(Fault::Left(peer)) };
            }
            if let (Some(ask), Some(at)) = (&self.keep_waiting, &mut asks_at)
                && *at <= Instant::now()
            {
                *at = Instant::now() + ASKS_EVERY;
                if !ask() {
                    self.member.abort(own, Reason::Failure);
                    continue;
                }
            }
            // A deadline past the end of the clock means the longest sleep.
            let limit = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if limit.is_zero() {
                let is_missing = |&rank: &usize| rank != peer && awaited(rank) && !ready(&state.records()[rank]);
                let others = world.peers().filter(is_missing);
                let missing: Vec<usize> = iter::once(peer).chain(others).collect();
                let patience = self.timeout / 2;
                break Err(state.give_up(*generation, own, &missing, patience));
            }
            let asks_in = asks_at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            event.sleep(count, limit.min(asks_in), state.segment().is_some());
            self.member.say_core();
        };
        waits_for.store(0, Ordering::Relaxed);
        if result.is_err() {
            state.say_gives_up(own, peer, self.timeout / 2);
        } else if let Some(blocked) = blocked {
            state.say_unblocked(own, blocked);
        }
        result
    }

    /// Whether `rank` will not come to this call.
    fn has_left(&self, rank: usize) -> bool {
        // SYNC POINT rest: pairs with `set_idle`.
        let rests = || self.member.records()[rank].counters.idle.load(Ordering::Acquire) != 0;
        self.member.state.has_left(self.member.generation, rank) || (self.company.contains(&rank) && rests())
    }

    /// Wakes every peer that sleeps until this rank makes progress.
    #[inline]
    pub(crate) fn wake(&self) {
        // SYNC POINT sleep: pairs with the fence in `sleep_until`.
        fence(Ordering::SeqCst);
        let Member { state, world, .. } = &self.member;
        let own = world.rank() as u32 + 1;
        for peer in world.peers() {
            if state.records()[peer].sleeper.waits_for.load(Ordering::Relaxed) == own {
                self.member.wake_for_progress(peer);
            }
        }
    }

    /// Enters the group's generation `generation`, and waits until every rank has done the same.
    ///
    /// # Errors
    /// See [`Fault`]. The new generation has ended then, too.
    pub(super) fn enter(&mut self, generation: Generation) -> Result<(), Fault> {
        self.begin_call();
        self.member.generation = generation;
        self.member.state.say_begins_anew(self.member.world.rank());
        let counters = &self.member.record().counters;
        // SYNC POINT generation: a rank that sees this rank in this generation sees that it reads
        // nothing of the last one any more; pairs below.
        counters.generation.store(generation.0, Ordering::Release);
        self.wake();
        // SYNC POINT generation: pairs above.
        self.wait_for_all(|record| record.counters.generation.load(Ordering::Acquire) >= generation.0)?;
        // Only now: a rank that has not entered this generation may still read the counters by
        // which it finishes a call of the last one.
        for count in [&counters.done, &counters.staged, &counters.folded, &counters.read] {
            count.store(generation.base(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// See [`Endpoint::set_idle`](super::Endpoint::set_idle).
    pub(super) fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.company = company;
        if self.member.state.forked() {
            return;
        }
        // SYNC POINT rest: a rank that sees that this rank is idle sees its last call; pairs with
        // `has_left`.
        self.member.record().counters.idle.store(idle.into(), Ordering::Release);
        if idle {
            let own = self.member.world.rank();
            self.company.clone().filter(|&rank| rank != own).for_each(|rank| self.member.state.wake(rank));
        }
    }

    /// Checks that a step that began at `begun` may go on: the group has not ended, and the timeout
    /// has not passed. If it has, the rank `late` is missing.
    pub(super) fn in_time(&self, begun: Instant, late: impl FnOnce() -> usize) -> Result<(), Fault> {
        if let Some(abort) = self.member.hear() {
            return Err(Fault::Aborted(abort));
        }
        if begun.elapsed() <= self.timeout {
            return Ok(());
        }
        let rank = late();
        self.member.abort(rank, Reason::Deadline);
        Err(Fault::Missing(vec![rank]))
    }
}
