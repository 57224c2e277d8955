//! A part from each rank to each rank.

use super::{Failure, Scratch, displacement};
use consonance_kernels::{
    buffer::{Buf, BufMut},
    step::Seat,
};
use consonance_spec::{Signature, call::mix};

/// Everyone publishes all its parts and copies those meant for it. In place, a copy in scratch is what is published.
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
    let table = counts.map(|(sent, received)| exchange_counts(seat, signature, sent, received)).transpose()?;
    let send = match send {
        Some(send) => send,
        None => {
            let mut copy = scratch.room(recv.dtype(), recv.count());
            copy.copy_from(recv.as_buf());
            scratch.room(recv.dtype(), recv.count()).into_buf()
        }
    };
    let even = recv.count() / size;
    seat.published(signature, Some(send), |peers| {
        let mut start = 0;
        for peer in 0..size {
            let count = counts.map_or(even, |(_, received)| received[peer]);
            let from = displacement(table.as_ref().map(|table| table.sent(peer)), even, rank);
            peers.copy(peer, from..from + count, &mut recv.reborrow().slice(start..start + count))?;
            start += count;
        }
        Ok(())
    })?;
    Ok(())
}

/// How many elements each rank sends to each: row `r` is what rank `r` sends.
struct Table {
    counts: Vec<usize>,
    size: usize,
}

impl Table {
    fn sent(&self, rank: usize) -> &[usize] {
        &self.counts[rank * self.size..(rank + 1) * self.size]
    }
}

/// Brings all counts to all, and compares what is sent with what is expected: the same verdict on every rank.
fn exchange_counts(
    seat: &mut Seat,
    signature: &Signature,
    sent: &[usize],
    received: &[usize],
) -> Result<Table, Failure> {
    let size = seat.world().size();
    let own: Vec<u64> = sent.iter().chain(received).map(|&count| count as u64).collect();
    let mut all = vec![0u64; own.len() * size];
    let with_counts = Signature { detail: mix(signature.detail, 1), ..*signature };
    seat.published(&with_counts, Some(own.as_slice().into()), |peers| {
        for (rank, place) in all.chunks_exact_mut(own.len()).enumerate() {
            peers.copy(rank, 0..own.len(), &mut place.into())?;
        }
        Ok(())
    })?;
    let sends = |from: usize, to: usize| all[from * 2 * size + to];
    for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
        let (sent, expected) = (sends(from, to) as usize, all[to * 2 * size + size + from] as usize);
        if sent != expected {
            return Err(Failure::Counts { from, to, sent, expected });
        }
    }
    let counts = (0..size * size).map(|index| sends(index / size, index % size) as usize).collect();
    Ok(Table { counts, size })
}
