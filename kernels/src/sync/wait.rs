//! Waiting: a rank polls for a short while, then sleeps on an event until another rank signals it.
//!
//! A poll helps only while the peer runs. Beside another program, or with more ranks than cores,
//! both ranks may be on one core: the peer then comes only when the waiting rank leaves the core.
//! So each rank publishes the core on which it runs (`Sleeper::core`) wherever a call is slow
//! anyway: before it polls for long, after it slept, and when it wakes a peer. A rank that sees the
//! peer on its own core yields, or sleeps at once where a busy process would take the core for a
//! whole time slice ([`core::leave`]). Ranks that outnumber the cores give them away between all
//! polls.
//!
//! An event counts its signals. A sleeper reads the count, checks its condition once more, and
//! sleeps only while the count has not changed, so a signal between the check and the sleep is not
//! lost.

use super::{
    atomics::{AtomicU32, Ordering},
    core,
    futex::Sleepers,
};
use std::time::{Duration, Instant};

/// The time that a rank polls a peer's record before it sleeps: about the time by which a
/// peer's part of a window of staged data may come later. A sleep and its wake-up cost more than a
/// poll, most of all on a busy machine (measured: PERF.md).
const LOOKS_FOR: Duration = Duration::from_micros(50);

/// The longest limit of a sleep that is not split.
const SHORT: Duration = Duration::from_millis(1);

/// Polls between two readings of the clock: one reading costs as much as several polls.
const LOOKS_PER_READING: u32 = 32;

/// The way to wait before a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Polls while no peer that is waited for needs the core of the waiting thread. Such a peer was
    /// last seen on that core: a poll keeps it from what it is to do.
    Poll,
    /// Gives the core away between two polls: ranks outnumber the cores.
    Yield,
    /// Sleeps at once: the cores are unknown.
    Sleep,
}

impl WaitPolicy {
    /// Returns the policy for `ranks` ranks on `cores` cores.
    pub(crate) fn new(ranks: usize, cores: usize) -> WaitPolicy {
        match cores {
            0 => WaitPolicy::Sleep,
            _ if ranks <= cores => WaitPolicy::Poll,
            _ => WaitPolicy::Yield,
        }
    }

    /// Executes `pauses` spin-loop hints if the policy is [`Poll`](WaitPolicy::Poll).
    #[inline]
    pub(crate) fn pause(self, pauses: u32) {
        if self == WaitPolicy::Poll {
            (0..pauses).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Polls until `ready`, at most for [`LOOKS_FOR`] after the first polls, or for as long as
    /// other threads have the core. Gives the core away if this thread `shares_core` with a peer
    /// that is waited for. Returns false if it never was ready.
    pub(crate) fn look(self, ready: &impl Fn() -> bool, shares_core: impl Fn() -> bool) -> bool {
        self.look_by(ready, shares_core, core::leave)
    }

    /// Does [`look`](WaitPolicy::look), and gives the core away by `leave`. If this returns false,
    /// the look ends.
    fn look_by(self, ready: &impl Fn() -> bool, shares_core: impl Fn() -> bool, leave: impl Fn() -> bool) -> bool {
        if self == WaitPolicy::Sleep {
            return false;
        }
        // Read only after the first polls: most waits end before, and the clock costs as much as
        // several polls.
        let mut start = None;
        loop {
            for _ in 0..LOOKS_PER_READING {
                if ready() {
                    return true;
                }
                if self == WaitPolicy::Yield {
                    break;
                }
                std::hint::spin_loop();
            }
            let is_needed = self == WaitPolicy::Yield || shares_core();
            if is_needed && !leave() {
                return false;
            }
            if start.get_or_insert_with(Instant::now).elapsed() >= LOOKS_FOR {
                return ready();
            }
        }
    }
}

record! {
    /// The event on which one rank sleeps and by which all others can wake it. Several threads of
    /// the rank may wait on it, each in a group of its own.
    ///
    /// An event that is `shared` with other processes lies in memory that they map, too.
    #[derive(Default)]
    pub(crate) struct WakeEvent {
        count: AtomicU32,
        sleepers: Sleepers,
    }
}

impl WakeEvent {
    /// Returns the number of signals so far, wrapping.
    pub(crate) fn count(&self) -> u32 {
        // Relaxed: the sleeper fences between this load and the check of its condition
        // (`Endpoint::sleep_until`).
        self.count.load(Ordering::Relaxed)
    }

    /// Wakes the sleepers, and keeps a thread awake that is about to sleep.
    pub(crate) fn signal(&self, shared: bool) {
        // SYNC POINT wake: a thread that reads this count sees all writes before the signal; pairs
        // with the fence in `sleep_until`.
        self.count.fetch_add(1, Ordering::Release);
        self.sleepers.wake(&self.count, shared);
    }

    /// Sleeps until a signal later than `seen`, at most for `limit`; may wake early. Wakes after
    /// half of a long `limit`: a rank that is stopped within `signal`, or before it, may have made
    /// the caller's condition true, and its wake-up does not come.
    pub(crate) fn sleep(&self, seen: u32, limit: Duration, shared: bool) {
        let is_split = limit > SHORT && limit != Duration::MAX;
        self.sleepers.wait(&self.count, seen, if is_split { limit / 2 } else { limit }, shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, thread};

    /// Returns the result of a look that never gives the core away, and how often it polled.
    fn polls(policy: WaitPolicy, ready_after: u32, shares_core: bool) -> (bool, u32) {
        let polls = Cell::new(0);
        let ready = || {
            polls.set(polls.get() + 1);
            polls.get() > ready_after
        };
        (policy.look_by(&ready, || shares_core, || false), polls.get())
    }

    #[test]
    fn a_rank_leaves_its_core_to_a_peer() {
        assert_eq!(polls(WaitPolicy::Poll, 3, true), (true, 4));
        assert_eq!(polls(WaitPolicy::Poll, u32::MAX, true), (false, LOOKS_PER_READING));
        assert_eq!(polls(WaitPolicy::Yield, u32::MAX, false), (false, 1));
        assert_eq!(polls(WaitPolicy::Sleep, 0, true), (false, 0));
    }

    #[test]
    fn ranks_on_too_few_cores_take_turns() {
        // On one core each turn needs the other thread.
        let (turn, early) = (AtomicU32::new(0), AtomicU32::new(0));
        let play = |own: u32| {
            for round in 0..1000 {
                let mine = || turn.load(Ordering::Acquire) == 2 * round + own;
                while !WaitPolicy::Yield.look(&mine, || true) {
                    thread::yield_now();
                }
                early.fetch_add(u32::from(!mine()), Ordering::Relaxed);
                turn.fetch_add(1, Ordering::Release);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| play(0));
            play(1);
        });
        assert_eq!(early.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_rank_polls_longer_for_a_peer_on_another_core() {
        // Read before the deadline unless the thread loses its core between two readings: so one
        // of many looks is enough.
        let has_come = (0..100).any(|_| polls(WaitPolicy::Poll, LOOKS_PER_READING, false).0);
        assert!(has_come);
        assert!(!polls(WaitPolicy::Poll, u32::MAX, false).0);
    }

    #[test]
    fn ranks_sleep_at_once_where_cores_are_unknown() {
        assert_eq!([1, 2].map(|ranks| WaitPolicy::new(ranks, 2)), [WaitPolicy::Poll; 2]);
        assert_eq!(WaitPolicy::new(2, 0), WaitPolicy::Sleep);
        assert_eq!(WaitPolicy::new(3, 2), WaitPolicy::Yield);
    }
}
