//! A part from each rank to each rank.

use super::{Failure, Scratch};
use consonance_kernels::{
    buffer::{Buf, BufMut},
    step::Seat,
};
use consonance_spec::{DType, Signature, call::mix};

/// Everyone publishes all its parts and copies those meant for it. In place, a copy in scratch is what is published. Few bytes
/// in even parts come with the arrivals.
///
/// With counts, one step before it brings every rank's counts to all: where a part begins in a peer's buffer follows from the
/// peer's counts alone.
pub(super) fn all_to_all(
    seat: &mut Seat,
    signature: &Signature,
    send: Option<Buf<'_>>,
    mut recv: BufMut<'_>,
    counts: Option<(&[usize], &[usize])>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (rank, size) = (seat.world().rank(), seat.world().size());
    let even = recv.count() / size;
    if counts.is_none() && recv.bytes() <= Seat::PAYLOAD_BYTES {
        let payloads = seat.exchange(signature, Some(send.unwrap_or_else(|| recv.as_buf())))?;
        for peer in 0..size {
            payloads.copy(peer, rank * even, &mut recv.reborrow().slice(peer * even..(peer + 1) * even))?;
        }
        return Ok(());
    }
    let mut table = std::mem::take(&mut scratch.counts);
    if let Some((sent, received)) = counts {
        exchange_counts(seat, signature, sent, received, &mut table)?;
    }
    let send = match send {
        Some(send) => send,
        None => {
            let mut copy = scratch.room(recv.dtype(), recv.count());
            copy.copy_from(recv.as_buf());
            copy.into_buf()
        }
    };
    let blocks = if counts.is_none() { size } else { 1 };
    let done = seat.published(signature, Some(send), blocks, |peers| {
        let mut start = 0;
        for peer in 0..size {
            let count = counts.map_or(even, |(_, received)| received[peer]);
            // What the peer sends to the ranks before this one.
            let from = match counts {
                Some(_) => table[peer * 2 * size..][..rank].iter().sum::<u64>() as usize,
                None => even * rank,
            };
            peers.copy(peer, from..from + count, &mut recv.reborrow().slice(start..start + count))?;
            start += count;
        }
        Ok(())
    });
    scratch.counts = table;
    Ok(done?)
}

/// Brings all counts to all, and compares what is sent with what is expected: the same verdict on every rank. In the table a
/// rank has what it sends to each, and then what it receives from each.
fn exchange_counts(
    seat: &mut Seat,
    signature: &Signature,
    sent: &[usize],
    received: &[usize],
    table: &mut Vec<u64>,
) -> Result<(), Failure> {
    let (rank, size) = (seat.world().rank(), seat.world().size());
    let row = 2 * size;
    table.clear();
    table.resize(row * size, 0);
    let (before, rest) = table.split_at_mut(rank * row);
    let (own, after) = rest.split_at_mut(row);
    own.iter_mut().zip(sent.iter().chain(received)).for_each(|(place, &count)| *place = count as u64);
    let with_counts = Signature { dtype: Some(DType::U64), detail: mix(signature.detail, 1), ..*signature };
    seat.published(&with_counts, Some((&*own).into()), 1, |peers| {
        let peer_rows = before.chunks_exact_mut(row).zip(0..).chain(after.chunks_exact_mut(row).zip(rank + 1..));
        peer_rows.into_iter().try_for_each(|(place, peer)| peers.copy(peer, 0..row, &mut place.into()))
    })?;
    for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
        let (sent, expected) = (table[from * row + to] as usize, table[to * row + size + from] as usize);
        if sent != expected {
            return Err(Failure::Counts { from, to, sent, expected });
        }
    }
    Ok(())
}
