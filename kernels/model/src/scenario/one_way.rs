//! Scenarios of small data that go one way, for which the rank that gives waits for nobody.

use super::{DEATH, calls::*};
use crate::{
    fault,
    group::{Abort, Endpoint, Fault, Reason},
    memory::HostBuf,
    shm::Shape,
};
use consonance_spec::{Kind, Signature};
use std::time::Duration;

const THREE: Shape = Shape { ranks: 3, ..SMALL };

/// Returns the broadcast of `root`.
fn broadcast(root: usize) -> Signature {
    Signature { kind: Kind::Broadcast, op: None, root: Some(root), ..SUM }
}

/// Gives `count` elements of rank `root` to the others, and tests what they read.
fn give(root: usize, endpoint: &mut Endpoint, call: usize, count: usize) -> Result<(), Fault> {
    give_as(&broadcast(root), root, endpoint, call, count)
}

fn give_as(
    signature: &Signature,
    root: usize,
    endpoint: &mut Endpoint,
    call: usize,
    count: usize,
) -> Result<(), Fault> {
    let given: Vec<u64> = (0..count).map(|index| value(root, call, index)).collect();
    if endpoint.world().rank() == root {
        return endpoint.step(signature).send_message(None, HostBuf::from(given.as_slice()));
    }
    let mut received = vec![0; count];
    let payloads = endpoint.step(signature).receive_message(None, root, count * size_of::<u64>())?;
    payloads.copy(root, 0, &mut received.as_mut_slice().into())?;
    assert_eq!(received, given, "call {call}");
    Ok(())
}

/// Whether this rank is told, after it has settled its last call, that the calls differed.
fn hears(endpoint: &mut Endpoint) -> bool {
    endpoint.settle().unwrap();
    endpoint.take_differing_late().is_some()
}

/// One rank makes more calls that give data than it has descriptors; then the other one gives.
/// Messages are beside the descriptors or in places of their own.
pub(super) fn one_way() {
    each(processes(SMALL), |mut endpoint| {
        (1..=5).for_each(|call| give(0, &mut endpoint, call, if call % 2 == 0 { 1 } else { TRADED }).unwrap());
        give(1, &mut endpoint, 6, TRADED).unwrap();
        assert!(!hears(&mut endpoint));
        Some(endpoint)
    });
}

/// Messages between calls whose payloads are in swapped places: the third call writes where the
/// data of the first were read, and the fifth where those of the third were.
pub(super) fn one_way_between_sums() {
    each(processes(SMALL), |mut endpoint| {
        for call in [1, 3, 5] {
            sum_of(&mut endpoint, call, TRADED).unwrap();
            give(call / 2 % 2, &mut endpoint, call + 1, TRADED).unwrap();
        }
        assert!(!hears(&mut endpoint));
        Some(endpoint)
    });
}

/// One rank gives where the other takes other data and then leaves, which the first is told of when
/// it takes data that do not come.
pub(super) fn one_way_with_a_mismatch_and_a_leaver() {
    each(processes(SMALL), |mut endpoint| {
        let gather = Signature { kind: Kind::Gather, op: None, root: Some(0), ..SUM };
        if endpoint.world().rank() == 1 {
            let other = Signature { count: Some(7), ..broadcast(0) };
            assert_eq!(give_as(&other, 0, &mut endpoint, 1, 1), Err(Fault::Mismatch));
            return None;
        }
        give(0, &mut endpoint, 1, 1).unwrap();
        let gathered = endpoint.step(&gather).receive_messages(None, [1u64].as_slice().into(), 8).map(drop);
        assert_eq!(gathered, Err(Fault::Left(1)));
        assert!(endpoint.take_differing_late().is_some());
        Some(endpoint)
    });
}

/// The ranks that receive do not wait for each other.
pub(super) fn one_way_of_three() {
    each(processes(THREE), |mut endpoint| {
        (1..=5).for_each(|call| give(0, &mut endpoint, call, 1).unwrap());
        Some(endpoint)
    });
}

