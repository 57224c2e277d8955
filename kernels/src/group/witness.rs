//! What a rank sees of the other ranks, for reports.

use super::{
    end::{End, LastCall},
    state::GroupState,
};
use crate::shm::{call_log::CallLog, records::Generation};
use consonance_spec::World;
use std::{ptr, sync::Arc};

/// What a rank sees of the other ranks of its group, from any thread.
#[derive(Clone)]
pub struct Witness {
    state: Arc<GroupState>,
    generation: Generation,
    world: World,
}

impl Witness {
    pub(super) fn new(state: Arc<GroupState>, generation: Generation, world: World) -> Witness {
        Witness { state, generation, world }
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns the rank that an error names when `rank` has left: `rank` itself or, if it left
    /// because it was told of another rank, that other rank. Also notes that this rank was told of
    /// it, so that a rank that sees this one leave or end the group names the same rank.
    pub fn blame(&self, rank: usize) -> usize {
        let culprit = self.state.culprit(self.generation, rank);
        self.state.tell(self.world.rank(), self.state.top_rank(culprit));
        culprit
    }

    /// Returns the rank that holds up `rank`, which missed a deadline of this rank: `rank` itself
    /// or, if it waits for another one in turn, the end of that chain.
    pub fn held_up_by(&self, rank: usize) -> usize {
        self.state.end_of_waits(self.world.rank(), rank)
    }

    /// Returns the rank that held up `rank`, which gave up its wait for it at its own deadline, a
    /// short time ago. It has left because of that, or is late.
    pub fn gave_up_for(&self, rank: usize) -> Option<usize> {
        self.state.gave_up_for(rank)
    }

    /// Whether `rank` is of another process and will make no further call in the group that was
    /// split from none.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.state.is_lost(rank)
    }

    /// Returns the number of `rank` in the group that was split from none.
    pub fn top_rank(&self, rank: usize) -> usize {
        self.state.top_rank(rank)
    }

    /// Returns the last call of `rank` in this group whose [code](crate::shm::codes::code) is
    /// `shown`. A racing read: for reports.
    pub fn last_call(&self, rank: usize, shown: impl Fn(u32) -> bool) -> LastCall {
        // For processes, calls from before the group was renewed are reported, too.
        let since = if self.state.segment().is_none() { self.generation } else { Generation::default() };
        LastCall::in_line(&self.state.records()[rank], since, shown)
    }

    /// Returns how this group was ended, if it was, with the last calls whose codes are `shown`.
    /// Also notes, as [`Witness::blame`] does, that this rank was told of the rank at fault. A
    /// racing read of the calls: for reports. For a rank that was stopped while it arrived, the
    /// report may show its previous call.
    pub fn end(&self, shown: impl Fn(u32) -> bool) -> Option<End> {
        let (abort, state, generation) = self.state.end(self.generation)?;
        let in_line = |rank: usize| LastCall::in_line(&state.records()[rank], generation, &shown);
        let noted = |call_log: &CallLog| LastCall::noted(call_log, &shown);
        let last = |rank: usize| state.call_log(rank).map_or_else(|| in_line(rank), noted);
        let calls = (0..state.records().len()).map(|rank| (state.top_rank(rank), last(rank))).collect();
        self.state.tell(self.world.rank(), state.top_rank(abort.rank));
        Some(End { abort, inherited: !ptr::eq(state, &*self.state), is_lost: state.is_lost(abort.rank), calls })
    }
}
