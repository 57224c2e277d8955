//! Addresses for groups of processes that threads simulate. No process listens at them: they only
//! distinguish one group from another.

use std::{
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Returns `count` addresses `host:port` that no other group of this host uses at the same time.
pub(crate) fn addresses(count: usize) -> Vec<String> {
    /// A program of any user may listen at this port and those after it.
    const FIRST: usize = 1024;
    /// Far more than are in use at a time.
    const PORTS: usize = 60_000;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);

    let [_, high, middle, low] = process::id().to_be_bytes();
    let first = TAKEN.fetch_add(count, Ordering::Relaxed);
    (first..first + count).map(|place| format!("127.{high}.{middle}.{low}:{}", FIRST + place % PORTS)).collect()
}
