//! Scenarios of groups that begin anew and of groups that are split off.

use super::{BEGUN, calls::*};
use crate::{
    group::{Endpoint, Fault},
    shm::Shape,
    sync::atomics::Ordering,
};

/// One rank leaves after a call while the other makes one more. Then both make calls in the next
/// generation.
pub(super) fn rounds_of_threads() {
    let mut endpoints = threads(2, FOREVER);
    for _ in 0..2 {
        let ranks: Vec<_> = (endpoints.into_iter())
            .map(|mut endpoint| {
                loom::thread::spawn(move || {
                    sum(&mut endpoint, 1).unwrap();
                    if endpoint.world().rank() == 1 {
                        assert_eq!(sum(&mut endpoint, 2), Err(Fault::Left(0)));
                    }
                    endpoint.leave_round();
                    endpoint
                })
            })
            .collect();
        endpoints = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(endpoints.iter_mut().all(Endpoint::begin_round));
    }
}

/// Both ranks split off a new group, and one of them leaves the old group at once. This does not
/// end the new group.
pub(super) fn split_of_threads() {
    each(threads(2, FOREVER), |mut endpoint| {
        let mut child = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
        let kept = Some(endpoint).filter(|endpoint| endpoint.world().rank() == 0);
        sum(&mut child, 1).unwrap();
        kept
    });
}

/// Each rank is in a group of its own, and splits other groups off it. The two ranks want the same
/// place for a subgroup, and do not know of each other. The rank that gets the place finds no data
/// of an earlier group there that counts as new.
pub(super) fn split_of_processes() {
    BEGUN.take();
    each(processes(Shape { splits: 3, ..SMALL }), |mut endpoint| {
        let mut own = endpoint.split(&SUM, &[endpoint.world().rank()]).unwrap().expect("a member");
        for call in 1..=2 {
            match own.split(&SUM, &[0]) {
                Ok(inner) => {
                    let mut inner = inner.expect("a member");
                    // Relaxed: this rank stored it.
                    let generation = inner.member().records()[0].counters.taken.load(Ordering::Relaxed);
                    let place = inner.member().records().as_ptr().addr();
                    let news = BEGUN.with_borrow_mut(|begun| begun.insert((place, generation)));
                    assert!(news, "two groups of one place in one generation");
                    sum(&mut inner, call).unwrap();
                }
                Err(fault) => assert_eq!(fault, Fault::TooManyGroups),
            }
        }
        drop(own);
        Some(endpoint)
    });
}

/// Two groups of both ranks, one after the other. The second may have the place of the first.
pub(super) fn splits_of_processes() {
    each(processes(Shape { splits: 3, ..SMALL }), |mut endpoint| {
        for call in 1..=2 {
            let mut child = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
            sum(&mut child, call).unwrap();
        }
        Some(endpoint)
    });
}

/// A group of both ranks, and then one of rank 0 alone, which may have the place of the first. Rank
/// 1 read there last.
pub(super) fn split_of_both_then_of_one() {
    each(processes(Shape { splits: 3, ..SMALL }), |mut endpoint| {
        let rank = endpoint.world().rank();
        let mut own = endpoint.split(&SUM, &[rank]).unwrap().expect("a member");
        let mut both = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
        sum(&mut both, 1).unwrap();
        drop(both);
        if rank == 0 {
            match own.split(&SUM, &[0]) {
                Ok(inner) => sum(&mut inner.expect("a member"), 1).unwrap(),
                Err(fault) => assert_eq!(fault, Fault::TooManyGroups),
            }
        }
        Some(endpoint)
    });
}