/// Two ranks give and one reads what both gave, then windows follow, and then data of one rank.
pub(super) fn one_way_to_one() {
    each(processes(SMALL), |mut endpoint| {
        let gather = Signature { kind: Kind::Gather, op: None, root: Some(1), ..SUM };
        let rank = endpoint.world().rank();
        // The second time payloads end with counts.
        for (call, counts) in [(1, None), (2, Some(&[TRADED; 2][..]))] {
            let own = [value(rank, call, 0); TRADED];
            if rank == 0 {
                endpoint.step(&gather).send_message(counts, own.as_slice().into()).unwrap();
                continue;
            }
            let mut other = [0; TRADED];
            let payloads =
                endpoint.step(&gather).receive_messages(counts, own.as_slice().into(), size_of_val(&own)).unwrap();
            payloads.copy(0, 0, &mut other.as_mut_slice().into()).unwrap();
            assert_eq!(other, [value(0, call, 0); TRADED]);
        }
        let mut long = data(&endpoint, 0, 17);
        sum_published_as(&TO_ONE, &mut endpoint, &mut long, 3).unwrap();
        give(0, &mut endpoint, 4, 1).unwrap();
        sum_published_as(&TO_ONE, &mut endpoint, &mut long, 5).unwrap();
        Some(endpoint)
    });
}

/// One rank gives data where the other sums: the one that gives hears of it later. The next calls
/// agree.
pub(super) fn one_way_with_a_mismatch() {
    each(processes(SMALL), |mut endpoint| {
        if endpoint.world().rank() == 0 {
            give(0, &mut endpoint, 1, TRADED).unwrap();
            assert!(hears(&mut endpoint));
        } else {
            assert_eq!(sum(&mut endpoint, 1), Err(Fault::Mismatch));
            let calls = endpoint.take_differing().expect("one has gone on");
            assert_eq!(calls[0].signature(&[]), Some(Signature { count: None, ..broadcast(0) }));
            assert_eq!(calls[1].signature(&[]), Some(SUM));
        }
        sum_of(&mut endpoint, 2, TRADED).unwrap();
        give(1, &mut endpoint, 3, TRADED).unwrap();
        assert!(!hears(&mut endpoint));
        Some(endpoint)
    });
}

/// The ranks have other counts: the one that gives hears of it later, and both read the same.
pub(super) fn one_way_of_other_counts() {
    each(processes(SMALL), |mut endpoint| {
        let rank = endpoint.world().rank();
        let (counts, given) = ([rank, TRADED], [5u64; TRADED]);
        let scatter = Signature { detail: 1 + rank as u64, count: None, ..broadcast(0) };
        let calls = if rank == 0 {
            endpoint.step(&scatter).send_message(Some(&counts), given.as_slice().into()).unwrap();
            endpoint.settle().unwrap();
            endpoint.take_differing_late()
        } else {
            let received = endpoint.step(&scatter).receive_message(Some(&counts), 0, size_of_val(&given)).map(drop);
            assert_eq!(received, Err(Fault::Mismatch));
            endpoint.take_differing()
        };
        let told = calls.unwrap().into_iter().map(|call| call.counts.unwrap());
        assert_eq!(told.collect::<Vec<_>>(), [[0, TRADED as u64], [1, TRADED as u64]]);
        give(1, &mut endpoint, 2, TRADED).unwrap();
        Some(endpoint)
    });
}

/// Both ranks receive, each from the other.
pub(super) fn one_way_from_nobody() {
    each(processes(SMALL), |mut endpoint| {
        let peer = 1 - endpoint.world().rank();
        assert_eq!(give(peer, &mut endpoint, 1, 1), Err(Fault::Mismatch));
        assert!(endpoint.take_differing().is_some());
        sum(&mut endpoint, 2).unwrap();
        Some(endpoint)
    });
}

/// Rank 0 gives, rank 1 receives, and rank 2 makes another call: all hear of it, two of them later.
pub(super) fn one_way_of_three_with_a_mismatch() {
    each(processes(THREE), |mut endpoint| {
        if endpoint.world().rank() == 2 {
            assert_eq!(sum(&mut endpoint, 1), Err(Fault::Mismatch));
        } else {
            give(0, &mut endpoint, 1, 1).unwrap();
            assert!(hears(&mut endpoint));
        }
        give(1, &mut endpoint, 2, 1).unwrap();
        Some(endpoint)
    });
}

