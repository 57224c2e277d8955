//! The step that a rank is in, and its way into others' memory.

use super::{
    abort::{Abort, Reason},
    fault::Fault,
    state::Hub,
};
use crate::{
    os::process_memory::Unread,
    shm::records::{Card, Round},
    sync::atomics::{Ordering, fence},
};
use consonance_spec::{DType, Kind, World};

/// The step that a rank is in: all have arrived, and agree.
#[derive(Clone, Copy)]
pub(crate) struct Place<'s> {
    pub(crate) hub: &'s Hub,
    pub(crate) world: World,
    pub(crate) round: Round,
    pub(crate) epoch: u64,
    pub(crate) kind: Kind,
    /// The element type on which all ranks agree, where data moves.
    pub(crate) dtype: Option<DType>,
    /// Whether others' own memory is touched in it, rather than what they put up.
    pub(crate) enters: bool,
}

impl<'s> Place<'s> {
    pub(super) fn card(self, rank: usize) -> &'s Card {
        self.hub.lines()[rank].card(self.epoch)
    }

    /// Ends the group because of what `rank` says, which cannot be. Of threads it would be a fault of this program.
    pub(crate) fn nonsense(self, rank: usize) -> Fault {
        self.hub.abort(self.round, Abort { rank, reason: Reason::Failure });
        Fault::Nonsense(rank)
    }

    /// What it means that memory of `rank` was not read.
    pub(crate) fn unread(self, rank: usize, why: Unread) -> Fault {
        match why {
            // Its end is reported by who watches the processes: the seat waits for that.
            Unread::Gone => Fault::Missing(vec![rank]),
            Unread::Refused => self.nonsense(rank),
        }
    }

    /// Until the result is dropped, no rank leaves this step, so that every published address stays valid.
    ///
    /// What processes put up stays where it is; they need not wait for each other.
    pub(crate) fn enter(self) -> Result<Inside<'s>, Fault> {
        if !self.enters {
            return Ok(Inside(None));
        }
        let inside = Inside(Some(self));
        let rank = self.world.rank();
        self.hub.lines()[rank].progress.inside.store(1, Ordering::Relaxed);
        if let Some(locals) = self.hub.locals() {
            locals.inside(rank).store(1, Ordering::Relaxed);
        }
        // SYNC POINT abort: pairs with the fence of a rank that leaves (`transport/in_place.rs`).
        fence(Ordering::SeqCst);
        match self.hub.aborted(self.round) {
            Some(abort) => Err(Fault::Aborted(abort)),
            None => Ok(inside),
        }
    }
}

/// This rank is in a chunk of others' memory.
pub(crate) struct Inside<'s>(Option<Place<'s>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            let rank = place.world.rank();
            // SYNC POINT inside: what was read and written happens before the leaving rank's return; pairs with `transport/in_place.rs`.
            place.hub.lines()[rank].progress.inside.store(0, Ordering::Release);
            if let Some(locals) = place.hub.locals() {
                // SYNC POINT inside: the same, for threads of this process.
                locals.inside(rank).store(0, Ordering::Release);
            }
        }
    }
}
