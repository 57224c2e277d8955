//! Tests of ranks that share a segment, each with a mapping of its own.

use crate::{
    cpu::{
        copy::copy_own,
        reduce::{Accumulation, Reducer},
    },
    group::{
        Holdings, Last, OwnHoldings,
        end::abort::Fault,
        endpoint::Endpoint,
        payloads::Payloads,
        peers::PeerBuffers,
        plan::{Chunking, Targets},
        staging::{BufferRef, RESERVE_BYTES, Shown},
    },
    memory::HostMemory,
    shm::{GroupId, Segment, Shape},
};
use consonance_spec::{DType, Kind, ReduceOp, Signature, partition};
use std::{process, ptr, sync::Arc, thread, time::Duration};

/// Whether ranks try to read each other's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    No,
    All,
    /// All but the first rank, which does not know its peers' processes.
    AllButOne,
}

const READS: [Reads; 3] = [Reads::No, Reads::All, Reads::AllButOne];

/// Runs `body` on each rank of a group that shares a segment, each rank with a mapping of its own.
fn each<R: Send>(ranks: usize, reads: Reads, body: impl Fn(Endpoint) -> R + Sync) -> Vec<R> {
    let (id, shape) = (GroupId::from_bytes([3; 16]), Shape::new(ranks, 4 * RESERVE_BYTES).unwrap());
    let segment = Segment::create(shape, id).unwrap();
    thread::scope(|scope| {
        let ranks = (0..ranks).map(|rank| {
            let (body, file) = (&body, segment.file().try_clone_to_owned().unwrap());
            let processes = match reads {
                Reads::All => vec![process::id(); ranks],
                Reads::AllButOne if rank > 0 => vec![process::id(); ranks],
                _ => Vec::new(),
            };
            scope.spawn(move || {
                let segment = Arc::new(Segment::open(file, id, shape).unwrap());
                let local = rank..rank + 1;
                body(Endpoint::in_segment(&segment, local, 2, &processes, Duration::from_secs(20)).remove(0))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn signature(kind: Kind, op: Option<ReduceOp>, dtype: DType) -> Signature {
    Signature { op, dtype: Some(dtype), ..Signature::new(kind) }
}

fn input(rank: usize, count: usize) -> Vec<u32> {
    (0..count).map(|index| (index * 7 + rank * 1_000_003) as u32).collect()
}

#[test]
fn parts_are_read_where_they_lie_or_where_they_are_put_up() {
    for (ranks, reads) in [2, 3].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
        let counts = [1, 20, 3000, 17_000, 200_000];
        let results = each(ranks, reads, |mut endpoint| {
            let rank = endpoint.world().rank();
            let signature = signature(Kind::AllGather, None, DType::U32);
            let mut all = Vec::new();
            for (generation, count) in (0..3).flat_map(|generation| counts.map(|count| (generation, count))) {
                let own = input(rank + generation, count + rank);
                let mut memory = endpoint.alloc(DType::U32, own.len()).unwrap();
                copy_own(own.as_slice().into(), &mut memory.as_buf_mut());
                let is_shared = generation > rank % 2;
                let send = if is_shared { memory.as_buf() } else { own.as_slice().into() };
                let mut parts: Vec<Vec<u32>> = (0..ranks).map(|peer| vec![0; count + peer]).collect();
                let copy = |peers: &mut PeerBuffers<'_>| {
                    let mut parts = parts.iter_mut().enumerate();
                    parts.try_for_each(|(peer, part)| peers.copy(peer, 0..part.len(), &mut part.as_mut_slice().into()))
                };
                endpoint.step(&signature).published(Some(send), Chunking::WHOLE, copy).unwrap();
                // Data that the others have read can be written again.
                memory.as_buf_mut().into_mut_slice::<u32>().unwrap().fill(7);
                all.push((generation, count, parts));
            }
            all
        });
        for (generation, count, parts) in results.into_iter().flatten() {
            let expected = (0..ranks).map(|peer| input(peer + generation, count + peer));
            assert!(expected.eq(parts), "{count} in generation {generation} of {ranks} ranks, {reads:?}");
        }
    }
}

#[test]
fn blocks_of_unknown_sizes_are_read_in_place_or_staged() {
    for (ranks, reads) in [1, 2, 3].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
        each(ranks, reads, |mut endpoint| {
            let rank = endpoint.world().rank();
            let signature = signature(Kind::AllToAll, None, DType::U32);
            let counts = [3000, 9000, 17_000, 40_000, 200_000];
            for (generation, count) in (0..3).flat_map(|generation| counts.map(|count| (generation, count))) {
                let block = |from: usize, to: usize| count + 100 * from + to;
                let start = |from: usize, to: usize| (0..to).map(|to| block(from, to)).sum::<usize>();
                let sent: Vec<usize> = (0..ranks).map(|to| block(rank, to)).collect();
                let own = input(rank + generation, sent.iter().sum());
                let mut memory = endpoint.alloc(DType::U32, own.len()).unwrap();
                copy_own(own.as_slice().into(), &mut memory.as_buf_mut());
                let is_shared = generation > rank % 2;
                let send = if is_shared { memory.as_buf() } else { own.as_slice().into() };
                let mut parts: Vec<Vec<u32>> = (0..ranks).map(|from| vec![0; block(from, rank)]).collect();
                let copy = |peers: &mut PeerBuffers<'_>| {
                    let mut parts = parts.iter_mut().enumerate();
                    parts.try_for_each(|(from, part)| {
                        peers.copy_block(from, start(from, rank), &mut part.as_mut_slice().into())
                    })
                };
                let most = block(ranks - 1, ranks - 1);
                let agree = |payloads: &Payloads<'_>| {
                    let mut told = [0];
                    let mut peers = (0..ranks).filter(|&peer| peer != rank);
                    peers.try_for_each(|peer| {
                        payloads.words(peer, &mut told)?;
                        assert_eq!(told, [peer as u64], "the word of rank {peer}");
                        Ok(())
                    })?;
                    Ok::<_, Fault>(Some(most))
                };
                let published =
                    endpoint.step(&signature).published_with_words(&[rank as u64], (send, &sent), agree, copy);
                assert_eq!(published, Ok(true));
                // Data that the others have read can be written again.
                memory.as_buf_mut().into_mut_slice::<u32>().unwrap().fill(7);
                for (from, part) in parts.into_iter().enumerate() {
                    let sent = input(from + generation, start(from, ranks));
                    let found = part == sent[start(from, rank)..][..block(from, rank)];
                    assert!(found, "{count} from rank {from} in generation {generation} of {ranks} ranks, {reads:?}");
                }
            }
        });
    }
}

#[test]
fn data_of_one_way_move_through_their_slots() {
    for (ranks, reads) in [2, 3].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
        each(ranks, reads, |mut endpoint| {
            let rank = endpoint.world().rank();
            for generation in 0..60 {
                let (root, count) = (generation % ranks, [1300, 4000, 17_000, 2000, 75_000][generation / 2 % 5]);
                let chunking = Chunking::one_way(4 * count, 1);
                let is_broadcast = generation % 7 < 4;
                let (kind, has_data) = match is_broadcast {
                    true => (Kind::Broadcast, rank == root),
                    false => (Kind::Gather, rank != root),
                };
                let own = input(rank + generation, count);
                // Now and then in memory that others can read.
                let mut memory = (generation % 5 == 0).then(|| endpoint.alloc(DType::U32, count).unwrap());
                if let Some(memory) = &mut memory {
                    copy_own(own.as_slice().into(), &mut memory.as_buf_mut());
                }
                let send = memory.as_ref().map_or_else(|| own.as_slice().into(), HostMemory::as_buf);
                let mut parts = vec![vec![0u32; count]; ranks];
                let reads_from = |peer: usize| match is_broadcast {
                    true => rank != root && peer == root,
                    false => rank == root && peer != root,
                };
                let copy = |peers: &mut PeerBuffers<'_>| {
                    let mut parts = parts.iter_mut().enumerate().filter(|(peer, _)| reads_from(*peer));
                    parts.try_for_each(|(peer, part)| peers.copy(peer, 0..count, &mut part.as_mut_slice().into()))
                };
                let signature = Signature { root: Some(root), ..signature(kind, None, DType::U32) };
                endpoint.step(&signature).published(has_data.then_some(send), chunking, copy).unwrap();
                for (peer, part) in parts.iter().enumerate().filter(|(peer, _)| reads_from(*peer)) {
                    assert!(
                        *part == input(peer + generation, count),
                        "{kind:?} of {count} in generation {generation}, {reads:?}"
                    );
                }
            }
        });
    }
}

