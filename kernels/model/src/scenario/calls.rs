//! The calls of scenarios, and the values that their results must have.

use crate::{
    cpu::reduce::Reducer,
    data::Data,
    group::{
        Abort, Endpoint, Fault, Holdings, Last, OwnHoldings, Payloads, PeerBuffers, Reason,
        plan::{Chunking, Targets},
    },
    memory::{HostBuf, HostBufMut},
    shm::{Segment, Shape, records::TINY_BYTES, watch_payloads},
};
use consonance_spec::{DType, Kind, ReduceOp, Signature, partition};
use std::{sync::Arc, time::Duration};

pub(super) const SUM: Signature =
    Signature { op: Some(ReduceOp::Sum), dtype: Some(DType::U64), ..Signature::new(Kind::AllReduce) };

/// The same for one rank. Such calls swap no slots.
pub(super) const TO_ONE: Signature = Signature { kind: Kind::Reduce, ..SUM };

/// A timeout with which no rank gives up. No time passes in the model; with a timeout of zero a
/// rank gives up instead of waiting.
pub(super) const FOREVER: Duration = Duration::MAX;

/// Makes a group of threads.
pub(super) fn threads(ranks: usize, timeout: Duration) -> Vec<Endpoint> {
    let endpoints = Endpoint::group(ranks, timeout);
    watch_payloads(endpoints[0].member().records());
    endpoints
}

/// Makes a group of processes with one rank each.
pub(super) fn processes(shape: Shape) -> Vec<Endpoint> {
    processes_of(shape, &[])
}

/// Makes a group of processes with one rank each, which have these process ids.
pub(super) fn processes_of(shape: Shape, processes: &[u32]) -> Vec<Endpoint> {
    let segment = Arc::new(Segment::new(shape));
    (0..shape.ranks).flat_map(|rank| Endpoint::in_segment(&segment, rank..rank + 1, 0, processes, FOREVER)).collect()
}

/// Runs `body` on each rank. Endpoints that `body` returns are dropped when all ranks are done.
pub(super) fn each(endpoints: Vec<Endpoint>, body: fn(Endpoint) -> Option<Endpoint>) {
    let mut endpoints = endpoints.into_iter();
    let first = endpoints.next().expect("a rank");
    let others: Vec<_> = endpoints.map(|endpoint| loom::thread::spawn(move || body(endpoint))).collect();
    let kept: Vec<_> = [body(first)].into_iter().chain(others.into_iter().map(|rank| rank.join().unwrap())).collect();
    drop(kept);
}

/// Returns element `index` of the input of `rank` in call number `call`.
pub(super) fn value(rank: usize, call: usize, index: usize) -> u64 {
    ((rank + 1) << (4 * call)) as u64 + 1000 * index as u64
}

pub(super) fn total(endpoint: &Endpoint, call: usize, index: usize) -> u64 {
    (0..endpoint.world().size()).map(|rank| value(rank, call, index)).sum()
}

/// Sums one element of each rank in an inline exchange.
pub(super) fn sum(endpoint: &mut Endpoint, call: usize) -> Result<(), Fault> {
    sum_of(endpoint, call, 1)
}

