//! Waiting: a rank polls for a short while, then sleeps on an event until another rank signals it.
//!
//! An event counts its signals. A sleeper reads the count, checks its condition once more, and
//! sleeps only while the count has not changed, so a signal between the check and the sleep is not
//! lost.

use super::{
    atomics::{AtomicU32, Ordering, yield_now},
    futex::Sleepers,
};
use std::time::{Duration, Instant};

/// The time that a rank polls a peer's record before it sleeps: about the time by which a
/// peer's part of a window of staged data may come later. A sleep and its wake-up cost more than a
/// poll, most of all on a busy machine (measured: PERF.md).
const LOOKS_FOR: Duration = Duration::from_micros(50);

/// Polls between two readings of the clock: one reading costs as much as several polls.
const LOOKS_PER_READING: u32 = 32;

/// The way to wait before a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Polls without a break: there is a core for each rank.
    Spin,
    /// Yields its core between two polls: ranks outnumber the cores, and the peer that it waits for
    /// may need this core.
    Yield,
    /// Sleeps at once: the number of cores is unknown.
    Block,
}

impl WaitPolicy {
    /// Returns the policy for `ranks` ranks on `cores` cores.
    pub(crate) fn new(ranks: usize, cores: usize) -> WaitPolicy {
        match cores {
            0 => WaitPolicy::Block,
            _ if ranks <= cores => WaitPolicy::Spin,
            _ => WaitPolicy::Yield,
        }
    }

    /// Executes `pauses` spin-loop hints if the policy is [`Spin`](WaitPolicy::Spin).
    #[inline]
    pub(crate) fn pause(self, pauses: u32) {
        if self == WaitPolicy::Spin {
            (0..pauses).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Polls until `ready`, at most for [`LOOKS_FOR`] after the first polls, or for as long as
    /// other threads have the core. Returns false if it never was ready.
    pub(crate) fn look(self, ready: &impl Fn() -> bool) -> bool {
        if self == WaitPolicy::Block {
            return false;
        }
        // Read only after the first polls: most waits end before, and the clock costs as much as
        // several polls.
        let mut start = None;
        loop {
            if self == WaitPolicy::Yield {
                yield_now();
                if ready() {
                    return true;
                }
            } else {
                for _ in 0..LOOKS_PER_READING {
                    if ready() {
                        return true;
                    }
                    std::hint::spin_loop();
                }
            }
            if start.get_or_insert_with(Instant::now).elapsed() >= LOOKS_FOR {
                return false;
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

    /// Sleeps until a signal later than `seen`, at most for `limit`; may wake early.
    pub(crate) fn sleep(&self, seen: u32, limit: Duration, shared: bool) {
        self.sleepers.wait(&self.count, seen, limit, shared);
    }
}