#[test]
fn every_buffer_reference_reads_back() {
    let places = [None, Some(Shown::Heap(0)), Some(Shown::Heap(1 << 40)), Some(Shown::Own(0x7fff_1234_5678))];
    for told in places.into_iter().flat_map(|place| [false, true].map(|reads| BufferRef { place, reads })) {
        assert_eq!(BufferRef::read(told.to_word::<u8>()), told);
    }
    assert_eq!(BufferRef::read(ptr::null::<u8>()), BufferRef { place: None, reads: false });
}

#[test]
fn a_block_for_each_of_more_ranks_than_a_slot_has_slices() {
    let (id, shape) = (GroupId::from_bytes([3; 16]), Shape::new(513, 4 * RESERVE_BYTES).unwrap());
    let segment = Arc::new(Segment::create(shape, id).unwrap());
    let ranks = shape.ranks();
    let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
    let signature = signature(Kind::ReduceScatter, Some(ReduceOp::Sum), DType::U32);
    thread::scope(|scope| {
        for mut endpoint in Endpoint::in_segment(&segment, 0..ranks, 2, &[], Duration::from_secs(60)) {
            let (reducer, signature) = (&reducer, &signature);
            scope.spawn(move || {
                let rank = endpoint.world().rank();
                let mut data = input(rank, ranks);
                endpoint
                    .step(signature)
                    .divided(reducer, None, Some(data.as_mut_slice().into()), Targets::Own)
                    .unwrap();
                let sum = (0..ranks).map(|peer| input(peer, ranks)[rank]).fold(0, u32::wrapping_add);
                assert_eq!(data[rank], sum);
            });
        }
    });
}

