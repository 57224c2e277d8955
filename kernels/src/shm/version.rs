//! The version of memory that one process writes and others read at the same time (a sequence
//! lock).
//!
//! The version is odd while its writer is at work. A reader notes an even version, copies, and asks
//! whether the version is still the same. If it is, no byte of the copy is of another version. The
//! copy may be of anything else until then.

use crate::sync::atomics::{AtomicU64, Ordering, fence};

/// The version of a part of memory, in lines of its own.
#[derive(Default)]
#[repr(C, align(128))]
pub(crate) struct Version {
    word: AtomicU64,
}

impl Version {
    /// Begins a write. Only one thread writes at a time.
    pub(crate) fn begin_write(&self) {
        // Relaxed: only writers change the word, one after the other.
        let version = self.word.load(Ordering::Relaxed);
        self.word.store(version | 1, Ordering::Relaxed);
        // SYNC POINT overtaken: a reader that copied a byte of this write sees the odd version,
        // too. Stronger than a release, which does not hold back stores past the caches.
        fence(Ordering::SeqCst);
    }

    /// Ends a write.
    pub(crate) fn end_write(&self) {
        // Relaxed: as above.
        let version = self.word.load(Ordering::Relaxed);
        // SYNC POINT version: a reader that sees the even version copies all of this write.
        self.word.store(version.wrapping_add(1), Ordering::Release);
    }

    /// Returns the version, for a reader that copies next; `None` while the writer is at work.
    pub(crate) fn settled(&self) -> Option<u64> {
        // SYNC POINT version: the copy comes after this.
        let version = self.word.load(Ordering::Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// Whether all that was copied since [`settled`](Version::settled) is of this version.
    pub(crate) fn is_still(&self, version: u64) -> bool {
        // SYNC POINT overtaken: the copy comes before the load.
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == version
    }
}
