//! Tests of messages between ranks that share a segment. One thread makes the steps of all ranks:
//! no rank waits for another that comes later.

use crate::{
    digest::digest_counts,
    group::{end::abort::Fault, endpoint::Endpoint, plan::Chunking, staging::RESERVE_BYTES},
    shm::{
        GroupId, Segment, Shape,
        call_log::Outcome,
        records::{FIRST_BYTES, MESSAGE_BYTES, TINY_BYTES},
    },
};
use consonance_spec::{DType, Kind, Signature};
use std::{sync::Arc, time::Duration};

/// The timeout of steps that fail.
const SHORT: Duration = Duration::from_millis(20);

/// Returns the endpoints of a group, each with a mapping of its own.
fn group(ranks: usize, timeout: Duration) -> Vec<Endpoint> {
    let (id, shape) = (GroupId::from_bytes([3; 16]), Shape::new(ranks, 4 * RESERVE_BYTES).unwrap());
    let segment = Segment::create(shape, id).unwrap();
    let endpoint = |rank: usize| {
        let file = segment.file().try_clone_to_owned().unwrap();
        let segment = Arc::new(Segment::open(file, id, shape).unwrap());
        Endpoint::in_segment(&segment, rank..rank + 1, 2, &[], timeout).remove(0)
    };
    (0..ranks).map(endpoint).collect()
}

fn signature(kind: Kind, root: usize, count: usize) -> Signature {
    Signature { dtype: Some(DType::U8), count: Some(count), root: Some(root), ..Signature::new(kind) }
}

fn data(seed: usize, count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 + seed) as u8).collect()
}

fn give(endpoint: &mut Endpoint, signature: &Signature, data: &[u8]) -> Result<(), Fault> {
    endpoint.step(signature).send_message(None, data.into())
}

fn take(endpoint: &mut Endpoint, signature: &Signature, count: usize) -> Result<Vec<u8>, Fault> {
    let (root, mut data) = (signature.root.unwrap(), vec![0u8; count]);
    endpoint.step(signature).receive_message(None, root, count)?.copy(root, 0, &mut data.as_mut_slice().into())?;
    Ok(data)
}

fn outcomes(endpoint: &Endpoint) -> Vec<Outcome> {
    let log = endpoint.member().call_log().unwrap();
    log.read().iter().map(|entry| entry.outcome).collect()
}

#[test]
fn a_giver_waits_for_no_rank_and_a_taker_only_for_the_giver() {
    let sizes = [0, 1, TINY_BYTES, TINY_BYTES + 1, FIRST_BYTES, FIRST_BYTES + 1, 512, 513, 4096, MESSAGE_BYTES];
    for ranks in [2, 3, 5] {
        let mut ends = group(ranks, SHORT);
        for (call, &count) in sizes.iter().chain(&sizes).enumerate() {
            let root = call % ranks;
            let (signature, given) = (signature(Kind::Broadcast, root, count), data(call, count));
            give(&mut ends[root], &signature, &given).unwrap();
            for rank in (0..ranks).filter(|&rank| rank != root) {
                assert_eq!(take(&mut ends[rank], &signature, count), Ok(given.clone()), "{count} bytes, rank {rank}");
            }
        }
        let last_root = (2 * sizes.len() - 1) % ranks;
        for endpoint in &mut ends {
            // The one that receives from its only peer has compared all.
            assert_eq!(endpoint.is_unsettled(), ranks > 2 || endpoint.world().rank() == last_root);
            endpoint.settle().unwrap();
            assert!(!endpoint.is_unsettled() && endpoint.take_differing_late().is_none());
        }
    }
}

#[test]
fn a_rank_taking_from_all_waits_for_all() {
    let mut ends = group(3, SHORT);
    let gather = signature(Kind::Gather, 1, 100);
    for call in 0..6 {
        for rank in [2, 0] {
            give(&mut ends[rank], &gather, &data(rank + call, 100)).unwrap();
        }
        let (own, mut parts) = (data(1 + call, 100), vec![vec![0; 100]; 3]);
        let payloads = ends[1].step(&gather).receive_messages(None, own.as_slice().into(), 100).unwrap();
        for rank in [0, 2] {
            payloads.copy(rank, 0, &mut parts[rank].as_mut_slice().into()).unwrap();
            assert_eq!(parts[rank], data(rank + call, 100));
        }
    }
    give(&mut ends[0], &gather, &data(0, 100)).unwrap();
    let late = ends[1].step(&gather).receive_messages(None, data(1, 100).as_slice().into(), 100).map(drop);
    assert_eq!(late, Err(Fault::Missing(vec![2])));
}

