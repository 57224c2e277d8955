//! The time at which a process measures its copies: before the first large call of a group.
//!
//! Rank 0 of the group of all processes measures, before it arrives, and tells the others in the
//! segment. They wait for it in this call, and take its knobs before their next large call. No knob
//! of a process changes what ranks must agree on, so it does not matter in which call each of them
//! takes these.

use super::{meeting::Meeting, member::Member};
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

/// Does what comes before a call in which a rank has `bytes` bytes.
#[inline]
pub(super) fn before_copies(meeting: &Meeting, bytes: usize) {
    if bytes >= LARGE_BYTES && (is_due() || owes_knobs(meeting.member())) {
        settle_copies(meeting);
    }
}

#[cold]
fn settle_copies(meeting: &Meeting) {
    let Member { state, world, .. } = meeting.member();
    if meeting.check().is_err() || world.size() == 1 {
        return;
    }
    let segment = state.segment().map(|(segment, _)| segment);
    let told = segment.and_then(|segment| segment.measured());
    if let Some(theirs) = told.filter(|_| is_due()) {
        return adopt_of_peer(&theirs);
    }
    if state.top_rank(world.rank()) > 0 || (is_due() && least_timeout(meeting.member()) < PATIENCE) {
        return;
    }
    measure_once();
    if let Some(segment) = segment {
        segment.tell_measured(current());
    }
}

/// Whether this rank has not told the other processes its knobs, as rank 0 of all does.
fn owes_knobs(Member { state, world, .. }: &Member) -> bool {
    state.top_rank(world.rank()) == 0 && state.segment().is_some_and(|(segment, _)| !segment.has_measured())
}

/// Returns the least timeout that the ranks of the group have published.
fn least_timeout(member: &Member) -> Duration {
    let published = member.records().iter().map(|record| record.counters.timeout.load(Ordering::Relaxed));
    Duration::from_nanos(published.filter(|&nanos| nanos > 0).min().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::endpoint::Endpoint;

    #[test]
    fn rank_0_sees_the_least_timeout_of_the_group() {
        let second = Duration::from_secs(1);
        let mut ranks = Endpoint::group(3, 30 * second);
        let least = |ranks: &[Endpoint]| least_timeout(ranks[0].member());
        assert_eq!(least(&ranks), 30 * second);
        ranks[2].set_timeout(second);
        assert_eq!(least(&ranks), second);
        ranks[2].set_timeout(Duration::MAX);
        assert_eq!(least(&ranks), 30 * second);
        // A rank that has no endpoint yet.
        ranks[1].member().record().counters.timeout.store(0, Ordering::Relaxed);
        assert_eq!(least(&ranks), 30 * second);
        ranks[1].set_timeout(Duration::ZERO);
        assert_eq!(least(&ranks), Duration::from_nanos(1));
    }
}
