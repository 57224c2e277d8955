//! Scenarios of data that come with the posts.

use super::calls::*;
use crate::{
    data::Data,
    group::{Abort, Fault, Reason},
    shm::call_log_text::{CALLS, CallLog, Outcome},
    watched_memory,
};
use consonance_spec::{Kind, Signature};
use std::{sync::Arc, time::Duration};

/// Five calls: the fifth overwrites the descriptors of the first.
pub(super) fn exchange() {
    each(threads(2, FOREVER), |mut endpoint| {
        (1..=5).for_each(|call| sum(&mut endpoint, call).unwrap());
        Some(endpoint)
    });
}

/// Four calls. The third writes where the other rank's data of the first call were read, and folds
/// in small tiles, which the first call does not fill. The fourth has blocks.
pub(super) fn exchange_in_traded_places() {
    each(threads(2, FOREVER), |mut endpoint| {
        sum_of(&mut endpoint, 1, TRADED).unwrap();
        sum(&mut endpoint, 2).unwrap();
        sum_of(&mut endpoint, 3, TRADED + 1).unwrap();
        let blocks = Signature { kind: Kind::AllToAll, ..SUM };
        let own = [value(endpoint.world().rank(), 4, 0); TRADED];
        let mut other = [0; TRADED];
        let peer = 1 - endpoint.world().rank();
        let payloads = endpoint.step(&blocks).exchange(Some(own.as_slice().into())).unwrap();
        payloads.copy(peer, 0, &mut other.as_mut_slice().into()).unwrap();
        assert_eq!(other, [value(peer, 4, 0); TRADED]);
        Some(endpoint)
    });
}

/// One rank makes a call for which slots are swapped, and the other rank a call for which they are
/// not. Neither writes where the other does.
pub(super) fn exchange_of_different_kinds() {
    each(threads(2, FOREVER), |mut endpoint| {
        let rank = endpoint.world().rank();
        sum(&mut endpoint, 1).unwrap();
        let own = [value(rank, 2, 0); TRADED];
        let signature = if rank == 0 { SUM } else { TO_ONE };
        let found = endpoint.step(&signature).exchange(Some(own.as_slice().into())).map(drop);
        assert_eq!(found, Err(Fault::Mismatch));
        sum_of(&mut endpoint, 3, TRADED).unwrap();
        Some(endpoint)
    });
}

pub(super) fn exchange_of_three() {
    each(threads(3, FOREVER), |mut endpoint| {
        (1..=2).for_each(|call| sum(&mut endpoint, call).unwrap());
        Some(endpoint)
    });
}

pub(super) fn exchange_with_a_deadline() {
    let mut endpoints = threads(2, FOREVER);
    endpoints[1].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let result = (1..=2).try_for_each(|call| sum(&mut endpoint, call));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        Some(endpoint)
    });
}

/// One rank makes one call and leaves. The other rank's first call succeeds, and its second fails.
pub(super) fn exchange_with_a_leaver() {
    each(threads(2, FOREVER), |mut endpoint| {
        sum(&mut endpoint, 1).unwrap();
        if endpoint.world().rank() == 1 {
            return None;
        }
        assert_eq!(sum(&mut endpoint, 2), Err(Fault::Left(1)));
        Some(endpoint)
    });
}

/// One rank makes one call and becomes idle. The second call of the other rank, of the same
/// process, fails.
pub(super) fn exchange_with_a_resting_rank() {
    each(threads(2, FOREVER), |mut endpoint| {
        endpoint.set_idle(0..2, false);
        sum(&mut endpoint, 1).unwrap();
        if endpoint.world().rank() == 1 {
            endpoint.set_idle(0..2, true);
        } else {
            assert_eq!(sum(&mut endpoint, 2), Err(Fault::Left(1)));
        }
        Some(endpoint)
    });
}

