//! Data in blocks of different sizes, one for each rank, between ranks that stage them.
#![cfg(target_os = "linux")]

use consonance_kernels::{
    group::{Endpoint, Fault, Payloads, PeerBuffers, plan::Chunking},
    shm::{GroupId, Segment, Shape},
};
use consonance_spec::{DType, Kind, Signature};
use std::{sync::Arc, thread, time::Duration};

/// The element at `index` of the block from `from` to `to`.
fn element(from: usize, to: usize, index: usize) -> u32 {
    (from << 28 | to << 24 | index) as u32
}

/// Exchanges blocks: rank `from` has `counts(from, to)` elements for rank `to`.
fn exchange(endpoint: &mut Endpoint, counts: impl Fn(usize, usize) -> usize) {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    let ranks = || 0..size;
    let sent: Vec<usize> = ranks().map(|to| counts(rank, to)).collect();
    let block = |from: usize, to: usize| (0..counts(from, to)).map(move |index| element(from, to, index));
    let send: Vec<u32> = ranks().flat_map(|to| block(rank, to)).collect();
    let expected: Vec<u32> = ranks().flat_map(|from| block(from, rank)).collect();
    let mut recv = vec![u32::MAX; expected.len()];
    let others = ranks().flat_map(|from| ranks().filter(move |&to| to != from).map(move |to| (from, to)));
    let largest = others.map(|(from, to)| counts(from, to)).max().unwrap_or(0);
    let signature = Signature { dtype: Some(DType::U32), ..Signature::new(Kind::AllToAll) };
    let collect = |peers: &mut PeerBuffers<'_>| {
        let mut place = 0;
        ranks().try_for_each(|from| {
            let (start, count) = (ranks().take(rank).map(|to| counts(from, to)).sum(), counts(from, rank));
            let part = &mut recv[place..place + count];
            place += count;
            peers.copy_block(from, start, &mut part.into())
        })
    };
    let chunking = Chunking::blocks(size, size * largest * size_of::<u32>());
    let done = endpoint.step(&signature).published_in_blocks(send.as_slice().into(), &sent, chunking, collect);
    done.expect("all ranks call the same");
    assert!(recv == expected, "rank {rank} of {size}, {sent:?}");
}

/// The same, where no rank knows the counts of the others: they tell them with their data.
fn exchange_unknown(endpoint: &mut Endpoint, counts: impl Fn(usize, usize) -> usize) {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    let ranks = || 0..size;
    let sent = |from: usize| ranks().map(|to| counts(from, to)).collect::<Vec<_>>();
    let block = |from: usize, to: usize| (0..counts(from, to)).map(move |index| element(from, to, index));
    let send: Vec<u32> = ranks().flat_map(|to| block(rank, to)).collect();
    let expected: Vec<u32> = ranks().filter(|&from| from != rank).flat_map(|from| block(from, rank)).collect();
    let signature = Signature { dtype: Some(DType::U32), ..Signature::new(Kind::AllToAll) };
    let topology = endpoint.topology();
    let rides = |from: usize| topology.rides_before(size, sent(from).iter().sum::<usize>() * size_of::<u32>());
    let start = |from: usize| ranks().take(rank).map(|to| counts(from, to)).sum::<usize>();
    let others = ranks().flat_map(|from| ranks().filter(move |&to| to != from).map(move |to| (from, to)));
    let largest = others.map(|(from, to)| counts(from, to)).max().unwrap_or(0);
    let mut recv = vec![u32::MAX; expected.len()];
    let words: Vec<u64> = sent(rank).into_iter().map(|count| count as u64).collect();
    let check = |payloads: &Payloads<'_>| {
        for from in ranks().filter(|&from| from != rank) {
            let mut told = vec![0; size];
            payloads.words(from, &mut told)?;
            assert!(told.iter().copied().eq(sent(from).into_iter().map(|count| count as u64)), "counts of rank {from}");
        }
        Ok::<_, Fault>(())
    };
    let is_published = if rides(rank) {
        let payloads = endpoint.step(&signature).exchange_with_words(&words, send.as_slice().into()).unwrap();
        check(&payloads).unwrap();
        if !ranks().all(rides) {
            return;
        }
        let mut rest = &mut *recv;
        for from in ranks().filter(|&from| from != rank) {
            let part = rest.split_off_mut(..counts(from, rank)).unwrap();
            payloads.copy(from, start(from), &mut part.into()).unwrap();
        }
        true
    } else {
        let agree = |payloads: &Payloads<'_>| check(payloads).map(|()| (!ranks().any(rides)).then_some(largest));
        let collect = |peers: &mut PeerBuffers<'_>| {
            let mut rest = &mut *recv;
            ranks().filter(|&from| from != rank).try_for_each(|from| {
                let part = rest.split_off_mut(..counts(from, rank)).unwrap();
                peers.copy_block(from, start(from), &mut part.into())
            })
        };
        endpoint
            .step(&signature)
            .published_with_words(&words, (send.as_slice().into(), &sent(rank)), agree, collect)
            .unwrap()
    };
    assert_eq!(is_published, ranks().all(|from| rides(from) == rides(rank)));
    assert!(!is_published || recv == expected, "rank {rank} of {size}, {:?}", sent(rank));
}