/// In turn the memory of no rank, of some and of all can be read by the others.
#[test]
fn contributions_of_any_number_are_folded_where_all_reach_them() {
    let runs = [vec![0..3, 3..5], vec![0..1, 1..1, 1..8], vec![0..2, 2..3, 3..3, 3..4, 4..9]];
    for (runs, generation) in runs.iter().flat_map(|runs| (0..3).map(move |generation| (runs, generation))) {
        let (ranks, of) = (runs.len(), runs.last().unwrap().end);
        each(ranks, Reads::No, |mut endpoint| {
            let rank = endpoint.world().rank();
            let run = runs[rank].clone();
            let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
            for (targets, count) in [Targets::All, Targets::Root(ranks - 1), Targets::Own]
                .into_iter()
                .flat_map(|targets| [0, 60, 16_380, 120_000].map(|count| (targets, count)))
            {
                let (kind, root) = match targets {
                    Targets::All => (Kind::AllReduce, None),
                    Targets::Root(root) => (Kind::Reduce, Some(root)),
                    Targets::Own => (Kind::ReduceScatter, None),
                };
                let signature = Signature { root, ..signature(kind, Some(ReduceOp::Sum), DType::U32) };
                let bytes = Accumulation::bytes(&reducer, count, run.clone(), of).unwrap();
                let memory = endpoint.alloc(DType::U8, bytes).unwrap();
                let mut sum = Accumulation::new(reducer, count, run.clone(), of, memory);
                (run.start..run.end.saturating_sub(1)).for_each(|leaf| sum.add(input(leaf, count).as_slice().into()));
                let is_shared = generation > rank % 2;
                let mut own = input(run.end.wrapping_sub(1), count);
                let mut memory = is_shared.then(|| endpoint.alloc(DType::U32, count).unwrap());
                if let Some(memory) = &mut memory {
                    copy_own(own.as_slice().into(), &mut memory.as_buf_mut());
                }
                let before = own.clone();
                let data = memory.as_mut().map_or_else(|| own.as_mut_slice().into(), HostMemory::as_buf_mut);
                let last = match targets {
                    Targets::Root(root) if root != rank => Last::ToRead(data.into_buf()),
                    Targets::All | Targets::Own | Targets::Root(_) => Last::InPlace(data),
                };
                let held = Some(OwnHoldings { nodes: sum.values(), last });
                let holdings = Holdings::new(&reducer, of, runs.iter().cloned()).unwrap();
                let mut told = Vec::new();
                let step = endpoint.step(&signature);
                let made = step
                    .divided_holdings((&reducer, count, targets), run.clone(), held, &mut told, |told| {
                        assert_eq!(told, runs);
                        Some(&holdings)
                    })
                    .unwrap();
                // A rank that has nothing and receives nothing shows nothing.
                let is_idle =
                    |rank: usize| matches!(targets, Targets::Root(root) if root != rank && runs[rank].is_empty());
                let are_reached = (0..ranks).all(|rank| generation > rank % 2 || is_idle(rank));
                assert_eq!(made, are_reached && count > 0, "{targets:?} of {count} in generation {generation}");
                if let Some(memory) = memory {
                    own.copy_from_slice(memory.as_buf().as_slice().unwrap());
                }
                let received = match targets {
                    _ if !made => 0..0,
                    Targets::All => 0..count,
                    Targets::Root(root) => 0..if root == rank { count } else { 0 },
                    Targets::Own => partition::block(count, ranks, rank),
                };
                let sum = |at: usize| (0..of).fold(0u32, |sum, leaf| sum.wrapping_add(input(leaf, count)[at]));
                let ends = [received.start, received.end.saturating_sub(1)];
                let expected = |at: usize| if received.contains(&at) { sum(at) } else { before[at] };
                assert!(ends.iter().all(|&at| at >= count || own[at] == expected(at)), "{targets:?} of {count}");
                let rest = (0..count).filter(|at| !received.contains(at));
                assert!(rest.into_iter().all(|at| own[at] == before[at]), "{targets:?} of {count}");
            }
        });
    }
}

