//! The step that a rank is in, and its way into others' memory.

use super::{
    abort::{Abort, Reason},
    fault::Fault,
    state::GroupState,
};
use crate::{
    os::process_memory::Unread,
    shm::records::{CallDescriptor, Generation},
    sync::atomics::{Ordering, fence},
};
use consonance_spec::{DType, Kind, World};

/// The step that a rank is in: all have arrived, and agree.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'s> {
    pub(crate) state: &'s GroupState,
    pub(crate) world: World,
    pub(crate) generation: Generation,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// The element type on which all ranks agree, where data moves.
    pub(crate) dtype: Option<DType>,
    /// Whether others' own memory is touched in it, rather than what they put up.
    pub(crate) enters: bool,
}

impl<'s> CallContext<'s> {
    pub(super) fn descriptor(self, rank: usize) -> &'s CallDescriptor {
        self.state.records()[rank].descriptor(self.sequence)
    }

    /// Ends the group because of what `rank` says, which cannot be. Of threads it would be a fault
    /// of this program.
    pub(crate) fn nonsense(self, rank: usize) -> Fault {
        corrupt(self.state, self.generation, rank)
    }

    /// What it means that memory of `rank` was not read.
    pub(crate) fn unread(self, rank: usize, why: Unread) -> Fault {
        match why {
            // Its end is reported by who watches the processes: the endpoint waits for that.
            Unread::Gone => Fault::Missing(vec![rank]),
            Unread::Refused => self.nonsense(rank),
        }
    }

    /// Until the result is dropped, no rank leaves this step, so that every published address stays
    /// valid.
    ///
    /// What processes put up stays where it is; they need not wait for each other.
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

/// Ends the group because of what `rank` says, which cannot be. If the group has ended already,
/// returns that end: a rank that was told of it may have freed memory that this one still reads.
pub(super) fn corrupt(state: &GroupState, generation: Generation, rank: usize) -> Fault {
    if let Some(abort) = state.aborted(generation) {
        return Fault::Aborted(abort);
    }
    state.abort(generation, Abort { rank, reason: Reason::Failure });
    Fault::CorruptPeer(rank)
}

/// This rank is in a chunk of others' memory.
pub(crate) struct Inside<'s>(Option<CallContext<'s>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            let rank = context.world.rank();
            // SYNC POINT inside: what was read and written happens before the leaving rank's
            // return; pairs with `transport/in_place.rs`.
            context.state.records()[rank].counters.inside.store(0, Ordering::Release);
            if let Some(locals) = context.state.locals() {
                // SYNC POINT inside: the same, for threads of this process.
                locals.inside(rank).store(0, Ordering::Release);
            }
        }
    }
}
