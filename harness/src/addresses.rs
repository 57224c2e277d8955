//! Addresses for groups of processes that threads play. Nobody listens at them: they tell one group
//! from another.

use std::{
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

/// So many `host:port` that no other group of this host has at the same time.
pub(crate) fn addresses(count: usize) -> Vec<String> {
    /// Far more than live at a time.
    const PORTS: usize = 60_000;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);

    let [_, high, middle, low] = process::id().to_be_bytes();
    let first = TAKEN.fetch_add(count, Ordering::Relaxed);
    (first..first + count).map(|place| format!("127.{high}.{middle}.{low}:{}", 1 + place % PORTS)).collect()
}
