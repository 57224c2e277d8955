//! Tests of a rank whose peer in another process writes any values to any place of their shared
//! memory. The rank's result may be wrong, or an error in time. It does not crash, wait without end
//! or allocate memory without bound.

use super::{
    end::abort::{Abort, Fault, Reason},
    endpoint::Endpoint,
    payloads::Payloads,
    peers::PeerBuffers,
    plan::{Chunking, StepKind, Targets},
    post::{Arrival, Inline},
    posted_call::PostedCall,
    sharing::Sharing,
    staging::{BufferRef, Shown},
    transport::{Holdings, Input, Last, OwnHoldings, in_windows},
};
use crate::{
    cpu::reduce::{Node, Reducer, Source},
    memory::HostMemory,
    shm::{GroupId, Segment, Shape, codes::Access, records::Counters},
    tuning::Tuning,
};
use consonance_spec::{DType, Kind, ReduceOp, Signature};
use std::{
    ops::Range,
    ptr,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// The timeout of the calls.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Limit on the time of a call on a busy machine, if its waits are bounded by [`TIMEOUT`].
const BOUND: Duration = Duration::from_secs(10);

fn shape(ranks: usize) -> Shape {
    Shape::new(ranks, Shape::STAGING_BYTES).unwrap()
}

/// Makes the segment of a group of `ranks` ranks.
fn segment(ranks: usize) -> Arc<Segment> {
    Arc::new(Segment::create(shape(ranks), GroupId::from_bytes([3; 16])).unwrap())
}

/// Maps the same segment again, as another process does.
fn elsewhere(segment: &Segment) -> Arc<Segment> {
    let file = segment.file().try_clone_to_owned().unwrap();
    Arc::new(Segment::open(file, segment.id(), segment.shape()).unwrap())
}

fn endpoint(segment: &Arc<Segment>, rank: usize, timeout: Duration) -> Endpoint {
    Endpoint::in_segment(segment, rank..rank + 1, 2, &[], timeout).remove(0)
}

/// Returns a victim, rank 0, and a liar, rank 1, each with a mapping of its own.
fn two() -> (Endpoint, Endpoint) {
    let segment = segment(2);
    let other = elsewhere(&segment);
    (endpoint(&segment, 0, TIMEOUT), endpoint(&other, 1, BOUND))
}

fn signature(kind: Kind, dtype: DType) -> Signature {
    Signature { dtype: Some(dtype), ..Signature::new(kind) }
}

/// Returns the number of the endpoint's last call.
fn last_call(endpoint: &Endpoint) -> u64 {
    endpoint.participant.meeting.sequence
}

fn counters(endpoint: &Endpoint, rank: usize) -> &Counters {
    &endpoint.member().records()[rank].counters
}

/// Returns the result of `victim` while `liar` runs beside it. It must come in time.
fn answer<R: Send>(victim: impl FnOnce() -> R + Send, liar: impl FnOnce() + Send) -> R {
    thread::scope(|scope| {
        scope.spawn(liar);
        let begun = Instant::now();
        let answer = victim();
        assert!(begun.elapsed() < BOUND, "{:?} for a call with a timeout of {TIMEOUT:?}", begun.elapsed());
        answer
    })
}

#[test]
fn a_peer_cannot_say_threads_of_this_process_are_inside() {
    let segment = segment(3);
    let other = elsewhere(&segment);
    let mut own = Endpoint::in_segment(&segment, 0..2, 2, &[], TIMEOUT);
    let liar = endpoint(&other, 2, TIMEOUT);
    counters(&liar, 1).inside.store(1, Ordering::Relaxed);
    let mut data = [1u32; 10_000];
    let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
    let signature = Signature { op: Some(ReduceOp::Sum), ..signature(Kind::AllReduce, DType::U32) };
    let victim =
        || own[0].step(&signature).divided(&reducer, None, Some(data.as_mut_slice().into()), Targets::All).unwrap_err();
    assert_eq!(answer(victim, || ()), Fault::Missing(vec![1, 2]));
}

#[test]
fn a_peer_claiming_to_be_inside_for_ever_is_waited_for_a_moment() {
    let (mut victim, liar) = two();
    let mut memory = victim.alloc(DType::U32, 10_000).unwrap();
    memory.as_buf_mut().into_mut_slice::<u32>().unwrap().fill(5);
    let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
    let signature = Signature { op: Some(ReduceOp::Sum), ..signature(Kind::AllReduce, DType::U32) };
    counters(&liar, 1).inside.store(1, Ordering::Relaxed);
    let call = || victim.step(&signature).divided(&reducer, None, Some(memory.as_buf_mut()), Targets::All).unwrap_err();
    assert_eq!(answer(call, || ()), Fault::Missing(vec![1]));
    let seen = liar.member().segment().in_heaps(0, 40_000).unwrap();
    // SAFETY: the other mapping of the block.
    unsafe { seen.as_ptr().write_bytes(9, 40_000) };
    assert!(
        memory.as_buf().as_slice::<u32>().unwrap().iter().all(|&element| element == 5),
        "the pages were taken back"
    );
}

/// Arrives at a published step with a descriptor that claims `bytes` bytes, and counters that claim
/// that all windows are staged and read.
fn claims(liar: &mut Endpoint, signature: &Signature, bytes: usize, told: BufferRef) {
    claims_with_words(liar, signature, bytes, told, Access::Published, &[]);
}

/// Like [`claims`], in a step that shares memory so, with these words.
fn claims_with_words(
    liar: &mut Endpoint,
    signature: &Signature,
    bytes: usize,
    told: BufferRef,
    access: Access,
    words: &[u64],
) {
    let own = &mut liar.participant;
    let last = own.member().generation.base() + (1 << 43);
    let Counters { staged, folded, read, .. } = &own.member().record().counters;
    for count in [staged, folded, read] {
        count.store(last, Ordering::Relaxed);
    }
    let shared = Arrival::shared(signature, access, bytes, told.to_word(), ptr::null_mut());
    let arrival = Arrival { payload: Inline::new(&[], words), ..shared };
    if let Ok(sharing) = Sharing::arrive(own, &arrival, [0..0, 0..0]) {
        sharing.finish();
    }
}

const STAGED: BufferRef = BufferRef { place: None, reads: false };

#[test]
fn windows_are_counted_from_this_rank_s_own_data() {
    let (mut victim, mut liar) = two();
    let signature = signature(Kind::Gather, DType::U8);
    let data = [7u8; 100_000];
    let chunking = Chunking::one_way(data.len(), 1);
    let mut windows = 0;
    let call = || {
        let work = |_: &mut PeerBuffers<'_>| {
            windows += 1;
            Ok(())
        };
        victim.step(&signature).published(Some(data.as_slice().into()), chunking, work)
    };
    assert_eq!(answer(call, || claims(&mut liar, &signature, 1 << 60, STAGED)), Ok(()));
    assert!(windows <= 100_000 / chunking.window_bytes(&Tuning::DEFAULT) + 1, "{windows} windows");
}

