//! A scenario of ranks that wait for each other at their deadlines.

use super::calls::threads;
use crate::{
    group::Fault,
    sync::atomics::{AtomicU32, Ordering},
};
use std::{cell::Cell, sync::Arc, time::Duration};

/// Rank 0 waits for rank 1, which waits in a pair for rank 2. Rank 2 makes no call, and the
/// deadlines of the others pass in any order. Once rank 1 has begun to wait, rank 0 is told of rank
/// 2.
pub(super) fn chain_of_waits() {
    let mut endpoints = threads(3, Duration::ZERO).into_iter();
    let [first, second, _third] = [(); 3].map(|()| endpoints.next().expect("three ranks"));
    let waits = Arc::new(AtomicU32::new(0));
    let says_so = waits.clone();
    let other = loom::thread::spawn(move || {
        let pair = second.pair(2).unwrap();
        let asked = Cell::new(0);
        let never = |_: &_| {
            // Asked a second time after the rank has said that it waits.
            asked.set(asked.get() + 1);
            if asked.get() == 2 {
                says_so.store(1, Ordering::Release);
            }
            false
        };
        assert_eq!(pair.wait_for_all(never), Err(Fault::Missing(vec![1])), "rank 2 in the pair");
        (second, pair)
    });
    if waits.load(Ordering::Acquire) == 1 {
        assert_eq!(first.wait_for(|peer| peer == 1, |_| false), Err(Fault::Missing(vec![2])));
    }
    drop(other.join().unwrap());
}