/// The sizes lie around those at which a rank has one window more, and at which its data fit before
/// its counts. The group goes on after a step in which only some ranks had few data.
#[test]
fn blocks_of_unknown_sizes_reach_their_ranks() {
    let small = 256 << 10;
    let sizes = [(2, small), (2, Shape::STAGING_BYTES), (3, small), (9, small), (9, Shape::STAGING_BYTES)];
    let groups = sizes.map(|(ranks, staging)| {
        let segment = Segment::create(Shape::new(ranks, staging).expect("a few ranks"), GroupId::from_bytes([3; 16]));
        Endpoint::in_segment(&Arc::new(segment.expect("a segment")), 0..ranks, 2, &[], Duration::from_secs(60))
    });
    for group in groups.into_iter().chain([Endpoint::group(3, Duration::from_secs(60))]) {
        let ranks = group.len();
        thread::scope(|scope| {
            for mut endpoint in group {
                scope.spawn(move || {
                    for largest in [2usize, 2030, 4090, 16_384, 16_390, 20_490, 32_768, 70_000, 300_000] {
                        exchange_unknown(&mut endpoint, |from, to| largest.saturating_sub(from + 7 * to));
                        exchange_unknown(&mut endpoint, |from, to| if (from + 1) % ranks == to { largest } else { 0 });
                        exchange_unknown(&mut endpoint, |from, to| if from == to { largest } else { 1 });
                        exchange_unknown(&mut endpoint, |from, _| if from == 0 { largest } else { 1 });
                        exchange(&mut endpoint, |from, to| from + to);
                    }
                });
            }
        });
    }
}

#[test]
fn blocks_of_any_sizes_reach_their_ranks() {
    let small = 256 << 10;
    for (ranks, staging) in [(1, small), (2, small), (2, Shape::STAGING_BYTES), (3, small), (9, small)] {
        let segment = Segment::create(Shape::new(ranks, staging).expect("a few ranks"), GroupId::from_bytes([3; 16]));
        let segment = Arc::new(segment.expect("a segment"));
        let group = Endpoint::in_segment(&segment, 0..ranks, 2, &[], Duration::from_secs(60));
        thread::scope(|scope| {
            for mut endpoint in group {
                scope.spawn(move || {
                    for round in 0..3 {
                        exchange(&mut endpoint, |from, to| 1000 * from + 37 * to + round);
                        exchange(&mut endpoint, |from, to| if from == to { 100_000 } else { 1 + round });
                        exchange(&mut endpoint, |from, to| if from == to { 5 } else { 0 });
                        exchange(&mut endpoint, |from, to| if (from + 1) % ranks == to { 70_001 } else { 0 });
                        exchange(&mut endpoint, |from, _| if from == 0 { 3000 } else { 0 });
                    }
                });
            }
        });
    }
}