/// Whatever a rank tells of its data and counts, the others end with an error, with data that it
/// may have written anyhow, or with the timeout.
#[test]
fn false_sizes_and_counts_harm_no_other_rank() {
    let signature = signature(Kind::AllToAll, DType::U8);
    let (data, counts, own_words) = (vec![7u8; 300_000], [100_000, 200_000], [100_000, 200_000]);
    let heap = BufferRef { place: Some(Shown::Heap(1 << 30)), reads: false };
    let own = BufferRef { place: Some(Shown::Own(64)), reads: true };
    let sizes = [0, 100, 8000, 300_000, 1 << 60, usize::MAX];
    let tellings = [[200_000, 100_000], [0, 0], [u64::MAX, 200_000], [200_000, u64::MAX]];
    for (bytes, told) in sizes.into_iter().flat_map(|bytes| [STAGED, heap, own].map(|told| (bytes, told))) {
        for words in tellings {
            let (mut victim, mut liar) = two();
            let mut heard = vec![0u8; 200_000];
            let agree = |payloads: &Payloads<'_>| {
                let mut told = [0; 2];
                payloads.words(1, &mut told)?;
                Ok::<_, Fault>(Some((told[0] as usize).clamp(200_000, isize::MAX as usize / 2)))
            };
            let work = |peers: &mut PeerBuffers<'_>| peers.copy_block(1, 0, &mut heard.as_mut_slice().into());
            let input = (data.as_slice().into(), &counts[..]);
            let call = || victim.step(&signature).published_with_words(&own_words, input, agree, work);
            let lie = || claims_with_words(&mut liar, &signature, bytes, told, Access::Words, &words);
            let result = answer(call, lie);
            let is_fault = matches!(result, Err(Fault::CorruptPeer(1) | Fault::Aborted(_) | Fault::Missing(_)));
            assert!(is_fault || result == Ok(true), "{bytes} bytes, {words:?}: {result:?}");
        }
    }
}

