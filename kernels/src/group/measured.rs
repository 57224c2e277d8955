//! When a process measures how it copies: before the first large call of a group.
//!
//! Rank 0 measures, before it arrives, and tells the others in the segment. They wait for it in
//! this call, and take its knobs before their next large call. No knob of a process changes what
//! ranks must agree on, so it does not matter in which call each of them takes these.

use super::endpoint::Endpoint;
use crate::{
    os::copy_times::{LIMIT, measure_once},
    tuning::{adopt_of_peer, current, is_due},
};
use std::time::Duration;

/// A call is large if a rank has this many bytes: the copies of a hundred such calls take as long
/// as the measurement.
pub const LARGE_BYTES: usize = 256 << 10;

/// Nobody measures in a call whose peers have less patience than this.
const PATIENCE: Duration = LIMIT.saturating_mul(250);

impl Endpoint {
    /// Does what comes before a call in which a rank has `bytes` bytes.
    #[inline]
    pub(super) fn before_copies(&self, bytes: usize) {
        if bytes >= LARGE_BYTES && is_due() {
            self.settle_copies();
        }
    }

    #[cold]
    fn settle_copies(&self) {
        let segment = self.state.segment().map(|(segment, _)| segment);
        if let Some(theirs) = segment.and_then(|segment| segment.measured()) {
            return adopt_of_peer(&theirs);
        }
        if self.world.size() == 1 || self.world.rank() > 0 || self.timeout < PATIENCE {
            return;
        }
        measure_once();
        // Another thread of this process may be about to.
        if let Some(segment) = segment.filter(|_| !is_due()) {
            segment.tell_measured(current());
        }
    }
}
