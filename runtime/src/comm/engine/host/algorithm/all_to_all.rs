//! All-to-all: a part from each rank to each rank.

use super::{Scratch, Stop};
use crate::comm::call::unlike_counts;
use consonance_kernels::{
    cpu::copy::copy_own,
    digest::mix,
    group::{
        Endpoint, Payloads, PeerBuffers,
        plan::{Chunking, Step},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, Signature};

/// Exchanges parts. Up to the payload limit all parts travel inline with the descriptors. Above it,
/// each rank publishes all its parts, or in place a copy of them in scratch. Each rank copies the
/// parts that are for it.
///
/// With counts, an earlier step gathers every rank's counts on all ranks: the position of a part in
/// a peer's buffer depends on that peer's counts only. Parts up to the payload limit travel with
/// the counts. The choice of protocol depends on the largest rank's total, so all ranks choose the
/// same; the number of windows, on the largest part for another rank.
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
    let parts = Parts { rank, size, even: recv.count() / size, counts };
    let inline = match counts {
        Some(_) => exchange_counts(endpoint, signature, &parts, send.unwrap_or_else(|| recv.as_buf()), &mut table)?,
        None if endpoint.topology().moving(recv.bytes(), Chunking::WHOLE) == Step::Exchange => {
            Some(endpoint.exchange(signature, Some(send.unwrap_or_else(|| recv.as_buf())))?)
        }
        None => None,
    };
    if let Some(payloads) = inline {
        let mut place = 0;
        for peer in 0..size {
            let (start, count) = parts.of(peer, &table);
            let mut recv = recv.reborrow().slice(place..place + count);
            match send {
                Some(send) if peer == rank => copy_own(send.slice(start..start + count), &mut recv),
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
        None => parts.even,
    };
    let chunking = Chunking::blocks(size, block * across);
    let collect = |peers: &mut PeerBuffers<'_>| {
        let mut place = 0;
        for peer in 0..size {
            let (start, count) = parts.of(peer, &table);
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

/// The parts of all ranks' buffers that are for this rank.
struct Parts<'a> {
    rank: usize,
    size: usize,
    /// The elements of each part, if there are no counts.
    even: usize,
    /// The elements that this rank sends to each rank, and receives from each.
    counts: Option<(&'a [usize], &'a [usize])>,
}

impl Parts<'_> {
    /// Returns the part of `peer`'s buffer for this rank: its start and its count.
    fn of(&self, peer: usize, table: &[u64]) -> (usize, usize) {
        match self.counts {
            Some((_, received)) => {
                let before = total(&table[peer * 2 * self.size..][..self.rank]);
                (before.min(usize::MAX - received[peer]), received[peer])
            }
            None => (self.even * self.rank, self.even),
        }
    }
}

/// Sums counts that a rank reports: no sum is past the largest number.
fn total(counts: &[u64]) -> usize {
    counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count)) as usize
}

/// Returns the elements of the largest part that a rank sends to another one.
fn largest_part(table: &[u64], size: usize) -> usize {
    let rows = table.chunks_exact(2 * size).enumerate();
    let parts = rows.flat_map(|(rank, row)| row[..size].iter().enumerate().filter(move |&(peer, _)| peer != rank));
    parts.map(|(_, &count)| count).max().unwrap_or(0) as usize
}

/// Gathers all counts on all ranks, and compares those sent with those expected. Every rank comes
/// to the same verdict. A rank's row of the table has the counts that it sends to each rank, then
/// the counts that it receives from each rank. Returns the payloads if they have the data of all
/// ranks.
fn exchange_counts<'e>(
    endpoint: &'e mut Endpoint,
    signature: &Signature,
    &Parts { rank, size, counts, .. }: &Parts<'_>,
    send: HostBuf<'_>,
    table: &mut Vec<u64>,
) -> Result<Option<Payloads<'e>>, Stop> {
    let (row, topology, dtype) = (2 * size, endpoint.topology(), send.dtype());
    let Some((sent, received)) = counts else { return Ok(None) };
    table.clear();
    table.resize(row * size, 0);
    let (before, rest) = table.split_at_mut(rank * row);
    let (own, after) = rest.split_at_mut(row);
    own.iter_mut().zip(sent.iter().chain(received)).for_each(|(place, &count)| *place = count as u64);
    let peer_rows = before.chunks_exact_mut(row).zip(0..).chain(after.chunks_exact_mut(row).zip(rank + 1..));
    let with_counts = Signature { detail: mix(signature.detail, 1), ..*signature };
    let verdict = |table: &[u64]| unlike_counts(table, size).map_or(Ok(()), |unlike| Err(Stop::Counts(unlike)));
    if !topology.rides_before(row, 0) {
        let with_counts =
            Signature { dtype: Some(DType::U64), detail: mix(with_counts.detail, dtype as u64), ..with_counts };
        let chunking = Chunking::WHOLE.at_most(row * DType::U64.size());
        let mut peer_rows: Vec<_> = peer_rows.collect();
        endpoint.published(&with_counts, Some((&*own).into()), chunking, |peers| {
            peer_rows.iter_mut().try_for_each(|(place, peer)| peers.copy(*peer, 0..row, &mut (&mut **place).into()))
        })?;
        verdict(table)?;
        return Ok(None);
    }
    let rides = |bytes: usize| topology.rides_before(row, bytes);
    let payloads = endpoint.exchange_with_words(&with_counts, own, Some(send).filter(|send| rides(send.bytes())))?;
    peer_rows.into_iter().try_for_each(|(place, peer)| payloads.words(peer, place))?;
    verdict(table)?;
    let largest = table.chunks_exact(row).map(|row| total(&row[..size])).max().unwrap_or(0);
    Ok(rides(largest.saturating_mul(dtype.size())).then_some(payloads))
}