#[test]
fn a_giver_is_at_most_one_call_ahead() {
    let mut ends = group(3, SHORT);
    let signature = signature(Kind::Broadcast, 0, 3);
    give(&mut ends[0], &signature, &[1, 2, 3]).unwrap();
    take(&mut ends[2], &signature, 3).unwrap();
    assert_eq!(give(&mut ends[0], &signature, &[4, 5, 6]), Err(Fault::Missing(vec![1])));
    assert_eq!(outcomes(&ends[0]), [Outcome::Done, Outcome::Missing], "the second call waited for the first");
    // The given data are there, though the group has ended.
    let abort = ends[0].aborter().aborted().unwrap();
    assert_eq!(take(&mut ends[1], &signature, 3), Err(Fault::Aborted(abort)));
}

#[test]
fn data_leave_before_the_call_before_is_settled() {
    let mut ends = group(2, Duration::from_secs(20));
    let (broadcast, other) = (signature(Kind::Broadcast, 0, 3), signature(Kind::Broadcast, 0, 4));
    give(&mut ends[0], &broadcast, &[1, 2, 3]).unwrap();
    let (giver, taker) = ends.split_at_mut(1);
    std::thread::scope(|scope| {
        // Waits for the other rank at the first call, whose count is another there.
        let second = scope.spawn(|| {
            give(&mut giver[0], &broadcast, &[4, 5, 6]).unwrap();
            giver[0].take_differing_late().is_some()
        });
        let number = taker[0].participant.meeting.sequence + 2;
        while !taker[0].member().records()[0].descriptor(number).arrived(number) {
            std::thread::yield_now();
        }
        assert!(!second.is_finished());
        assert_eq!(take(&mut taker[0], &other, 4), Err(Fault::Mismatch));
        assert_eq!(take(&mut taker[0], &broadcast, 3), Ok(vec![4, 5, 6]));
        assert!(second.join().unwrap());
    });
    assert!(ends.iter().all(|endpoint| outcomes(endpoint) == [Outcome::Mismatch, Outcome::Done]));
}

#[test]
fn a_meeting_step_settles_earlier_gifts() {
    let mut ends = group(2, SHORT);
    let barrier = Signature::new(Kind::Barrier);
    let broadcast = signature(Kind::Broadcast, 0, 1);
    give(&mut ends[0], &broadcast, &[1]).unwrap();
    let late = ends[0].step(&barrier).exchange(None).map(drop);
    assert_eq!(late, Err(Fault::Missing(vec![1])));
    let mut ends = group(2, SHORT);
    give(&mut ends[0], &broadcast, &[1]).unwrap();
    let chunking = Chunking::one_way(100, 1);
    let late = ends[0].step(&broadcast).published(Some([7u8; 100].as_slice().into()), chunking, |_| Ok(()));
    assert_eq!(late, Err(Fault::Missing(vec![1])));
}

#[test]
fn all_ranks_hear_the_same_of_different_calls() {
    let mut ends = group(4, SHORT);
    let (given, other) = (signature(Kind::Broadcast, 0, 3), signature(Kind::Broadcast, 0, 4));
    give(&mut ends[0], &given, &[1, 2, 3]).unwrap();
    take(&mut ends[1], &given, 3).unwrap();
    give(&mut ends[2], &signature(Kind::Scatter, 2, 1), &[0; 4]).unwrap();
    assert_eq!(take(&mut ends[3], &other, 4), Err(Fault::Mismatch));
    assert!(!ends[3].is_unsettled());
    let calls = ends[3].take_differing().unwrap();
    let expected = [given, given, signature(Kind::Scatter, 2, 1), other];
    assert!(calls.iter().all(|call| call.refusal.is_none()));
    assert_eq!(calls.iter().map(|call| call.signature(&[])).collect::<Vec<_>>(), expected.map(Some));
    for endpoint in &mut ends[..3] {
        endpoint.settle().unwrap();
        assert_eq!(endpoint.take_differing_late().as_ref(), Some(&calls));
        assert_eq!(outcomes(endpoint), [Outcome::Mismatch]);
    }
    // The group goes on.
    give(&mut ends[3], &signature(Kind::Broadcast, 3, 1), &[9]).unwrap();
    for endpoint in &mut ends[..3] {
        assert_eq!(take(endpoint, &signature(Kind::Broadcast, 3, 1), 1), Ok(vec![9]));
        assert_eq!(endpoint.take_differing_late(), None);
    }
}

