//! All-to-all: a part from each rank to each rank.

use super::{Scratch, Stop};
use crate::comm::call::unlike_counts;
use consonance_kernels::{
    cpu::copy::copy_own,
    digest::mix,
    group::{
        Endpoint, Fault, Payloads, PeerBuffers,
        plan::{Chunking, StepKind},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, Signature};
use std::{cell::RefCell, mem};

/// Exchanges parts of equal size. Up to the payload limit all parts travel inline with the
/// descriptors. Above it, each rank publishes all its parts, or in place a copy of them in scratch.
/// Each rank copies the parts that are for it.
pub(super) fn all_to_all(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
    scratch: &mut Scratch,
) -> Result<(), Fault> {
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    let even = recv.count() / size;
    let part = |_| (even * rank, even);
    if endpoint.topology().moving(recv.bytes(), Chunking::WHOLE) == StepKind::Exchange {
        let payloads = endpoint.step(signature).exchange(Some(send.unwrap_or_else(|| recv.as_buf())))?;
        return from_payloads(&payloads, (rank, size), send, recv, part);
    }
    let send = send.unwrap_or_else(|| scratch.copy(recv.as_buf()));
    let chunking = Chunking::blocks(size, even * size * recv.dtype().size());
    endpoint.step(signature).published(Some(send), chunking, |peers| from_peers(peers, size, &mut recv, part))
}

/// Exchanges parts of different sizes. Every rank's counts travel with its parts: the position of a
/// part in a peer's buffer depends on that peer's counts only. Parts up to the payload limit are
/// inline; a rank with more publishes them. If some ranks have done one and some the other, the
/// parts follow in a step of their own. The protocol depends on the totals of all ranks, so all
/// ranks choose the same; the number of windows, on the largest part for another rank.
pub(super) fn all_to_all_v(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
    (sent, received): (&[usize], &[usize]),
    scratch: &mut Scratch,
) -> Result<(), Stop> {
    let (rank, size, topology) = (endpoint.world().rank(), endpoint.world().size(), endpoint.topology());
    let mut row = mem::take(&mut scratch.row);
    row.clear();
    row.extend(sent.iter().chain(received).map(|&count| count as u64));
    let table = RefCell::new(Table::new(mem::take(&mut scratch.counts), rank, &row));
    let part = |peer: usize| (table.borrow().start(peer, received[peer]), received[peer]);
    let (dtype, own) = (recv.dtype(), send.unwrap_or_else(|| recv.as_buf()));
    let rides = |count: usize| topology.rides_before(row.len(), count.saturating_mul(dtype.size()));
    let is_short = rides(own.count());
    if is_short {
        let payloads = endpoint.step(signature).exchange_with_words(&row, own)?;
        table.borrow_mut().read(|peer, place| payloads.words(peer, place))?;
        if table.borrow().totals().all(rides) {
            from_payloads(&payloads, (rank, size), send, recv, part)?;
            (scratch.row, scratch.counts) = (row, table.into_inner().words);
            return Ok(());
        }
    }
    let send = send.unwrap_or_else(|| scratch.copy(recv.as_buf()));
    let mut collect = |peers: &mut PeerBuffers<'_>| from_peers(peers, size, &mut recv, part);
    // An element of each rank's block. No honest ranks have more than memory holds.
    let across = size * dtype.size();
    let largest_part = || table.borrow().largest_part().min(isize::MAX as usize / across);
    let is_published = if is_short {
        false
    } else if rides(0) {
        let agree = |payloads: &Payloads<'_>| {
            table.borrow_mut().read(|peer, place| payloads.words(peer, place))?;
            Ok::<_, Stop>((!table.borrow().totals().any(rides)).then(largest_part))
        };
        endpoint.step(signature).published_with_words(&row, (send, sent), agree, &mut collect)?
    } else {
        let counts = Signature { dtype: Some(DType::U64), detail: mix(signature.detail, dtype as u64), ..*signature };
        let chunking = Chunking::WHOLE.at_most(row.len() * DType::U64.size());
        endpoint.step(&counts).published(Some((&*row).into()), chunking, |peers| {
            table.borrow_mut().rows().try_for_each(|(peer, place)| peers.copy(peer, 0..row.len(), &mut place.into()))
        })?;
        table.borrow_mut().read(|_, _| Ok(()))?;
        false
    };
    if !is_published {
        let chunking = Chunking::blocks(size, largest_part() * across);
        endpoint.step(signature).published_in_blocks(send, sent, chunking, &mut collect)?;
    }
    (scratch.row, scratch.counts) = (row, table.into_inner().words);
    Ok(())
}

