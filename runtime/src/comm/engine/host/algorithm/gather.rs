//! Data of all ranks in rank order: gather, all_gather, concat.

use super::displacement;
use consonance_kernels::{
    group::{
        Fault, Peers, Rows, Seat,
        plan::{Cut, Step},
        tuning::RAGGED_BYTES,
    },
    memory::{Buf, BufMut, Memory},
};
use consonance_spec::{DType, Signature};

/// Parts up to a payload come with the arrivals. Above, everyone publishes its part; everyone copies the others' parts to their
/// places. Each rank reads and writes all bytes once.
pub(super) fn all_gather(
    seat: &mut Seat,
    signature: &Signature,
    send: Option<Buf<'_>>,
    mut recv: BufMut<'_>,
    counts: Option<&[usize]>,
) -> Result<(), Fault> {
    let parts = Parts::new(seat, counts, recv.count());
    let rank = seat.world().rank();
    let Step::Published(cut) = seat.ground().gathering(parts.most_bytes(recv.dtype())) else {
        return parts.exchange(seat, signature, send, &mut recv);
    };
    if let Some(send) = send {
        return seat.published(signature, Some(send), cut, |peers| parts.collect(peers, 0..parts.size, 0, &mut recv));
    }
    let (mut before, rest) = recv.split_at(parts.start(rank));
    let (own, mut after) = rest.split_at(parts.count(rank));
    let start_after = parts.start(rank) + parts.count(rank);
    seat.published(signature, Some(own.as_buf()), cut, |peers| {
        parts.collect(peers, 0..rank, 0, &mut before)?;
        parts.collect(peers, rank + 1..parts.size, start_after, &mut after)
    })
}

/// Parts up to a payload come with the arrivals; above, everyone but the root publishes its part. The root copies them to their
/// places.
pub(super) fn gather(
    seat: &mut Seat,
    signature: &Signature,
    send: Option<Buf<'_>>,
    recv: Option<BufMut<'_>>,
    counts: Option<&[usize]>,
    root: usize,
) -> Result<(), Fault> {
    let size = seat.world().size();
    let Some(mut recv) = recv.filter(|_| seat.world().rank() == root) else {
        let send = send.expect("Call::sign requires send on every rank but the root");
        let bytes = Parts::new(seat, counts, send.count() * size).most_bytes(send.dtype());
        let cut = Cut::one_way(bytes, 1);
        return match seat.ground().moving(bytes, cut) {
            Step::Exchange => seat.exchange(signature, Some(send)).map(drop),
            _ => seat.published(signature, Some(send), cut, |_| Ok(())),
        };
    };
    let parts = Parts::new(seat, counts, recv.count());
    let bytes = parts.most_bytes(recv.dtype());
    let cut = Cut::one_way(bytes, 1);
    if seat.ground().moving(bytes, cut) == Step::Exchange {
        return parts.exchange(seat, signature, send, &mut recv);
    }
    let (mut before, rest) = recv.split_at(parts.start(root));
    let (mut own, mut after) = rest.split_at(parts.count(root));
    let start_after = parts.start(root) + parts.count(root);
    seat.published(signature, None, cut, |peers| {
        parts.collect(peers, 0..root, 0, &mut before)?;
        parts.collect(peers, root + 1..parts.size, start_after, &mut after)
    })?;
    if let Some(send) = send {
        own.copy_from(send);
    }
    Ok(())
}

/// Where each rank's part lies in the result.
struct Parts<'a> {
    counts: Option<&'a [usize]>,
    even: usize,
    size: usize,
}

impl<'a> Parts<'a> {
    fn new(seat: &Seat, counts: Option<&'a [usize]>, total: usize) -> Parts<'a> {
        let size = seat.world().size();
        Parts { counts, even: total / size, size }
    }

    fn count(&self, rank: usize) -> usize {
        self.counts.map_or(self.even, |counts| counts[rank])
    }

    fn start(&self, rank: usize) -> usize {
        displacement(self.counts, self.even, rank)
    }

    /// Bytes of the largest.
    fn most_bytes(&self, dtype: DType) -> usize {
        let most = self.counts.map_or(self.even, |counts| counts.iter().copied().max().unwrap_or(0));
        most * dtype.size()
    }

    /// All of them with the arrivals: this rank's is `send`, or where it belongs.
    fn exchange(
        &self,
        seat: &mut Seat,
        signature: &Signature,
        send: Option<Buf<'_>>,
        recv: &mut BufMut<'_>,
    ) -> Result<(), Fault> {
        let range = |rank| self.start(rank)..self.start(rank) + self.count(rank);
        let own = send.unwrap_or_else(|| recv.as_buf().slice(range(seat.world().rank())));
        let rank = seat.world().rank();
        let peers = (0..self.size).filter(|&peer| peer != rank);
        let expected = match self.most_bytes(own.dtype()) {
            most if self.counts.is_none() || most <= RAGGED_BYTES => most,
            _ => 0,
        };
        let payloads = seat.exchange_expecting(signature, Some(own), expected)?;
        peers.into_iter().try_for_each(|peer| payloads.copy(peer, 0, &mut recv.reborrow().slice(range(peer))))?;
        if let Some(send) = send {
            recv.reborrow().slice(range(rank)).copy_from(send);
        }
        Ok(())
    }

    /// Copies the parts of `ranks` into `target`, whose first element is element `origin` of the result.
    fn collect(
        &self,
        peers: &Peers<'_>,
        ranks: std::ops::Range<usize>,
        origin: usize,
        target: &mut BufMut<'_>,
    ) -> Result<(), Fault> {
        let mut start = ranks.clone().next().map_or(origin, |first| self.start(first));
        for rank in ranks {
            let end = start + self.count(rank);
            peers.copy(rank, 0..self.count(rank), &mut target.reborrow().slice(start - origin..end - origin))?;
            start = end;
        }
        Ok(())
    }
}

/// Everyone publishes its part; with the arrivals come all sizes, so that the result is allocated and filled in one step.
pub(super) fn concat(
    seat: &mut Seat,
    signature: &Signature,
    send: Buf<'_>,
    rows: usize,
    recv: &mut Option<Memory>,
    counts: &mut Vec<usize>,
) -> Result<(), Fault> {
    let mut total = None;
    seat.published(signature, Some(send), Cut::WHOLE, |peers| {
        let total = match total {
            Some(total) => total,
            None => *total.insert(peers.counts(send.dtype(), counts)?),
        };
        let memory = match recv {
            Some(memory) => memory,
            None => recv.insert(Memory::try_zeroed(send.dtype(), total).map_err(|_| peers.oversize())?),
        };
        let (stride, mut start) = (total / rows.max(1), 0);
        for (rank, count) in counts.iter().enumerate() {
            peers.copy_rows(rank, &mut memory.as_buf_mut(), Rows { rows, stride, start })?;
            start += count / rows.max(1);
        }
        Ok(())
    })
}
