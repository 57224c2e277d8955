//! Collectives that move one rank's data to the others: broadcast, scatter.

use super::displacement;
use consonance_kernels::{
    cpu::copy,
    group::{
        Endpoint, Fault, PeerBuffers,
        plan::{Chunking, StepKind},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, Signature};

/// Broadcasts `root`'s data. Up to the payload limit it travels inline with the root's descriptor,
/// between processes as a message: the root waits for nobody, the other ranks wait for the root.
/// Above it, the root publishes the data and the other ranks copy all of it in parallel.
pub(super) fn broadcast(
    endpoint: &mut Endpoint,
    signature: &Signature,
    mut data: HostBufMut<'_>,
    root: usize,
) -> Result<(), Fault> {
    let is_root = endpoint.world().rank() == root;
    let all = 0..data.count();
    let chunking = Chunking::one_way(data.bytes(), 1);
    let step = endpoint.topology().one_way(signature, None, data.bytes(), chunking);
    match (step, is_root) {
        (StepKind::Message, true) => endpoint.step(signature).send_message(None, data.as_buf()),
        (StepKind::Message, false) => {
            endpoint.step(signature).receive_message(None, root, data.bytes())?.copy(root, 0, &mut data)
        }
        (StepKind::Exchange, true) => endpoint.step(signature).exchange(Some(data.as_buf())).map(drop),
        (StepKind::Exchange, false) => {
            endpoint.step(signature).exchange_expecting(None, data.bytes())?.copy(root, 0, &mut data)
        }
        (_, true) => endpoint.step(signature).published(Some(data.as_buf()), chunking, |_| Ok(())),
        (_, false) => {
            endpoint.step(signature).published(None, chunking, |peers| peers.copy(root, all.clone(), &mut data))
        }
    }
}

/// Scatters `root`'s data. Up to the payload limit all parts travel inline with the root's
/// descriptor, between processes as a message, as in [`broadcast`]. Above it, the root publishes
/// them. Each rank copies its own part.
pub(super) fn scatter(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    recv: Option<HostBufMut<'_>>,
    counts: Option<&[usize]>,
    root: usize,
) -> Result<(), Fault> {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    // All ranks know the largest part that is for another rank than the root.
    let chunking = |bytes: usize, dtype: DType| match counts {
        Some(counts) => {
            let parts = counts.iter().enumerate().filter(|&(peer, _)| peer != root);
            Chunking::one_way(parts.map(|(_, &count)| count).max().unwrap_or(0) * size * dtype.size(), size)
        }
        None => Chunking::one_way(bytes, size),
    };
    match send.filter(|_| rank == root) {
        Some(send) => {
            let start = displacement(counts, send.count() / size, rank);
            let chunking = chunking(send.bytes(), send.dtype());
            let copy_own = || {
                if let Some(mut recv) = recv {
                    let end = start + recv.count();
                    copy::copy_own(send.slice(start..end), &mut recv);
                }
            };
            match endpoint.topology().one_way(signature, counts, send.bytes(), chunking) {
                StepKind::Message => return endpoint.step(signature).send_message(counts, send).map(|()| copy_own()),
                StepKind::Exchange => return endpoint.step(signature).exchange(Some(send)).map(|_| copy_own()),
                _ => {}
            }
            // Copy the own part while the peers read the last window.
            let mut copy_own = Some(copy_own);
            let work = |peers: &mut PeerBuffers<'_>| {
                if let Some(copy_own) = copy_own.take_if(|_| peers.is_last()) {
                    copy_own();
                }
                Ok(())
            };
            match counts {
                Some(counts) => endpoint.step(signature).published_in_blocks(send, counts, chunking, work),
                None => endpoint.step(signature).published(Some(send), chunking, work),
            }
        }
        None => {
            let mut recv = recv.expect("Call::sign requires recv on every rank but the root");
            let start = displacement(counts, recv.count(), rank);
            let bytes = displacement(counts, recv.count(), size) * recv.dtype().size();
            let chunking = chunking(bytes, recv.dtype());
            match endpoint.topology().one_way(signature, counts, bytes, chunking) {
                StepKind::Message => {
                    return endpoint.step(signature).receive_message(counts, root, bytes)?.copy(root, start, &mut recv);
                }
                StepKind::Exchange => {
                    return endpoint.step(signature).exchange_expecting(None, bytes)?.copy(root, start, &mut recv);
                }
                _ => {}
            }
            endpoint.step(signature).published(None, chunking, |peers| peers.copy_block(root, start, &mut recv))
        }
    }
}
