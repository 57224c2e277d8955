//! A rank, and all that it makes steps with.

use super::{
    end::abort::Fault,
    measured::before_copies,
    meeting::Meeting,
    member::Member,
    plan::{Path, Topology},
    scratch::Addresses,
    staging::Staging,
    waiter::Waiter,
};
use consonance_spec::World;
use std::cell::Cell;

/// A rank of a group, and all that it makes steps with.
pub(crate) struct Participant {
    /// The meeting of this rank with its peers.
    pub(crate) meeting: Meeting,
    /// The memory into which this rank copies its data, if its peers cannot read them in place.
    pub(super) staging: Option<Staging>,
    pub(super) addresses: Addresses,
    /// The path of the data of the last step that shared memory, until it is asked for.
    pub(super) path: Cell<Option<Path>>,
}

impl Participant {
    pub(super) fn new(waiter: Waiter) -> Participant {
        Participant {
            staging: Staging::new(&waiter.member),
            addresses: Addresses::new(waiter.member.world.size()),
            meeting: Meeting::new(waiter),
            path: Cell::default(),
        }
    }

    /// Returns who this rank is.
    #[inline]
    pub(super) fn member(&self) -> &Member {
        self.meeting.member()
    }

    /// Returns this rank and the number of ranks.
    #[inline]
    pub(super) fn world(&self) -> World {
        self.member().world
    }

    /// Returns the inputs of protocol selection for this group's steps.
    pub(super) fn topology(&self) -> Topology {
        let slot_bytes = self.staging.as_ref().map(Staging::slot_bytes);
        let reads = self.staging.as_ref().is_some_and(|staging| staging.reads(&self.meeting));
        Topology { ranks: self.world().size(), slot_bytes, reads, tuning: self.member().state.tuning }
    }

    /// Returns how this rank meets its peers, and its staging.
    pub(super) fn on_stage(&mut self) -> (&mut Meeting, &mut Staging) {
        (&mut self.meeting, self.staging.as_mut().expect("a participant with a staging"))
    }

    /// Prepares a step that shares memory, in which a rank has `bytes` bytes. The protocol depends
    /// on what this rank knows once all have arrived at the last call.
    pub(super) fn prepare(&mut self, bytes: usize) -> Result<(), Fault> {
        if let Some(staging) = &mut self.staging {
            self.meeting.check()?;
            self.meeting.settle()?;
            staging.begin(self.meeting.sequence);
        }
        before_copies(&self.meeting, bytes);
        Ok(())
    }
}