/// Whatever a rank tells of its contributions and of where they lie.
#[test]
fn false_runs_and_nodes_harm_no_other_rank() {
    let count = 10_000;
    let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
    let signature = Signature { op: Some(ReduceOp::Sum), ..signature(Kind::AllReduce, DType::U32) };
    let node = 4 * count as u64;
    let tellings = [[1, 3, node], [1, 3, 0], [1, 3, u64::MAX], [3, 1, node], [1, u64::MAX, node], [0, 3, node]];
    let places = [None, Some(0), Some(64), Some(1 << 30), Some(usize::MAX >> 3)];
    for (words, place) in tellings.into_iter().flat_map(|words| places.map(|place| (words, place))) {
        let (mut victim, mut liar) = two();
        let mut memory = victim.alloc(DType::U32, count).unwrap();
        let holdings = |runs: &[Range<usize>]| Holdings::new(&reducer, 3, runs.iter().cloned());
        let (mut runs, mut known) = (Vec::new(), None);
        let call = || {
            let held = OwnHoldings { nodes: &[], last: Last::InPlace(memory.as_buf_mut()) };
            let (of_all, known) = ((&reducer, count, Targets::All), &mut known);
            victim.step(&signature).divided_holdings(of_all, 0..1, Some(held), &mut runs, move |runs| {
                *known = holdings(runs);
                known.as_ref()
            })
        };
        let lie = || {
            let told = BufferRef { place: place.map(Shown::Heap), reads: false };
            let (input, output) = (told.to_word::<u8>().cast_const(), told.to_word());
            let shared = Arrival::shared(&signature, Access::DividedToAll, 4 * count, input, output);
            let arrival = Arrival { payload: Inline::new(&[], &words), ..shared };
            if let Ok(sharing) = Sharing::arrive(&mut liar.participant, &arrival, [0..0, 0..0]) {
                sharing.finish();
            }
        };
        let result = answer(call, lie);
        let is_fault = matches!(result, Err(Fault::CorruptPeer(1) | Fault::Aborted(_) | Fault::Missing(_)));
        assert!(is_fault || result == Ok(false), "{words:?} at {place:?}: {result:?}");
    }
}

#[test]
fn windows_of_sizes_unknown_here_end_with_the_timeout() {
    let (mut victim, mut liar) = two();
    let signature = signature(Kind::AllGather, DType::U8);
    let data = [7u8; 100];
    let call = || victim.step(&signature).published(Some(data.as_slice().into()), Chunking::WHOLE, |_| Ok(()));
    let result = answer(call, || claims(&mut liar, &signature, 1 << 60, STAGED));
    assert_eq!(result, Err(Fault::Missing(vec![1])));
}

#[test]
fn a_claimed_size_is_not_allocated() {
    let (mut victim, mut liar) = two();
    let signature = signature(Kind::AllGather, DType::U16);
    let data = [7u16; 100];
    let mut counts = Vec::new();
    let call = || {
        let work = |peers: &mut PeerBuffers<'_>| peers.counts(DType::U16, &mut counts).map(drop);
        victim.step(&signature).published(Some(data.as_slice().into()), Chunking::WHOLE, work)
    };
    for bytes in [17 << 40, usize::MAX] {
        let (mut victim, mut liar) = two();
        let work = |peers: &mut PeerBuffers<'_>| peers.counts(DType::U16, &mut Vec::new()).map(drop);
        let call = || victim.step(&signature).published(Some(data.as_slice().into()), Chunking::WHOLE, work);
        let result = answer(call, || claims(&mut liar, &signature, bytes, STAGED));
        assert!(matches!(result, Err(Fault::Oversize { rank: 1, .. })), "{bytes} bytes: {result:?}");
    }
    assert_eq!(answer(call, || claims(&mut liar, &signature, 6, STAGED)), Ok(()));
    assert_eq!(counts, [100, 3]);
}

#[test]
fn invalid_bools_become_valid() {
    // Inline, and staged.
    for count in [2, 50_000] {
        let (mut victim, mut liar) = two();
        let signature = signature(Kind::AllGather, DType::Bool);
        let lies: Vec<u8> = (0..count).map(|at| at as u8).collect();
        let mut heard = vec![false; count];
        let own = vec![true; count];
        let victim = || match count {
            2 => {
                let payloads = victim.step(&signature).exchange(Some(own.as_slice().into())).unwrap();
                payloads.copy(1, 0, &mut heard.as_mut_slice().into()).unwrap();
            }
            _ => {
                let copy = |peers: &mut PeerBuffers<'_>| peers.copy(1, 0..count, &mut heard.as_mut_slice().into());
                victim.step(&signature).published(Some(own.as_slice().into()), Chunking::whole(count), copy).unwrap();
            }
        };
        let liar = || match count {
            2 => {
                let arrival = Arrival::inline(&signature, Access::Payload, count, lies.as_slice().into(), 0);
                liar.participant.meeting.arrive(&arrival, || ()).unwrap();
            }
            _ => {
                let work = |_: &mut PeerBuffers<'_>| Ok(());
                let kind = StepKind::Published(Chunking::whole(count));
                let input = Input { start: lies.as_ptr(), bytes: count, counts: None };
                // SAFETY: these are readable bytes.
                unsafe { in_windows(&mut liar.participant, &signature, kind, input, work).unwrap() }
            }
        };
        answer(victim, liar);
        let bytes = crate::memory::HostBuf::from(heard.as_slice()).as_bytes();
        assert!(bytes.iter().all(|&byte| byte < 2), "{count} bytes");
        assert_eq!(heard[..2], [false, true]);
    }
}

