//! What a process keeps to itself of the ranks that are its threads, in a group that other
//! processes share too.
//!
//! A word in shared memory is only as good as the peers that can write it. What concerns threads of
//! one process alone lies here.

use crate::sync::atomics::{AtomicU32, Ordering};

/// This process's own words of the ranks of one area: shared by all its endpoints there.
pub(crate) struct Locals(Box<[Local]>);

#[derive(Default)]
struct Local {
    /// 1 while an endpoint of the rank exists in this process.
    seated: AtomicU32,
    /// 1 while the rank, a thread of this process, is in a chunk of others' memory.
    inside: AtomicU32,
}

impl Locals {
    /// The words of an area with so many ranks.
    pub(crate) fn new(ranks: usize) -> Locals {
        Locals((0..ranks).map(|_| Local::default()).collect())
    }

    /// Takes the only endpoint of `rank` in this process; false if there is one already.
    pub(crate) fn take_seat(&self, rank: usize) -> bool {
        // Relaxed: the word guards nothing but itself.
        self.0[rank].seated.swap(1, Ordering::Relaxed) == 0
    }

    /// Gives the endpoint of `rank` back.
    pub(crate) fn give_seat(&self, rank: usize) {
        self.0[rank].seated.store(0, Ordering::Relaxed);
    }

    /// Whether the thread of `rank` is inside a chunk.
    pub(crate) fn inside(&self, rank: usize) -> &AtomicU32 {
        &self.0[rank].inside
    }
}
