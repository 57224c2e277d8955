//! When a process measures how it copies: before the first large call of a group.
//!
//! Rank 0 of the group of all processes measures, before it arrives, and tells the others in the
//! segment. They wait for it in this call, and take its knobs before their next large call. No knob
//! of a process changes what ranks must agree on, so it does not matter in which call each of them
//! takes these.

use super::{endpoint::Endpoint, state::GroupState};
use crate::{
    os::copy_times::{LIMIT, measure_once},
    sync::atomics::Ordering,
    tuning::{adopt_of_peer, current, is_due},
};
use std::time::Duration;

/// A call is large if, as a rank knows before it arrives, a rank has this many bytes: the copies of
/// a hundred such calls take as long as the measurement.
pub const LARGE_BYTES: usize = 256 << 10;

/// Rank 0 does not measure in a call in which a rank has a shorter timeout than this.
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
        if self.state.top_rank(self.world.rank()) > 0 || (is_due() && self.state.least_timeout() < PATIENCE) {
            return;
        }
        measure_once();
        if let Some(segment) = segment {
            segment.tell_measured(current());
        }
    }
}

impl GroupState {
    /// Publishes how long `rank` waits in a call.
    pub(super) fn say_timeout(&self, rank: usize, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1);
        // Relaxed: a rank that reads it late measures in a call that is too short for it.
        self.records()[rank].sleeper.timeout.store(nanos, Ordering::Relaxed);
    }

    /// Returns the least of what the ranks have published of that.
    fn least_timeout(&self) -> Duration {
        let published = self.records().iter().map(|record| record.sleeper.timeout.load(Ordering::Relaxed));
        Duration::from_nanos(published.filter(|&nanos| nanos > 0).min().unwrap_or(0))
    }

    /// Whether this rank has not told the other processes its knobs, as rank 0 of all does.
    fn owes_knobs(&self, rank: usize) -> bool {
        self.top_rank(rank) == 0 && self.segment().is_some_and(|(segment, _)| !segment.has_measured())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_sees_the_least_timeout_of_the_group() {
        let second = Duration::from_secs(1);
        let mut ranks = Endpoint::group(3, 30 * second);
        let least = |ranks: &[Endpoint]| ranks[0].state.least_timeout();
        assert_eq!(least(&ranks), 30 * second);
        ranks[2].set_timeout(second);
        assert_eq!(least(&ranks), second);
        ranks[2].set_timeout(Duration::MAX);
        assert_eq!(least(&ranks), 30 * second);
        // A rank that has no endpoint yet.
        ranks[1].state.records()[1].sleeper.timeout.store(0, Ordering::Relaxed);
        assert_eq!(least(&ranks), 30 * second);
        ranks[1].set_timeout(Duration::ZERO);
        assert_eq!(least(&ranks), Duration::from_nanos(1));
    }
}