#[test]
fn nodes_of_bools_are_finished_from_any_bytes() {
    let shape = Reducer::new(ReduceOp::Or, DType::Bool).unwrap().shape(1, &[Node::kept(0..1)]).unwrap();
    let mut result = HostMemory::zeroed(DType::Bool, 2);
    shape.finish(&[Source::Accumulators(&[7, 200])], &mut result.as_buf_mut(), 1);
    assert!(result.as_buf().as_bytes().iter().all(|&byte| byte < 2));
}

#[test]
fn peers_do_not_write_memory_of_bools() {
    let (victim, liar) = two();
    let memory = victim.alloc(DType::Bool, 100).unwrap();
    assert_eq!(victim.member().segment().find(memory.as_buf().as_bytes().as_ptr(), 100, false), None);
    drop(liar);
}

#[test]
#[should_panic = "a rank has one endpoint"]
fn a_rank_has_one_seat_in_a_process() {
    let segment = segment(2);
    let _first = endpoint(&segment, 0, TIMEOUT);
    endpoint(&segment, 0, TIMEOUT);
}

/// Found by a trial: each view of a segment had claims of its own.
#[test]
#[should_panic = "a rank has one endpoint"]
fn a_rank_has_one_seat_whatever_views_of_the_segment_a_process_has() {
    let segment = segment(2);
    let _first = endpoint(&segment, 0, TIMEOUT);
    endpoint(&elsewhere(&segment), 0, TIMEOUT);
}

#[test]
fn a_returned_seat_can_be_taken_again() {
    let segment = segment(2);
    drop(endpoint(&segment, 0, TIMEOUT));
    let endpoint = endpoint(&segment, 0, TIMEOUT);
    let pair = endpoint.pair(1).unwrap();
    drop(pair);
    endpoint.pair(1).unwrap();
}

#[test]
#[should_panic = "a rank has one endpoint"]
fn a_rank_has_one_seat_in_a_pair() {
    let segment = segment(2);
    let endpoint = endpoint(&segment, 0, TIMEOUT);
    let _pair = endpoint.pair(1).unwrap();
    let _ = endpoint.pair(1);
}

#[test]
#[should_panic = "different ranks"]
fn members_of_a_group_are_different_ranks() {
    let _ = Endpoint::group(2, TIMEOUT)[0].split(&Signature::new(Kind::Split), &[0, 0]);
}

#[test]
fn an_invalid_place_of_a_split_off_group_is_corrupt() {
    let signature = Signature::new(Kind::Split);
    for (words, expected) in [
        ([0u64, u64::MAX], Some(Fault::CorruptPeer(1))),
        ([0, 1 << 60], Some(Fault::CorruptPeer(1))),
        ([u64::MAX, 0], Some(Fault::TooManyGroups)),
        ([0, 0], None),
    ] {
        let (mut victim, mut liar) = two();
        let told = Signature { dtype: Some(DType::U64), ..signature };
        let call = || victim.split(&signature, &[1, 0]).map(drop).err();
        let lie = || liar.step(&told).exchange(Some(words.as_slice().into())).map(drop).unwrap();
        assert_eq!(answer(call, lie), expected, "{words:?}");
    }
}

#[test]
fn the_rank_in_an_end_is_one_of_the_group() {
    let (victim, liar) = two();
    for rank in [2, 1 << 31, u32::MAX as usize] {
        liar.member().abort(rank, Reason::Failure);
        assert!(victim.witness().end(|_| true).unwrap().abort.rank < 2);
    }
}

/// Found by `a_kill_in_any_call_is_an_error_naming_the_lost_process`: a rank returned after the
/// loss and freed its buffer, and a peer that still read there accused it.
#[test]
fn an_impossible_value_after_an_end_is_reported_as_the_end() {
    let (victim, other) = two();
    let abort = Abort { rank: 0, reason: Reason::Death };
    other.member().abort(abort.rank, abort.reason);
    assert_eq!(victim.member().corrupt(1), Fault::Aborted(abort));
}