/// Rank 2 expects other data than rank 0 gives: it reads nothing.
pub(super) fn one_way_of_other_data() {
    each(processes(THREE), |mut endpoint| {
        let other = Signature { count: Some(7), ..broadcast(0) };
        if endpoint.world().rank() == 2 {
            assert_eq!(give_as(&other, 0, &mut endpoint, 1, 1), Err(Fault::Mismatch));
        } else {
            give(0, &mut endpoint, 1, 1).unwrap();
            assert!(hears(&mut endpoint));
        }
        give(0, &mut endpoint, 2, 1).unwrap();
        Some(endpoint)
    });
}

/// A rank gives and leaves. The other one has the data, and its next call fails.
pub(super) fn one_way_from_a_leaver() {
    each(processes(SMALL), |mut endpoint| {
        give(0, &mut endpoint, 1, 1).unwrap();
        if endpoint.world().rank() == 0 {
            return None;
        }
        assert_eq!(give(0, &mut endpoint, 2, 1), Err(Fault::Left(0)));
        Some(endpoint)
    });
}

/// A rank gives and does not wait for the other in its next call.
pub(super) fn one_way_with_a_deadline() {
    let mut endpoints = processes(SMALL);
    endpoints[0].set_timeout(Duration::ZERO);
    each(endpoints, |mut endpoint| {
        let result = (1..=5).try_for_each(|call| give(0, &mut endpoint, call, TRADED));
        assert!(result.as_ref().is_err_and(is_deadline) || result.is_ok(), "{result:?}");
        Some(endpoint)
    });
}

/// A rank gives and ends the group. The other rank has the data or hears of the end. Both begin the
/// next generation.
pub(super) fn one_way_and_next_generation() {
    each(processes(SMALL), |mut endpoint| {
        let rank = endpoint.world().rank();
        let end = Fault::Aborted(Abort { rank: 0, reason: Reason::Failure });
        give(0, &mut endpoint, 1, TRADED).unwrap();
        let result = give(0, &mut endpoint, 2, TRADED);
        if rank == 0 {
            result.unwrap();
            endpoint.aborter().abort(Reason::Failure);
        } else {
            assert!(result.is_ok() || result == Err(end), "{result:?}");
            // A rank that had all its data may not know of the end yet.
            while endpoint.aborter().aborted().is_none() {
                loom::thread::yield_now();
            }
        }
        endpoint.renew().unwrap();
        (1..=2).for_each(|call| give(1, &mut endpoint, call, TRADED).unwrap());
        Some(endpoint)
    });
}

/// A rank gives in a group that was split off, and leaves it. The other one reads the data there.
/// The next group may have the same place.
pub(super) fn one_way_in_a_split() {
    each(processes(Shape { splits: 2, ..SMALL }), |mut endpoint| {
        for call in 1..=2 {
            let mut both = endpoint.split(&SUM, &[0, 1]).unwrap().expect("a member");
            give(0, &mut both, call, TRADED).unwrap();
            drop(both);
        }
        Some(endpoint)
    });
}

/// The number of operations of a rank in [`one_way_and_death`], plus one.
pub(super) const GIVER_DEATHS: u32 = 100;

/// The process of a rank that gives dies at any operation. The other rank has the data or learns of
/// the death.
pub(super) fn one_way_and_death() {
    let mut endpoints = processes(SMALL);
    let (mut mortal, mut other) = (endpoints.remove(1), endpoints.remove(0));
    let watcher = other.aborter();
    let dies = loom::thread::spawn(move || {
        fault::die_after(DEATH.get(), || {
            (1..=3).for_each(|call| give(1, &mut mortal, call, TRADED).unwrap());
            drop(mortal);
        })
    });
    let survives = loom::thread::spawn(move || {
        let result = (1..=3).try_for_each(|call| give(1, &mut other, call, TRADED));
        if let Err(fault) = result {
            assert_eq!(fault, Fault::Aborted(Abort { rank: 1, reason: Reason::Death }));
        }
        other
    });
    let died = dies.join().unwrap();
    assert!(!died || DEATH.get() < GIVER_DEATHS, "there are more operations before which it may die");
    watcher.lose(1..2, Reason::Death);
    drop(survives.join().unwrap());
}
