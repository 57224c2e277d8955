//! The turns at the wire: of the network's thread, which sleeps on the wire's descriptor, and of
//! ranks that wait awake. As long as these move what arrives, that thread leaves the wire to them,
//! so that no message wakes it.

use crate::sync::plain::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The states of the network's thread: it is awake, sleeps on the wire, or sleeps without it.
const AWAKE: u32 = 0;
const ON_WIRE: u32 = 1;
const WITHOUT: u32 = 2;

pub(super) struct Turns {
    begin: Instant,
    /// The time at which a rank last took the wire, in microseconds after the beginning, plus 1; 0
    /// if none does.
    taken: AtomicU64,
    /// The state of the network's thread.
    thread: AtomicU32,
    /// The number of times that a rank has taken the wire.
    count: AtomicU64,
    /// The same, as the thread saw it at the beginning of its turn.
    seen: AtomicU64,
}

impl Default for Turns {
    fn default() -> Turns {
        let zero = || AtomicU64::new(0);
        Turns { begin: Instant::now(), taken: zero(), thread: AtomicU32::new(AWAKE), count: zero(), seen: zero() }
    }
}

impl Turns {
    /// The time for which the wire is left to ranks that have taken it.
    pub(super) const LATELY: Duration = Duration::from_millis(1);

    /// Takes the wire for a rank. Returns whether the thread must be roused: it sleeps on the wire,
    /// and what wakes it may be moved by the rank.
    pub(super) fn take(&self) -> bool {
        self.taken.store(self.now(), SeqCst);
        self.count.fetch_add(1, SeqCst);
        self.thread.compare_exchange(ON_WIRE, AWAKE, SeqCst, SeqCst).is_ok()
    }

    /// Gives the wire back to the thread. Returns whether the thread must be roused.
    pub(super) fn give_back(&self) -> bool {
        self.taken.store(0, SeqCst);
        self.is_left_to_others()
    }

    /// Whether the thread sleeps without the wire.
    pub(super) fn is_left_to_others(&self) -> bool {
        self.thread.load(SeqCst) == WITHOUT
    }

    /// Begins a turn of the thread, before it looks at the wire.
    pub(super) fn begin(&self) {
        self.seen.store(self.count.load(SeqCst), SeqCst);
    }

    /// Begins the thread's sleep without the wire, if a rank has taken it lately. Otherwise the
    /// thread is going to sleep on the wire.
    pub(super) fn leave(&self) -> bool {
        self.thread.store(WITHOUT, SeqCst);
        // A rank that gives the wire back sees the state, or this sees that it did.
        let taken = self.taken.load(SeqCst);
        let is_left = taken > 0 && self.now().saturating_sub(taken) < Turns::LATELY.as_micros() as u64;
        if !is_left {
            self.wake();
        }
        is_left
    }

    /// Begins the thread's sleep on the wire, which is armed. Returns false if a rank has taken the
    /// wire since the beginning of the turn.
    pub(super) fn sleep(&self) -> bool {
        self.thread.store(ON_WIRE, SeqCst);
        // A rank that takes the wire sees the state, or this sees that it did.
        self.count.load(SeqCst) == self.seen.load(SeqCst)
    }

    /// Ends the thread's sleep.
    pub(super) fn wake(&self) {
        self.thread.store(AWAKE, SeqCst);
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_sleeping_on_the_wire_is_roused_by_the_first_rank_alone() {
        let turns = Turns::default();
        assert!(!turns.leave() && turns.sleep());
        assert_eq!([turns.take(), turns.take()], [true, false]);
        turns.wake();
        turns.begin();
        // The rank is there: the thread sleeps without the wire until that is given back.
        assert!(turns.leave() && !turns.take());
        assert!(turns.give_back());
        turns.wake();
        turns.begin();
        assert!(!turns.leave() && turns.sleep());
        // Nobody has taken it.
        assert!(!turns.give_back());
    }

    #[test]
    fn a_rank_between_the_looks_of_a_thread_is_seen() {
        let turns = Turns::default();
        assert!(!turns.leave());
        // The thread is not asleep yet, so it is not roused.
        assert!(!turns.take());
        assert!(!turns.sleep());
        turns.wake();
        assert!(turns.leave());
    }

    #[test]
    fn the_wire_is_the_threads_again_some_time_after_the_last_rank() {
        let turns = Turns::default();
        assert!(!turns.take());
        turns.begin();
        let end = Instant::now() + Duration::from_secs(30);
        while turns.leave() {
            assert!(Instant::now() < end, "the wire is left to a rank for ever");
        }
        assert!(turns.sleep());
    }
}