/// The counts of all ranks: those that a rank sends to each rank, then those that it receives from
/// each.
struct Table {
    words: Vec<u64>,
    rank: usize,
    size: usize,
}

impl Table {
    /// Returns a table that has only the row of this rank, in the memory of `words`.
    fn new(mut words: Vec<u64>, rank: usize, row: &[u64]) -> Table {
        let size = row.len() / 2;
        words.clear();
        words.resize(row.len() * size, 0);
        words[rank * row.len()..][..row.len()].copy_from_slice(row);
        Table { words, rank, size }
    }

    /// Returns the rows of the peers.
    fn rows(&mut self) -> impl Iterator<Item = (usize, &mut [u64])> {
        let Table { ref mut words, rank, size } = *self;
        words.chunks_exact_mut(2 * size).enumerate().filter(move |&(peer, _)| peer != rank)
    }

    /// Fills the rows of the peers, and compares the counts sent with those expected. Every rank
    /// comes to the same verdict.
    fn read(&mut self, mut fill: impl FnMut(usize, &mut [u64]) -> Result<(), Fault>) -> Result<(), Stop> {
        self.rows().try_for_each(|(peer, row)| fill(peer, row))?;
        unlike_counts(&self.words, self.size).map_or(Ok(()), |unlike| Err(Stop::Counts(unlike)))
    }

    /// Returns the counts that each rank sends to each rank.
    fn sent(&self) -> impl Iterator<Item = &[u64]> {
        self.words.chunks_exact(2 * self.size).map(|row| &row[..self.size])
    }

    /// Returns the elements that each rank sends.
    fn totals(&self) -> impl Iterator<Item = usize> {
        self.sent().map(total)
    }

    /// Returns the first element of `peer`'s buffer for this rank, which receives `count` of them:
    /// as the peer tells it, but no end is past the largest number.
    fn start(&self, peer: usize, count: usize) -> usize {
        total(&self.words[peer * 2 * self.size..][..self.rank]).min(usize::MAX - count)
    }

    /// Returns the elements of the largest part that a rank sends to another one.
    fn largest_part(&self) -> usize {
        let parts = self.sent().enumerate().flat_map(|(rank, row)| {
            row.iter().enumerate().filter(move |&(peer, _)| peer != rank).map(|(_, &count)| count)
        });
        parts.max().unwrap_or(0) as usize
    }
}

/// Sums counts that a rank reports: no sum is past the largest number.
fn total(counts: &[u64]) -> usize {
    counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count)) as usize
}

/// Copies the part of each rank's payload that is for this rank; `part` returns its start and its
/// count.
fn from_payloads(
    payloads: &Payloads<'_>,
    (rank, size): (usize, usize),
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
    part: impl Fn(usize) -> (usize, usize),
) -> Result<(), Fault> {
    let mut place = 0;
    for peer in 0..size {
        let (start, count) = part(peer);
        let mut recv = recv.reborrow().slice(place..place + count);
        match send {
            Some(send) if peer == rank => copy_own(send.slice(start..start + count), &mut recv),
            _ => payloads.copy(peer, start, &mut recv)?,
        }
        place += count;
    }
    Ok(())
}

/// Copies what can be read now of the part of each rank's buffer that is for this rank; `part`
/// returns its start and its count.
fn from_peers(
    peers: &mut PeerBuffers<'_>,
    size: usize,
    recv: &mut HostBufMut<'_>,
    part: impl Fn(usize) -> (usize, usize),
) -> Result<(), Fault> {
    let mut place = 0;
    for peer in 0..size {
        let (start, count) = part(peer);
        peers.copy_block(peer, start, &mut recv.reborrow().slice(place..place + count))?;
        place += count;
    }
    Ok(())
}