#[test]
fn counts_travel_behind_the_data_and_a_mismatch_reports_them() {
    for (ranks, part) in [(2, 1), (2, 300), (3, 5), (5, 9), (5, 700), (12, 300)] {
        let counts: Vec<usize> = (0..ranks).map(|rank| if rank == 1 { 0 } else { part + rank }).collect();
        let start = |rank: usize| counts[..rank].iter().sum::<usize>();
        let mut ends = group(ranks, SHORT);
        let of =
            |kind, counts: &[usize]| Signature { detail: digest_counts(counts), count: None, ..signature(kind, 0, 0) };
        let (scatter, gather) = (of(Kind::Scatter, &counts), of(Kind::Gather, &counts));
        let scattered = data(ranks, start(ranks));
        ends[0].step(&scatter).send_message(Some(&counts), scattered.as_slice().into()).unwrap();
        for rank in 1..ranks {
            let mut own = vec![0; counts[rank]];
            let expected = scattered.len();
            let payloads = ends[rank].step(&scatter).receive_message(Some(&counts), 0, expected).unwrap();
            payloads.copy(0, start(rank), &mut own.as_mut_slice().into()).unwrap();
            assert_eq!(own, scattered[start(rank)..][..counts[rank]]);
        }
        for rank in 1..ranks {
            let own = data(rank, counts[rank]);
            ends[rank].step(&gather).send_message(Some(&counts), own.as_slice().into()).unwrap();
        }
        let own = data(0, counts[0]);
        let payloads = ends[0].step(&gather).receive_messages(Some(&counts), own.as_slice().into(), part).unwrap();
        for (rank, &count) in counts.iter().enumerate().skip(1) {
            let mut other = vec![0; count];
            payloads.copy(rank, 0, &mut other.as_mut_slice().into()).unwrap();
            assert_eq!(other, data(rank, count));
        }
        let wrong: Vec<usize> = counts.iter().rev().copied().collect();
        ends[0].step(&scatter).send_message(Some(&counts), scattered.as_slice().into()).unwrap();
        for (rank, endpoint) in ends.iter_mut().enumerate().skip(1) {
            let last = rank + 1 == ranks;
            let counts = if last { &wrong } else { &counts };
            let received = endpoint.step(&of(Kind::Scatter, counts)).receive_message(Some(counts), 0, 100).map(drop);
            assert_eq!(received, if last { Err(Fault::Mismatch) } else { Ok(()) });
        }
        let told = ends[ranks - 1].take_differing().unwrap();
        let words = |counts: &[usize]| Some(counts.iter().map(|&count| count as u64).collect::<Vec<_>>());
        assert!(told[..ranks - 1].iter().all(|call| call.counts == words(&counts)));
        assert_eq!(told[ranks - 1].counts, words(&wrong));
        for endpoint in &mut ends[..ranks - 1] {
            endpoint.settle().unwrap();
            assert_eq!(endpoint.take_differing_late().as_ref(), Some(&told));
        }
    }
}

#[test]
fn a_rank_says_why_its_own_call_is_invalid() {
    for why in ["a root that is no rank", "", &"ä".repeat(MESSAGE_BYTES)] {
        for ranks in [2, 3] {
            let mut ends = group(ranks, SHORT);
            let broadcast = signature(Kind::Broadcast, 0, 1);
            give(&mut ends[0], &broadcast, &[1]).unwrap();
            (2..ranks).for_each(|rank| _ = take(&mut ends[rank], &broadcast, 1).unwrap());
            let refused = Signature { detail: 1, ..Signature::new(Kind::Broadcast) };
            assert_eq!(ends[1].step(&refused).refuse(why), Err(Fault::Mismatch));
            let calls = ends[1].take_differing().unwrap();
            let told = calls[1].refusal.as_ref().unwrap();
            assert!(why.starts_with(told.as_str()) && (told == why || told.len() == MESSAGE_BYTES));
            ends[0].settle().unwrap();
            assert_eq!(ends[0].take_differing_late(), Some(calls));
        }
    }
}

#[test]
fn meeting_ranks_do_not_read_their_calls_in_descriptors() {
    let (mut first, mut second) = (group(2, Duration::from_secs(20)), Vec::new());
    second.push(first.remove(1));
    let call = |endpoint: &mut Endpoint, kind| {
        let result = endpoint.step(&Signature::new(kind)).exchange(None).map(drop);
        (result, endpoint.take_differing())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| call(&mut second[0], Kind::Barrier));
        assert_eq!(call(&mut first[0], Kind::Split), (Err(Fault::Mismatch), None));
        assert_eq!(other.join().unwrap(), (Err(Fault::Mismatch), None));
    });
}
