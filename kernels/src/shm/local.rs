//! A process's private state of its own ranks, which are its threads, in a group that other
//! processes share.
//!
//! A peer can write any word in shared memory. So words that only the threads of one process use
//! lie here.

use crate::sync::atomics::{AtomicU32, Ordering};

/// This process's private words of the ranks of one area. All its endpoints there share them.
pub(crate) struct Locals(Box<[Local]>);

#[derive(Default)]
struct Local {
    /// 1 while an endpoint of the rank exists in this process.
    seated: AtomicU32,
    /// 1 while the rank, a thread of this process, is inside a chunk of the memory of others.
    inside: AtomicU32,
}

impl Locals {
    /// Returns the words of an area with `ranks` ranks.
    pub(crate) fn new(ranks: usize) -> Locals {
        Locals((0..ranks).map(|_| Local::default()).collect())
    }

    /// Claims the only endpoint of `rank` in this process; false if it exists already.
    pub(crate) fn take_seat(&self, rank: usize) -> bool {
        // Relaxed: the word protects no other data.
        self.0[rank].seated.swap(1, Ordering::Relaxed) == 0
    }

    /// Releases the endpoint of `rank`.
    pub(crate) fn give_seat(&self, rank: usize) {
        self.0[rank].seated.store(0, Ordering::Relaxed);
    }

    /// Returns the word that is 1 while the thread of `rank` is inside a chunk.
    pub(crate) fn inside(&self, rank: usize) -> &AtomicU32 {
        &self.0[rank].inside
    }
}
