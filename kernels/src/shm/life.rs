//! Words by which the processes of a group see at once that one of them has ended.
//!
//! The system closes the sockets of a process that ends only after it has freed the memory of the
//! process. This takes long if the memory is large. Before that it marks the words in the process's
//! list of robust futexes (`os/robust_list.rs`). Each process has such a word in the segment.
//!
//! # The word
//!
//! It has the id of a thread that lives as long as the process, and two flags. Without the flag
//! [`WAITERS`] the system wakes nobody, so each process that sleeps on the word sets it first.
//!
//! ```text
//!          hold                          the process ends
//!  nobody ───────► the id of the thread ─────────────────► died
//!     ▲                     │
//!     └─────────────────────┘
//!             release
//! ```
//!
//! The process itself wakes all that sleep when it changes the word. The system wakes one, who
//! wakes the others.
//!
//! # What a peer can do
//!
//! It can write any word. A process that is said to have died is therefore asked for its state
//! (`bootstrap/watch.rs`): the word alone proves nothing. A word that a peer has overwritten is not
//! marked by the system, and then the closed socket tells. The list itself is out of the reach of
//! peers: an entry lies in a private page, and its word in a second mapping of the segment's page,
//! at the distance that the system knows. The system changes a word only if it has the thread's id.

use crate::{
    os::robust_list::{OWNER_DIED, WAITERS},
    sync::{
        atomics::{AtomicU32, Ordering},
        futex::Sleepers,
    },
};

record! {
    /// The word of a process, in the place of its first rank.
    #[repr(align(8))]
    #[derive(Default)]
    pub(super) struct Life {
        pub(super) word: AtomicU32,
    }
}

// Relaxed throughout: a word stands for itself.

/// Writes a word of this process, and wakes all that sleep on it.
pub(super) fn change(word: &AtomicU32, value: u32) {
    if word.swap(value, Ordering::Relaxed) & WAITERS != 0 {
        Sleepers::default().wake(word, true);
    }
}

impl Life {
    /// Returns the value of the word while its process has not died, to sleep on: from now on the
    /// system wakes one who sleeps.
    pub(super) fn alive(&self) -> Option<u32> {
        let seen = self.word.fetch_or(WAITERS, Ordering::Relaxed);
        (seen & OWNER_DIED == 0).then_some(seen | WAITERS)
    }

    pub(super) fn has_died(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OWNER_DIED != 0
    }

    /// Wakes all that sleep on the word. The system has woken one.
    pub(super) fn wake(&self) {
        Sleepers::default().wake(&self.word, true);
    }
}
