//! A rank, and all that it makes steps with.

use super::{
    end::abort::Fault,
    meeting::Meeting,
    member::Member,
    plan::{Path, Topology},
    scratch::Addresses,
    staging::Staging,
    waiter::Waiter,
};
use crate::tuning::Tuning;
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
    /// The knobs of the group, by which all ranks find the data of others.
    pub(super) tuning: &'static Tuning,
    /// Whether the ranks have [chosen](super::measured) a pipeline, or will not.
    pub(super) has_chosen: bool,
    /// The large steps that they have made since, and after how many they choose.
    pub(super) large_steps: u32,
    pub(super) chooses_after: u32,
}

/// A step is large if, as all ranks know, a rank has this many bytes: the copies of a few thousand
/// such steps take as long as a measurement.
pub const LARGE_BYTES: usize = 64 << 10;

impl Participant {
    pub(super) fn new(waiter: Waiter) -> Participant {
        Participant {
            staging: Staging::new(&waiter.member),
            addresses: Addresses::new(waiter.member.world.size()),
            tuning: waiter.member.state.tuning,
            has_chosen: false,
            large_steps: 0,
            chooses_after: 1,
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
        Topology { ranks: self.world().size(), slot_bytes, reads, tuning: self.tuning }
    }

    /// Returns how this rank meets its peers, and its staging.
    pub(super) fn on_stage(&mut self) -> (&mut Meeting, &mut Staging) {
        (&mut self.meeting, self.staging.as_mut().expect("a participant with a staging"))
    }

    /// Prepares a step that shares memory. The protocol depends on what this rank knows once all
    /// have arrived at the last call.
    pub(super) fn prepare(&mut self) -> Result<(), Fault> {
        if let Some(staging) = &mut self.staging {
            self.meeting.check()?;
            self.meeting.settle()?;
            staging.begin(self.meeting.sequence);
        }
        Ok(())
    }

    /// Notes a step that was made, in which, as all ranks know, a rank has `bytes` bytes:
    /// `usize::MAX` if they know none.
    #[inline]
    pub(super) fn note_large(&mut self, bytes: usize) {
        if !self.has_chosen && (LARGE_BYTES..usize::MAX).contains(&bytes) {
            self.large_steps = self.large_steps.saturating_add(1);
        }
    }

    /// Whether the ranks choose a pipeline now.
    #[inline]
    pub(super) fn is_to_choose(&self) -> bool {
        self.large_steps >= self.chooses_after
    }

    /// Begins another generation with the knobs that the group was made with: some ranks may not
    /// have taken the choice of the last one.
    pub(super) fn forget_choice(&mut self) {
        (self.tuning, self.has_chosen) = (self.member().state.tuning, false);
        (self.large_steps, self.chooses_after) = (0, 1);
    }
}