/// Sums `count` elements of each rank in an inline exchange.
pub(super) fn sum_of(endpoint: &mut Endpoint, call: usize, count: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    let own: Vec<u64> = (0..count).map(|index| value(rank, call, index)).collect();
    let mut sums = vec![0; count];
    let own = own.as_slice().into();
    endpoint.step(&SUM).exchange(Some(own))?.reduce(&Reducer, 0, Some(own), &mut sums.as_mut_slice().into())?;
    for (index, &sum) in sums.iter().enumerate() {
        assert_eq!(sum, total(endpoint, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// A number of elements for which two ranks swap slots. Payloads of up to [`TINY_BYTES`] bytes are
/// not swapped.
pub(super) const TRADED: usize = TINY_BYTES / size_of::<u64>() + 1;

/// Returns the input of this rank.
pub(super) fn data(endpoint: &Endpoint, call: usize, count: usize) -> Data {
    let rank = endpoint.world().rank();
    Data::new((0..count).map(|index| value(rank, call, index)))
}

/// Sums in place.
pub(super) fn sum_in_place(endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    for (index, element) in data.write().iter_mut().enumerate() {
        *element = value(rank, call, index);
    }
    endpoint.step(&SUM).divided(&Reducer, None, Some(HostBufMut::from(data.share())), Targets::All)?;
    for (index, &element) in data.read().iter().enumerate() {
        assert_eq!(element, total(endpoint, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// Sums in place two contributions of each rank, or one, without `node`: the first is kept as a
/// node. Returns whether they were summed.
pub(super) fn sum_holdings(
    endpoint: &mut Endpoint,
    node: Option<&mut Data>,
    last: &mut Data,
    call: usize,
) -> Result<bool, Fault> {
    let rank = endpoint.world().rank();
    let (each, count) = (1 + usize::from(node.is_some()), last.share().len());
    let kept = node.map(|node| {
        node.write().iter_mut().zip(0..).for_each(|(element, index)| *element = value(rank, call + 10, index));
        &*node.share()
    });
    last.write().iter_mut().zip(0..).for_each(|(element, index)| *element = value(rank, call, index));
    let nodes = kept.map_or(&[][..], |node| HostBuf::from(node).as_bytes());
    let held = OwnHoldings { nodes, last: Last::InPlace(HostBufMut::from(last.share())) };
    let run = |rank: usize| each * rank..each * (rank + 1);
    let of = each * endpoint.world().size();
    let holdings = Holdings::new(&Reducer, of, (0..endpoint.world().size()).map(run)).expect("runs of all");
    let of_all = (&Reducer, count, Targets::All);
    let step = endpoint.step(&SUM);
    let made = step.divided_holdings(of_all, run(rank), Some(held), &mut Vec::new(), |_| Some(&holdings))?;
    for (index, &element) in last.read().iter().enumerate() {
        let first = if each == 2 { total(endpoint, call + 10, index) } else { 0 };
        let expected = if made { first + total(endpoint, call, index) } else { value(rank, call, index) };
        assert_eq!(element, expected, "element {index} in call {call}");
    }
    Ok(made)
}

/// Sums the published data of all ranks into private memory of this rank.
pub(super) fn sum_published(endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    sum_published_as(&SUM, endpoint, data, call)
}

/// Like [`sum_published`], in a call with this signature.
pub(super) fn sum_published_as(
    signature: &Signature,
    endpoint: &mut Endpoint,
    data: &mut Data,
    call: usize,
) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    for (index, element) in data.write().iter_mut().enumerate() {
        *element = value(rank, call, index);
    }
    let mut sums = vec![0; data.share().len()];
    let count = sums.len();
    endpoint.step(signature).published(Some(HostBuf::from(&*data.share())), Chunking::WHOLE, |peers| {
        peers.reduce(&Reducer, 0, &mut sums[..count].as_mut().into())
    })?;
    for (index, &element) in sums.iter().enumerate() {
        assert_eq!(element, total(endpoint, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// Sends the data of rank `root` to the other ranks, in windows.
pub(super) fn send_from(root: usize, endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    let signature = Signature { root: Some(root), op: None, kind: Kind::Broadcast, ..SUM };
    let count = data.share().len();
    if endpoint.world().rank() == root {
        for (index, element) in data.write().iter_mut().enumerate() {
            *element = value(root, call, index);
        }
        return endpoint.step(&signature).published(Some(HostBuf::from(&*data.share())), Chunking::WHOLE, |_| Ok(()));
    }
    let mut received = vec![0; count];
    endpoint
        .step(&signature)
        .published(None, Chunking::WHOLE, |peers| peers.copy(root, 0..count, &mut received.as_mut_slice().into()))?;
    for (index, &element) in received.iter().enumerate() {
        assert_eq!(element, value(root, call, index), "element {index} in call {call}");
    }
    Ok(())
}

/// Sums this rank's block of the data of all ranks, in place.
pub(super) fn sum_own_block(endpoint: &mut Endpoint, data: &mut Data, call: usize) -> Result<(), Fault> {
    let rank = endpoint.world().rank();
    for (index, element) in data.write().iter_mut().enumerate() {
        *element = value(rank, call, index);
    }
    endpoint.step(&SUM).divided(&Reducer, None, Some(HostBufMut::from(data.share())), Targets::Own)?;
    let count = data.share().len();
    for (index, &element) in data.read().iter().enumerate() {
        let is_own = partition::block(count, endpoint.world().size(), rank).contains(&index);
        let expected = if is_own { total(endpoint, call, index) } else { value(rank, call, index) };
        assert_eq!(element, expected, "element {index} in call {call}");
    }
    Ok(())
}

/// Exchanges blocks of two ranks: rank `from` has `counts[from][to]` elements for rank `to`. No
/// rank knows the counts of the other.
pub(super) fn swap_blocks(endpoint: &mut Endpoint, call: usize, counts: [[usize; 2]; 2]) -> Result<(), Fault> {
    let (rank, peer) = (endpoint.world().rank(), 1 - endpoint.world().rank());
    let own = counts[rank];
    let mut send = data(endpoint, call, own[0] + own[1]);
    let send = HostBuf::from(&*send.share());
    let blocks = Signature { kind: Kind::AllToAll, op: None, ..SUM };
    let rides = |counts: [usize; 2]| endpoint.topology().rides_before(2, 8 * (counts[0] + counts[1]));
    let (is_short, are_alike) = (rides(own), rides(own) == rides(counts[peer]));
    let words = own.map(|count| count as u64);
    let (start, count) = (if rank == 0 { 0 } else { counts[peer][0] }, counts[peer][rank]);
    let largest = counts[0][1].max(counts[1][0]);
    let mut received = vec![0; count];
    let mut told = [0; 2];
    let copy = |peers: &PeerBuffers<'_>, received: &mut Vec<u64>| {
        peers.copy_block(peer, start, &mut received.as_mut_slice().into())
    };
    let is_published = if is_short {
        let payloads = endpoint.step(&blocks).exchange_with_words(&words, send)?;
        payloads.words(peer, &mut told)?;
        if are_alike {
            payloads.copy(peer, start, &mut received.as_mut_slice().into())?;
        }
        are_alike
    } else {
        let agree = |payloads: &Payloads<'_>| {
            payloads.words(peer, &mut told)?;
            Ok::<_, Fault>(are_alike.then_some(largest))
        };
        endpoint.step(&blocks).published_with_words(&words, (send, &own), agree, |peers| copy(peers, &mut received))?
    };
    assert_eq!(told, counts[peer].map(|count| count as u64), "the counts of rank {peer} in call {call}");
    assert_eq!(is_published, are_alike);
    if !is_published {
        let chunking = Chunking::blocks(2, 16 * largest);
        endpoint.step(&blocks).published_in_blocks(send, &own, chunking, |peers| copy(peers, &mut received))?;
    }
    for (index, &element) in received.iter().enumerate() {
        assert_eq!(element, value(peer, call, start + index), "element {index} in call {call}");
    }
    Ok(())
}

/// Returns whether this fault is an abort at a rank's deadline, as this rank or another one sees
/// it.
pub(super) fn is_deadline(fault: &Fault) -> bool {
    matches!(fault, Fault::Missing(_) | Fault::Aborted(Abort { reason: Reason::Deadline, .. }))
}

/// Windows of 128 bytes.
pub(super) const SMALL: Shape = Shape { ranks: 2, staging_bytes: 512, splits: 0, rings: false };

/// Windows large enough that each rank reduces its block for all ranks.
pub(super) const LARGE: Shape = Shape { ranks: 2, staging_bytes: 4 * 4096, splits: 0, rings: false };