#[test]
fn unallocated_memory_is_not_touched() {
    for place in [0, 1 << 30, 40 << 30] {
        let (mut victim, mut liar) = two();
        let blocks = |endpoint: &Endpoint| rustix::fs::fstat(endpoint.member().segment().file()).unwrap().st_blocks;
        let signature = signature(Kind::AllGather, DType::U8);
        let (data, mut heard) = (vec![1u8; 100_000], vec![0u8; 100_000]);
        let before = blocks(&victim);
        let told = BufferRef { place: Some(Shown::Heap(place)), reads: false };
        let call = || {
            let copy = |peers: &mut PeerBuffers<'_>| peers.copy(1, 0..100_000, &mut heard.as_mut_slice().into());
            victim.step(&signature).published(Some(data.as_slice().into()), Chunking::whole(100_000), copy)
        };
        let result = answer(call, || claims(&mut liar, &signature, 100_000, told));
        assert_eq!(result, Err(Fault::CorruptPeer(1)));
        assert!(blocks(&victim) < before + (1 << 20) / 512, "only staging got pages");
    }
}

/// Posts a message with any descriptor.
fn lies_in_a_message(liar: &mut Endpoint, signature: &Signature, access: Access, bytes: usize, payload: &[u8]) {
    let meeting = &mut liar.participant.meeting;
    meeting.post(&Arrival::inline(signature, access, bytes, payload.into(), 0));
    meeting.waiter.wake();
}

fn broadcast_of(root: usize, count: usize) -> Signature {
    Signature { root: Some(root), count: Some(count), ..signature(Kind::Broadcast, DType::U8) }
}

#[test]
fn a_message_of_another_size_is_nonsense_or_wrong_data() {
    let signature = broadcast_of(1, 100);
    for (bytes, expected) in [(99, Err(Fault::CorruptPeer(1))), (0, Err(Fault::CorruptPeer(1))), (usize::MAX, Ok(()))] {
        let (mut victim, mut liar) = two();
        lies_in_a_message(&mut liar, &signature, Access::Message, bytes, &[5; 100]);
        let mut data = [0u8; 100];
        let payloads = victim.step(&signature).receive_message(None, 1, 100).unwrap();
        assert_eq!(payloads.copy(1, 0, &mut data.as_mut_slice().into()), expected, "{bytes} bytes");
    }
}

#[test]
fn a_false_descriptor_reads_as_no_call_or_any_call() {
    let accesses = [Access::Refused, Access::Message, Access::CountedMessage, Access::DividedToAll];
    for (access, bytes) in accesses.into_iter().flat_map(|access| [7, 1 << 60, usize::MAX].map(|bytes| (access, bytes)))
    {
        let (mut victim, mut liar) = two();
        victim.step(&broadcast_of(0, 1)).send_message(None, [1u8].as_slice().into()).unwrap();
        lies_in_a_message(&mut liar, &broadcast_of(7, usize::MAX), access, bytes, &[0xff; 300]);
        for head in [None, Some(u32::MAX), Some(0xff00_00ff)] {
            let descriptor = liar.member().record().descriptor(last_call(&liar));
            head.into_iter().for_each(|head| descriptor.head.store(head, Ordering::Relaxed));
            let call = PostedCall::of_all(victim.member().records(), last_call(&victim)).remove(1);
            assert_eq!(call.signature(&[]).is_none(), head.is_some(), "{call:?}");
            assert!(call.refusal.is_none_or(|text| text.len() <= 3 * Endpoint::PAYLOAD_BYTES));
            assert!(call.counts.is_none_or(|counts| counts.len() <= 2));
        }
        victim.settle().unwrap();
        assert!(victim.take_differing_late().is_some());
    }
}

#[test]
fn a_peer_claiming_future_calls_delays_no_other_rank() {
    let (mut victim, liar) = two();
    let signature = broadcast_of(0, 1);
    for far in [1, 2, 1 << 40] {
        victim.step(&signature).send_message(None, [1u8].as_slice().into()).unwrap();
        let descriptor = liar.member().record().descriptor(last_call(&victim));
        descriptor.sequence.store(last_call(&victim) + far, Ordering::Relaxed);
        assert_eq!(answer(|| victim.settle(), || ()), Ok(()));
    }
    // A number of another generation is none of this one.
    victim.step(&signature).send_message(None, [1u8].as_slice().into()).unwrap();
    let descriptor = liar.member().record().descriptor(last_call(&victim));
    descriptor.sequence.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(answer(|| victim.settle(), || ()), Err(Fault::Missing(vec![1])));
}
