//! A scenario of ranks that wait for each other at their deadlines.

use super::calls::threads;
use crate::{group::Fault, sync::atomics::Ordering};
use std::time::Duration;

/// Rank 0 waits for rank 1, which waits in a pair for rank 2. Rank 2 makes no call, and the
/// deadlines of the others pass in any order. Once rank 0 sees that rank 1 waits, it is told of
/// rank 2.
pub(super) fn chain_of_waits() {
    let mut endpoints = threads(3, Duration::ZERO).into_iter();
    let [first, second, _third] = [(); 3].map(|()| endpoints.next().expect("three ranks"));
    let other = loom::thread::spawn(move || {
        let pair = second.pair(2).unwrap();
        assert_eq!(
            pair.participant.meeting.waiter.wait_for_all(|_| false),
            Err(Fault::Missing(vec![1])),
            "rank 2 in the pair"
        );
        (second, pair)
    });
    // Relaxed: what rank 0 is told of later does not depend on what else it sees.
    if first.member().state.sleeper(1).blocker.load(Ordering::Relaxed) != 0 {
        assert_eq!(
            first.participant.meeting.waiter.wait_for(|peer| peer == 1, |_| false),
            Err(Fault::Missing(vec![2]))
        );
    }
    drop(other.join().unwrap());
}
