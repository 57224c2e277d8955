//! The step that a rank is in, and its access to others' memory.

use super::{end::abort::Fault, member::Member};
use crate::{
    os::process_memory::Unread,
    shm::records::CallDescriptor,
    sync::atomics::{Ordering, fence},
};
use consonance_spec::{DType, Kind};

/// The step that a rank is in: all ranks have arrived, and agree on the call.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'s> {
    pub(crate) member: &'s Member,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// The element type on which all ranks agree, if data move.
    pub(crate) dtype: Option<DType>,
    /// Whether ranks access the others' own buffers in it, not their staging.
    pub(crate) enters: bool,
}

impl<'s> CallContext<'s> {
    /// Returns this rank.
    #[inline]
    pub(super) fn rank(self) -> usize {
        self.member.world.rank()
    }

    /// Returns the number of ranks.
    #[inline]
    pub(super) fn ranks(self) -> usize {
        self.member.world.size()
    }

    pub(super) fn descriptor(self, rank: usize) -> &'s CallDescriptor {
        self.member.records()[rank].descriptor(self.sequence)
    }

    /// Returns the fault for memory of `rank` that was not read.
    pub(crate) fn unread(self, rank: usize, why: Unread) -> Fault {
        match why {
            // The watcher of the processes reports its end: the endpoint waits for that.
            Unread::Gone => Fault::Missing(vec![rank]),
            Unread::Refused => self.member.corrupt(rank),
        }
    }

    /// Enters a chunk: until the result is dropped, no rank leaves this step, so that every
    /// published address stays valid.
    ///
    /// Data that processes have staged stay in place; the processes need not wait for each other.
    pub(crate) fn enter(self) -> Result<Inside<'s>, Fault> {
        if !self.enters {
            return Ok(Inside(None));
        }
        let inside = Inside(Some(self.member));
        self.member.record().counters.inside.store(1, Ordering::Relaxed);
        if let Some(locals) = self.member.state.locals() {
            locals.inside(self.rank()).store(1, Ordering::Relaxed);
        }
        // SYNC POINT abort: pairs with the fence of a rank that leaves (`sharing.rs`).
        fence(Ordering::SeqCst);
        match self.member.hear() {
            Some(abort) => Err(Fault::Aborted(abort)),
            None => Ok(inside),
        }
    }
}

/// Marks this rank as inside a chunk of others' memory, until it is dropped.
pub(crate) struct Inside<'s>(Option<&'s Member>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(member) = self.0 {
            // SYNC POINT inside: the reads and writes of this chunk happen before the leaving
            // rank's return; pairs with `sharing.rs`.
            member.record().counters.inside.store(0, Ordering::Release);
            if let Some(locals) = member.state.locals() {
                // SYNC POINT inside: the same, for threads of this process.
                locals.inside(member.world.rank()).store(0, Ordering::Release);
            }
        }
    }
}
