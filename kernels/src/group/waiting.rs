//! How a rank waits for its peers, and wakes them.

use super::{
    end::abort::{Abort, Fault, Reason},
    endpoint::Endpoint,
};
use crate::{
    shm::records::RankRecord,
    sync::atomics::{Ordering, fence},
};
use std::{
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

/// Whether a wait goes on.
pub type KeepWaiting = Arc<dyn Fn() -> bool + Send + Sync>;

/// How long a wait sleeps before it asks: a user who interrupts it does not notice the delay.
const ASKS_EVERY: Duration = Duration::from_millis(100);

impl Endpoint {
    /// Waits until `ready` holds for every peer's record, at most for the rest of the call's
    /// timeout.
    pub(crate) fn wait_for_all(&self, ready: impl Fn(&RankRecord) -> bool) -> Result<(), Fault> {
        self.wait_for(|_| true, ready)
    }

    /// Does [`wait_for_all`](Endpoint::wait_for_all) for the peers that are `awaited`.
    pub(crate) fn wait_for(
        &self,
        awaited: impl Fn(usize) -> bool,
        ready: impl Fn(&RankRecord) -> bool,
    ) -> Result<(), Fault> {
        let mut begun = None;
        for peer in self.world.peers().filter(|&peer| awaited(peer)) {
            let record = &self.state.records()[peer];
            if ready(record) || self.state.wait_policy.look(&|| ready(record)) {
                continue;
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            self.sleep_until(peer, (&awaited, &ready), self.deadline(begun))?;
        }
        if let Some(begun) = begun {
            self.slept.set(self.slept.get() + begun.elapsed());
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
        let record = &self.state.records()[peer];
        let own = self.world.rank();
        let waits_for = &self.state.records()[own].sleeper.waits_for;
        let event = &self.state.sleeper(own).wake;
        let mut blocked = None;
        let mut asks_at = self.keep_waiting.as_ref().map(|_| Instant::now() + ASKS_EVERY);
        let result = loop {
            let count = event.count();
            waits_for.store(peer as u32 + 1, Ordering::Relaxed);
            let seen = self.state.progress_seen(own);
            // SYNC POINT sleep: pairs with the fence in `wake`, and with `WakeEvent::signal`.
            fence(Ordering::SeqCst);
            if ready(record) {
                break Ok(());
            }
            blocked = Some(self.state.say_blocked(own, peer, seen));
            // Asked before the end: a peer that left because of an abort had seen it.
            let has_left = self.has_left(peer);
            if let Some(abort) = self.state.aborted(self.generation) {
                // A call that was complete before the group ended is complete.
                break if ready(record) { Ok(()) } else { Err(Fault::Aborted(abort)) };
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
                    self.state.abort(self.generation, Abort { rank: own, reason: Reason::Failure });
                    continue;
                }
            }
            // A deadline past the end of the clock means the longest sleep.
            let limit = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if limit.is_zero() {
                let is_missing = |&rank: &usize| rank != peer && awaited(rank) && !ready(&self.state.records()[rank]);
                let others = self.world.peers().filter(is_missing);
                let missing: Vec<usize> = iter::once(peer).chain(others).collect();
                let patience = self.timeout / 2;
                break Err(self.state.give_up(self.generation, own, &missing, patience));
            }
            let asks_in = asks_at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            event.sleep(count, limit.min(asks_in), self.state.segment().is_some());
        };
        waits_for.store(0, Ordering::Relaxed);
        if result.is_err() {
            self.state.say_gives_up(own, peer, self.timeout / 2);
        } else if let Some(blocked) = blocked {
            self.state.say_unblocked(own, blocked);
        }
        result
    }

    /// Whether `rank` will not come to this call.
    fn has_left(&self, rank: usize) -> bool {
        // SYNC POINT rest: pairs with `set_idle`.
        let rests = || self.state.records()[rank].counters.idle.load(Ordering::Acquire) != 0;
        self.state.has_left(self.generation, rank) || (self.company.contains(&rank) && rests())
    }

    /// Wakes every peer that sleeps until this rank makes progress.
    #[inline]
    pub(crate) fn wake(&self) {
        // SYNC POINT sleep: pairs with the fence in `sleep_until`.
        fence(Ordering::SeqCst);
        let own = self.world.rank() as u32 + 1;
        for peer in self.world.peers() {
            if self.state.records()[peer].sleeper.waits_for.load(Ordering::Relaxed) == own {
                self.state.wake_for_progress(peer);
            }
        }
    }
}
