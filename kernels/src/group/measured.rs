//! When a process measures how it copies: before the first large call of a group.
//!
//! Rank 0 of the group of all processes measures, before it arrives, and tells the others in the
//! segment. They wait for it in this call, and take its knobs before their next large call. No knob
//! of a process changes what ranks must agree on, so it does not matter in which call each of them
//! takes these.

use super::{endpoint::Endpoint, state::GroupState};
use crate::{
    os::copy_times::{LIMIT, measure_once},
    tuning::{adopt_of_peer, current, is_due},
};
use std::time::Duration;

/// A call is large if, as a rank knows before it arrives, a rank has this many bytes: the copies of
/// a hundred such calls take as long as the measurement.
pub const LARGE_BYTES: usize = 256 << 10;

/// Rank 0 does not measure in a call with a shorter timeout than this, which its peers have as a
/// rule, too.
const PATIENCE: Duration = LIMIT.saturating_mul(250);

impl Endpoint {
    /// Does what comes before a call in which a rank has `bytes` bytes.
    #[inline]
    pub(super) fn before_copies(&self, bytes: usize) {
        if bytes >= LARGE_BYTES && (is_due() || self.state.owes_knobs(self.world.rank())) {
            self.settle_copies();
        }
    }

    #[cold]
    fn settle_copies(&self) {
        if self.check().is_err() || self.world.size() == 1 {
            return;
        }
        let segment = self.state.segment().map(|(segment, _)| segment);
        let told = segment.and_then(|segment| segment.measured());
        if let Some(theirs) = told.filter(|_| is_due()) {
            return adopt_of_peer(&theirs);
        }
        if self.state.top_rank(self.world.rank()) > 0 || (is_due() && self.timeout < PATIENCE) {
            return;
        }
        measure_once();
        if let Some(segment) = segment {
            segment.tell_measured(current());
        }
    }
}

impl GroupState {
    /// Whether this rank has not told the other processes its knobs, as rank 0 of all does.
    fn owes_knobs(&self, rank: usize) -> bool {
        self.top_rank(rank) == 0 && self.segment().is_some_and(|(segment, _)| !segment.has_measured())
    }
}