/// Another thread aborts the group. A rank that sees the abort sees the earlier writes of that
/// thread.
pub(super) fn end_from_outside() {
    let mut words = Data::new([0].into_iter());
    let endpoints = threads(2, FOREVER);
    let aborter = endpoints[0].aborter();
    let address = words.share().as_mut_ptr() as usize;
    let ranks = endpoints.into_iter().map(|mut endpoint| {
        loom::thread::spawn(move || {
            let result = (1..=2).try_for_each(|call| sum(&mut endpoint, call));
            if let Err(fault) = result {
                assert_eq!(fault, Fault::Aborted(Abort { rank: 0, reason: Reason::Failure }));
                watched_memory::read(std::ptr::with_exposed_provenance(address), 8);
            }
            endpoint
        })
    });
    let ranks: Vec<_> = ranks.collect();
    words.write()[0] = 1;
    aborter.abort(Reason::Failure);
    let endpoints: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    drop(endpoints);
}

/// Rank 1 aborts. Rank 0 is told so, and is lost. Rank 2, which may be slow, is told of the abort,
/// and of the loss in the first call after it.
pub(super) fn abort_and_loss() {
    let mut endpoints = threads(3, FOREVER).into_iter();
    let [mut first, second, mut slow] = [(); 3].map(|()| endpoints.next().expect("three ranks"));
    let abort = Fault::Aborted(Abort { rank: 1, reason: Reason::Failure });
    let loss = Fault::Aborted(Abort { rank: 0, reason: Reason::Death });
    let others = loom::thread::spawn({
        let abort = abort.clone();
        move || {
            second.aborter().abort(Reason::Failure);
            assert_eq!(sum(&mut first, 1), Err(abort));
            second.aborter().lose(0..1, Reason::Death);
            (first, second)
        }
    });
    assert_eq!(sum(&mut slow, 1), Err(abort.clone()));
    assert_eq!(slow.aborter().aborted().map(Fault::Aborted), Some(abort), "a report of that call");
    let kept = others.join().unwrap();
    assert_eq!(sum(&mut slow, 1), Err(loss.clone()));
    assert_eq!(slow.renew(), Err(loss));
    drop((kept, slow));
}

/// Rank 1 aborts its pair with rank 0. Rank 2 is lost after that, to the whole group. Rank 0 is
/// told of the abort first, and of the loss in its next calls.
pub(super) fn abort_of_a_pair_and_loss() {
    let whole = threads(3, FOREVER);
    let mut pair = whole[0].pair(1).unwrap();
    let other = whole[1].pair(0).unwrap();
    let (aborter, watcher) = (other.aborter(), whole[1].aborter());
    let others = loom::thread::spawn(move || {
        aborter.abort(Reason::Failure);
        watcher.lose(2..3, Reason::Death);
    });
    let abort = Fault::Aborted(Abort { rank: 1, reason: Reason::Failure });
    let loss = Fault::Aborted(Abort { rank: 2, reason: Reason::Death });
    assert_eq!(sum(&mut pair, 1), Err(abort.clone()));
    assert_eq!(pair.aborter().aborted().map(Fault::Aborted), Some(abort), "a report of that call");
    others.join().unwrap();
    assert_eq!([1, 2].map(|_| sum(&mut pair, 1)), [(); 2].map(|()| Err(loss.clone())));
    drop((pair, other, whole));
}

/// A rank begins a call while another thread reads the call log.
pub(super) fn call_log() {
    let call_log = Arc::new(CallLog::default());
    let begin = |call_log: &CallLog, number: u64| {
        let entry_id = call_log.begin(number, number as u32, number);
        call_log.end(entry_id, Outcome::Done);
    };
    (1..=CALLS as u64).for_each(|number| begin(&call_log, number));
    let reader = loom::thread::spawn({
        let call_log = call_log.clone();
        move || {
            let entries = call_log.read();
            assert!(entries.len() >= CALLS - 2, "{} entries", entries.len());
            assert!(entries.windows(2).all(|pair| pair[0].number < pair[1].number), "{entries:?}");
            for entry in entries {
                assert_eq!((entry.head, entry.bytes), (entry.number as u32, entry.number), "{entry:?}");
            }
        }
    });
    begin(&call_log, CALLS as u64 + 1);
    reader.join().unwrap();
}
