//! Waiting: looks for a short while, then sleep on a bell until somebody rings it.
//!
//! A bell counts its rings. A sleeper reads the count, looks once more at what it waits for, and
//! sleeps only while the count has not changed; so a ring between the look and the sleep is not
//! lost.

use super::{
    atomics::{AtomicU32, Ordering, yield_now},
    futex::Sleepers,
};
use std::time::{Duration, Instant};

/// How long a rank looks at a peer's line before it sleeps: about as long as a peer may take longer
/// for its part of a window of staged data. To sleep costs a few microseconds, on a busy machine
/// milliseconds.
const LOOKS_FOR: Duration = Duration::from_micros(50);

/// Looks between two readings of the clock, which costs as much as several looks.
const LOOKS_PER_READING: u32 = 32;

/// What a rank does before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// It looks again and again: there is a core for each rank.
    Spin,
    /// It offers its core to others between two looks: ranks outnumber the cores, and the one that
    /// it waits for may want that.
    Yield,
    /// Nothing: no core is known.
    Block,
}

impl WaitPolicy {
    /// Of so many ranks on so many cores.
    pub(crate) fn new(ranks: usize, cores: usize) -> WaitPolicy {
        match cores {
            0 => WaitPolicy::Block,
            _ if ranks <= cores => WaitPolicy::Spin,
            _ => WaitPolicy::Yield,
        }
    }

    /// Makes pauses, where it is to look again and again.
    pub(crate) fn pause(self, pauses: u32) {
        if self == WaitPolicy::Spin {
            (0..pauses).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Looks until `ready`, for [`LOOKS_FOR`] after the first looks at the most, or as long as
    /// others have the core; false if it never was.
    pub(crate) fn look(self, ready: &impl Fn() -> bool) -> bool {
        if self == WaitPolicy::Block {
            return false;
        }
        // Read late: it takes as long as some looks, and most come before.
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
    /// Where one rank sleeps and all others can wake it: each of its threads that waits in a group
    /// of its own.
    ///
    /// What is `shared` with other processes lies in memory that they map, too.
    #[derive(Default)]
    pub(crate) struct WakeEvent {
        count: AtomicU32,
        sleepers: Sleepers,
    }
}

impl WakeEvent {
    /// The number of rings so far, wrapping.
    pub(crate) fn count(&self) -> u32 {
        // Relaxed: a sleeper's fence stands between this and what it looks at
        // (`Endpoint::sleep_until`).
        self.count.load(Ordering::Relaxed)
    }

    /// Wakes the sleeper, and keeps one that is about to sleep awake.
    pub(crate) fn signal(&self, shared: bool) {
        // SYNC POINT wake: who counts this ring sees what was done before; pairs with the fence in
        // `sleep_until`.
        self.count.fetch_add(1, Ordering::Release);
        self.sleepers.wake(&self.count, shared);
    }

    /// Sleeps until a ring later than `seen`, or `limit`; may wake early.
    pub(crate) fn sleep(&self, seen: u32, limit: Duration, shared: bool) {
        self.sleepers.wait(&self.count, seen, limit, shared);
    }
}
