//! Data in blocks of different sizes, one for each rank, between ranks that stage them.
#![cfg(target_os = "linux")]

use consonance_kernels::{
    group::{Endpoint, PeerBuffers, plan::Chunking},
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
    let done = endpoint.published_in_blocks(&signature, send.as_slice().into(), &sent, chunking, collect);
    done.expect("all ranks call the same");
    assert!(recv == expected, "rank {rank} of {size}, {sent:?}");
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
