//! All-to-all: a part from each rank to each rank.

use super::{Scratch, Stop};
use crate::comm::call::unlike_counts;
use consonance_kernels::{
    cpu::copy::copy_own,
    digest::mix,
    group::{
        Endpoint, PeerBuffers,
        plan::{Chunking, Step},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, Signature};

/// Exchanges parts. Up to the payload limit all parts travel inline with the descriptors. Above it,
/// each rank publishes all its parts, or in place a copy of them in scratch. Each rank copies the
/// parts that are for it.
///
/// With counts, an earlier step gathers every rank's counts on all ranks. The position of a part in
/// a peer's buffer depends on that peer's counts only. The choice of protocol depends on the
/// largest rank's total, so all ranks choose the same; the number of windows, on the largest part
/// for another rank.
pub(super) fn all_to_all(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
    counts: Option<(&[usize], &[usize])>,
    scratch: &mut Scratch,
) -> Result<(), Stop> {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    let mut table = std::mem::take(&mut scratch.counts);
    if let Some((sent, received)) = counts {
        exchange_counts(endpoint, signature, sent, received, &mut table)?;
    }
    let even = recv.count() / size;
    // Sums counts that a rank reports. Saturates: the count that a rank sends to itself is
    // unchecked.
    let total = |counts: &[u64]| counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count)) as usize;
    // Returns the part of `peer`'s buffer for this rank: its start and its count.
    let part = |peer: usize| match counts {
        Some((_, received)) => {
            (total(&table[peer * 2 * size..][..rank]).min(usize::MAX - received[peer]), received[peer])
        }
        None => (even * rank, even),
    };
    let largest = match counts {
        Some(_) => table.chunks_exact(2 * size).map(|row| total(&row[..size])).max().unwrap_or(0),
        None => recv.count(),
    };
    let largest_bytes = largest.saturating_mul(recv.dtype().size());
    if endpoint.topology().moving(largest_bytes, Chunking::WHOLE) == Step::Exchange {
        let payloads = endpoint.exchange(signature, Some(send.unwrap_or_else(|| recv.as_buf())))?;
        let mut place = 0;
        for peer in 0..size {
            let (start, count) = part(peer);
            let mut recv = recv.reborrow().slice(place..place + count);
            match send {
                Some(send) if peer == rank && counts.is_none() => {
                    copy_own(send.slice(start..start + count), &mut recv);
                }
                _ => payloads.copy(peer, start, &mut recv)?,
            }
            place += count;
        }
        scratch.counts = table;
        return Ok(());
    }
    let send = match send {
        Some(send) => send,
        None => {
            let mut copy = scratch.room(recv.dtype(), recv.count());
            copy_own(recv.as_buf(), &mut copy);
            copy.into_buf()
        }
    };
    // An element of each rank's block. No honest ranks have more than memory holds.
    let across = size * recv.dtype().size();
    let block = match counts {
        Some(_) => largest_part(&table, size).min(isize::MAX as usize / across),
        None => even,
    };
    let chunking = Chunking::blocks(size, block * across);
    let collect = |peers: &mut PeerBuffers<'_>| {
        let mut place = 0;
        for peer in 0..size {
            let (start, count) = part(peer);
            peers.copy_block(peer, start, &mut recv.reborrow().slice(place..place + count))?;
            place += count;
        }
        Ok(())
    };
    let done = match counts {
        Some((sent, _)) => endpoint.published_in_blocks(signature, send, sent, chunking, collect),
        None => endpoint.published(signature, Some(send), chunking, collect),
    };
    scratch.counts = table;
    Ok(done?)
}

/// Returns the elements of the largest part that a rank sends to another one.
fn largest_part(table: &[u64], size: usize) -> usize {
    let rows = table.chunks_exact(2 * size).enumerate();
    let parts = rows.flat_map(|(rank, row)| row[..size].iter().enumerate().filter(move |&(peer, _)| peer != rank));
    parts.map(|(_, &count)| count).max().unwrap_or(0) as usize
}

/// Gathers all counts on all ranks, and compares those sent with those expected. Every rank comes
/// to the same verdict. A rank's row of the table has the counts that it sends to each rank, then
/// the counts that it receives from each rank.
fn exchange_counts(
    endpoint: &mut Endpoint,
    signature: &Signature,
    sent: &[usize],
    received: &[usize],
    table: &mut Vec<u64>,
) -> Result<(), Stop> {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    let row = 2 * size;
    table.clear();
    table.resize(row * size, 0);
    let (before, rest) = table.split_at_mut(rank * row);
    let (own, after) = rest.split_at_mut(row);
    own.iter_mut().zip(sent.iter().chain(received)).for_each(|(place, &count)| *place = count as u64);
    let with_counts = Signature { dtype: Some(DType::U64), detail: mix(signature.detail, 1), ..*signature };
    let chunking = Chunking::WHOLE.at_most(row * DType::U64.size());
    if endpoint.topology().moving(chunking.most_bytes, chunking) == Step::Exchange {
        let payloads = endpoint.exchange(&with_counts, Some((&*own).into()))?;
        table
            .chunks_exact_mut(row)
            .enumerate()
            .filter(|&(peer, _)| peer != rank)
            .try_for_each(|(peer, place)| payloads.copy(peer, 0, &mut place.into()))?;
    } else {
        endpoint.published(&with_counts, Some((&*own).into()), chunking, |peers| {
            let peer_rows = before.chunks_exact_mut(row).zip(0..).chain(after.chunks_exact_mut(row).zip(rank + 1..));
            peer_rows.into_iter().try_for_each(|(place, peer)| peers.copy(peer, 0..row, &mut place.into()))
        })?;
    }
    unlike_counts(table, size).map_or(Ok(()), |unlike| Err(Stop::Counts(unlike)))
}
