//! Scenarios of data that lie in memory that all ranks reach.

use super::calls::*;
use crate::{
    data::Data,
    group::{Abort, Endpoint, Fault, Reason, plan::Chunking},
    memory::HostBuf,
};
use std::time::Duration;

/// Two calls on memory that both ranks write.
pub(super) fn divided() {
    each(threads(2, FOREVER), |mut endpoint| {
        let mut data = data(&endpoint, 0, 32);
        (1..=2).for_each(|call| sum_in_place(&mut endpoint, &mut data, call).unwrap());
        Some(endpoint)
    });
}

/// A rank that has given up takes its memory back while the other rank may be in it.
pub(super) fn divided_with_a_deadline() {
    let mut endpoints = threads(2, FOREVER);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let mut data = data(&endpoint, 0, 32);
        let result = (1..=2).try_for_each(|call| sum_in_place(&mut endpoint, &mut data, call));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        data.write();
        Some(endpoint)
    });
}

/// Returns the heap of this rank, which is a process of its own.
pub(super) fn heap(endpoint: &Endpoint) -> Data {
    Data::in_heap(endpoint.member().state.shared_segment().expect("a group of processes"), endpoint.world().rank())
}

/// Two calls on heaps that both processes write.
pub(super) fn divided_in_heaps() {
    each(processes(LARGE), |mut endpoint| {
        let mut data = heap(&endpoint);
        (1..=2).for_each(|call| sum_in_place(&mut endpoint, &mut data, call).unwrap());
        Some(endpoint)
    });
}

/// A rank that has given up goes on in its heap while a rank of another process may be there.
pub(super) fn divided_in_heaps_with_a_deadline() {
    let mut endpoints = processes(LARGE);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let mut data = heap(&endpoint);
        let result = (1..=2).try_for_each(|call| sum_in_place(&mut endpoint, &mut data, call));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        // On a busy machine a rank may have waited too long. Its heap is then private.
        if !endpoint.member().state.shared_segment().expect("a group of processes").has_detached() {
            data.write();
        }
        Some(endpoint)
    });
}

/// Two calls of ranks that have two contributions each: the first is kept as a node.
pub(super) fn holdings() {
    each(threads(2, FOREVER), |mut endpoint| {
        let (mut node, mut last) = (data(&endpoint, 0, 32), data(&endpoint, 0, 32));
        for call in 1..=2 {
            assert_eq!(sum_holdings(&mut endpoint, Some(&mut node), &mut last, call), Ok(true));
        }
        Some(endpoint)
    });
}

/// A rank that has given up takes its memory back while the other rank may be in it.
pub(super) fn holdings_with_a_deadline() {
    let mut endpoints = threads(2, FOREVER);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let (mut node, mut last) = (data(&endpoint, 0, 32), data(&endpoint, 0, 32));
        let result =
            (1..=2).try_for_each(|call| sum_holdings(&mut endpoint, Some(&mut node), &mut last, call).map(drop));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        node.write();
        last.write();
        Some(endpoint)
    });
}

/// Two calls on heaps that both processes write, and between them one that only one process could
/// make there.
pub(super) fn holdings_in_heaps() {
    each(processes(LARGE), |mut endpoint| {
        let mut last = heap(&endpoint);
        let mut apart = data(&endpoint, 0, last.share().len());
        assert_eq!(sum_holdings(&mut endpoint, None, &mut last, 1), Ok(true));
        let some = if endpoint.world().rank() == 0 { &mut last } else { &mut apart };
        assert_eq!(sum_holdings(&mut endpoint, None, some, 2), Ok(false));
        assert_eq!(sum_holdings(&mut endpoint, None, &mut last, 3), Ok(true));
        Some(endpoint)
    });
}

/// A rank's own work fails in the middle of a step.
pub(super) fn published_with_a_failure() {
    each(threads(2, FOREVER), |mut endpoint| {
        let mut data = data(&endpoint, 1, 4);
        let result = if endpoint.world().rank() == 0 {
            sum_published(&mut endpoint, &mut data, 1)
        } else {
            endpoint
                .step(&SUM)
                .published(Some(HostBuf::from(&*data.share())), Chunking::WHOLE, |_| Err(Fault::TooManyGroups))
        };
        let expected = match endpoint.world().rank() {
            0 => Fault::Aborted(Abort { rank: 1, reason: Reason::Failure }),
            _ => Fault::TooManyGroups,
        };
        assert!(result == Err(expected) || (result.is_ok() && endpoint.world().rank() == 0), "{result:?}");
        data.write();
        Some(endpoint)
    });
}