#[test]
fn sums_of_any_size_in_any_memory() {
    // Some are large and even for each number of ranks.
    let sizes = [0, 1, 33, 2048, 2049, 16_384, 16_385, 120_000, 262_144];
    for (ranks, reads) in [1, 2, 3, 5].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
        let results = each(ranks, reads, |mut endpoint| {
            let rank = endpoint.world().rank();
            let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
            let signature = signature(Kind::AllReduce, Some(ReduceOp::Sum), DType::U32);
            let mut sums = Vec::new();
            for generation in 0..5 {
                for targets in [Targets::All, Targets::Root(ranks - 1), Targets::Own] {
                    for count in sizes {
                        // In turn the memory of no rank, of some and of all can be read by the
                        // others.
                        let is_shared = generation % 3 > rank % 2;
                        let mut data = input(rank + generation, count);
                        let mut memory = is_shared.then(|| endpoint.alloc(DType::U32, count).unwrap());
                        if let Some(memory) = &mut memory {
                            copy_own(data.as_slice().into(), &mut memory.as_buf_mut());
                        }
                        let apart = (generation % 2 == 1).then(|| data.clone());
                        let send = apart.as_ref().map(|apart| apart.as_slice().into());
                        let recv = memory.as_mut().map_or_else(|| data.as_mut_slice().into(), HostMemory::as_buf_mut);
                        endpoint.step(&signature).divided(&reducer, send, Some(recv), targets).unwrap();
                        if let Some(memory) = memory {
                            data.copy_from_slice(memory.as_buf().as_slice().unwrap());
                        }
                        sums.push((targets, generation, count, data));
                    }
                }
            }
            let can = endpoint.member().is_readable([0u8].as_ptr());
            assert_eq!(endpoint.topology().reads, reads == Reads::All && ranks > 1 && can);
            sums
        });
        for (rank, sums) in results.into_iter().enumerate() {
            for (targets, generation, count, found) in sums {
                let mut sum = vec![0u32; count];
                for rank in 0..ranks {
                    let values = input(rank + generation, count).into_iter();
                    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
                }
                let received = match targets {
                    Targets::All => 0..count,
                    Targets::Root(root) => 0..if root == rank { count } else { 0 },
                    Targets::Own => partition::block(count, ranks, rank),
                };
                let mut expected = input(rank + generation, count);
                expected[received.clone()].copy_from_slice(&sum[received]);
                assert!(
                    expected == found,
                    "{targets:?} of {count} in generation {generation}, rank {rank} of {ranks}, {reads:?}"
                );
            }
        }
    }
}
