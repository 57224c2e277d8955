//! Collectives that move one rank's data to the others: broadcast, scatter.

use super::displacement;
use consonance_kernels::{
    cpu::copy,
    group::{
        Endpoint, Fault,
        plan::{Chunking, Step},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::Signature;

/// Broadcasts `root`'s data. Up to the payload limit it travels inline with the root's descriptor.
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
    if endpoint.topology().moving(data.bytes(), chunking) == Step::Exchange {
        return match is_root {
            true => endpoint.exchange(signature, Some(data.as_buf())).map(drop),
            false => endpoint.exchange_expecting(signature, None, data.bytes())?.copy(root, 0, &mut data),
        };
    }
    if is_root {
        endpoint.published(signature, Some(data.as_buf()), chunking, |_| Ok(()))
    } else {
        endpoint.published(signature, None, chunking, |peers| peers.copy(root, all.clone(), &mut data))
    }
}

/// Scatters `root`'s data. Up to the payload limit all parts travel inline with the root's
/// descriptor. Above it, the root publishes them. Each rank copies its own part.
pub(super) fn scatter(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    recv: Option<HostBufMut<'_>>,
    counts: Option<&[usize]>,
    root: usize,
) -> Result<(), Fault> {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    // Even parts are one block per rank.
    let blocks = if counts.is_none() { size } else { 1 };
    match send.filter(|_| rank == root) {
        Some(send) => {
            let start = displacement(counts, send.count() / size, rank);
            let chunking = Chunking::one_way(send.bytes(), blocks);
            let copy_own = || {
                if let Some(mut recv) = recv {
                    let end = start + recv.count();
                    copy::copy_own(send.slice(start..end), &mut recv);
                }
            };
            if endpoint.topology().moving(send.bytes(), chunking) == Step::Exchange {
                return endpoint.exchange(signature, Some(send)).map(|_| copy_own());
            }
            // Copy the own part while the peers read the last window.
            let mut copy_own = Some(copy_own);
            endpoint.published(signature, Some(send), chunking, |peers| {
                if let Some(copy_own) = copy_own.take_if(|_| peers.is_last()) {
                    copy_own();
                }
                Ok(())
            })
        }
        None => {
            let mut recv = recv.expect("Call::sign requires recv on every rank but the root");
            let start = displacement(counts, recv.count(), rank);
            let bytes = displacement(counts, recv.count(), size) * recv.dtype().size();
            let chunking = Chunking::one_way(bytes, blocks);
            if endpoint.topology().moving(bytes, chunking) == Step::Exchange {
                return endpoint.exchange_expecting(signature, None, bytes)?.copy(root, start, &mut recv);
            }
            let range = start..start + recv.count();
            endpoint.published(signature, None, chunking, |peers| peers.copy(root, range.clone(), &mut recv))
        }
    }
}
