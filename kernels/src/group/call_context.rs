//! The step that a rank is in, and its access to others' memory.

use super::{
    end::abort::{Abort, Fault, Reason},
    state::GroupState,
};
use crate::{
    os::process_memory::Unread,
    shm::records::{CallDescriptor, Generation},
    sync::atomics::{Ordering, fence},
};
use consonance_spec::{DType, Kind, World};

/// The step that a rank is in: all ranks have arrived, and agree on the call.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'s> {
    pub(crate) state: &'s GroupState,
    pub(crate) world: World,
    pub(crate) generation: Generation,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// The element type on which all ranks agree, if data move.
    pub(crate) dtype: Option<DType>,
    /// Whether ranks access the others' own buffers in it, not their staging.
    pub(crate) enters: bool,
}

impl<'s> CallContext<'s> {
    pub(super) fn descriptor(self, rank: usize) -> &'s CallDescriptor {
        self.state.records()[rank].descriptor(self.sequence)
    }

    /// Ends the group because `rank` wrote values that no correct rank writes. Between threads this
    /// would be a fault of this program.
    pub(crate) fn nonsense(self, rank: usize) -> Fault {
        corrupt(self.state, self.generation, rank)
    }

    /// Returns the fault for memory of `rank` that was not read.
    pub(crate) fn unread(self, rank: usize, why: Unread) -> Fault {
        match why {
            // The watcher of the processes reports its end: the endpoint waits for that.
            Unread::Gone => Fault::Missing(vec![rank]),
            Unread::Refused => self.nonsense(rank),
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
        let inside = Inside(Some(self));
        let rank = self.world.rank();
        self.state.records()[rank].counters.inside.store(1, Ordering::Relaxed);
        if let Some(locals) = self.state.locals() {
            locals.inside(rank).store(1, Ordering::Relaxed);
        }
        // SYNC POINT abort: pairs with the fence of a rank that leaves (`transport/in_place.rs`).
        fence(Ordering::SeqCst);
        match self.state.aborted(self.generation) {
            Some(abort) => Err(Fault::Aborted(abort)),
            None => Ok(inside),
        }
    }
}

/// Ends the group because `rank` wrote values that no correct rank writes. If the group has ended
/// already, returns that end: a rank that was told of it may have freed memory that this one still
/// reads.
pub(super) fn corrupt(state: &GroupState, generation: Generation, rank: usize) -> Fault {
    if let Some(abort) = state.aborted(generation) {
        return Fault::Aborted(abort);
    }
    state.abort(generation, Abort { rank, reason: Reason::Failure });
    Fault::CorruptPeer(rank)
}

/// Marks this rank as inside a chunk of others' memory, until it is dropped.
pub(crate) struct Inside<'s>(Option<CallContext<'s>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            let rank = context.world.rank();
            // SYNC POINT inside: the reads and writes of this chunk happen before the leaving
            // rank's return; pairs with `transport/in_place.rs`.
            context.state.records()[rank].counters.inside.store(0, Ordering::Release);
            if let Some(locals) = context.state.locals() {
                // SYNC POINT inside: the same, for threads of this process.
                locals.inside(rank).store(0, Ordering::Release);
            }
        }
    }
}
