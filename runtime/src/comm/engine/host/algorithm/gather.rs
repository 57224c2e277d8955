//! Collectives that concatenate the data of all ranks in rank order: gather, all_gather, concat.

use super::displacement;
use consonance_kernels::{
    cpu::copy::copy_own,
    group::{
        Endpoint, Fault, PeerBuffers, Rows,
        plan::{Chunking, StepKind},
    },
    memory::{HostBuf, HostBufMut, HostMemory, Memory},
};
use consonance_spec::{DType, Signature};

/// Gathers all parts on all ranks. Parts up to the payload limit travel inline with the
/// descriptors. Above it, each rank publishes its part and copies its peers' parts to their
/// positions. Each rank reads and writes all bytes once.
pub(super) fn all_gather(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
    counts: Option<&[usize]>,
) -> Result<(), Fault> {
    let parts = Parts::new(endpoint, counts, recv.count());
    let rank = endpoint.world().rank();
    let StepKind::Published(chunking) = endpoint.topology().gathering(parts.most_bytes(recv.dtype())) else {
        return parts.exchange(endpoint, signature, StepKind::Exchange, send, &mut recv);
    };
    if let Some(send) = send {
        return endpoint
            .step(signature)
            .published(Some(send), chunking, |peers| parts.collect(peers, 0..parts.size, 0, &mut recv));
    }
    let (mut before, rest) = recv.split_at(parts.start(rank));
    let (own, mut after) = rest.split_at(parts.count(rank));
    let start_after = parts.start(rank) + parts.count(rank);
    endpoint.step(signature).published(Some(own.as_buf()), chunking, |peers| {
        parts.collect(peers, 0..rank, 0, &mut before)?;
        parts.collect(peers, rank + 1..parts.size, start_after, &mut after)
    })
}

/// Gathers all parts on the root. Parts up to the payload limit travel inline with the descriptors,
/// between processes as messages: the root waits for all, the other ranks for nobody. Above it,
/// every rank but the root publishes its part, and the root copies the parts to their positions.
pub(super) fn gather(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: Option<HostBuf<'_>>,
    recv: Option<HostBufMut<'_>>,
    counts: Option<&[usize]>,
    root: usize,
) -> Result<(), Fault> {
    let size = endpoint.world().size();
    let Some(mut recv) = recv.filter(|_| endpoint.world().rank() == root) else {
        let send = send.expect("Call::sign requires send on every rank but the root");
        let bytes = Parts::new(endpoint, counts, send.count() * size).most_bytes(send.dtype());
        let chunking = Chunking::one_way(bytes, 1);
        return match endpoint.topology().one_way(signature, counts, bytes, chunking) {
            StepKind::Message => endpoint.step(signature).send_message(counts, send),
            StepKind::Exchange => endpoint.step(signature).exchange(Some(send)).map(drop),
            _ => endpoint.step(signature).published(Some(send), chunking, |_| Ok(())),
        };
    };
    let parts = Parts::new(endpoint, counts, recv.count());
    let bytes = parts.most_bytes(recv.dtype());
    let chunking = Chunking::one_way(bytes, 1);
    let step = endpoint.topology().one_way(signature, counts, bytes, chunking);
    if matches!(step, StepKind::Message | StepKind::Exchange) {
        return parts.exchange(endpoint, signature, step, send, &mut recv);
    }
    let (mut before, rest) = recv.split_at(parts.start(root));
    let (mut own, mut after) = rest.split_at(parts.count(root));
    let start_after = parts.start(root) + parts.count(root);
    endpoint.step(signature).published(None, chunking, |peers| {
        parts.collect(peers, 0..root, 0, &mut before)?;
        parts.collect(peers, root + 1..parts.size, start_after, &mut after)
    })?;
    if let Some(send) = send {
        copy_own(send, &mut own);
    }
    Ok(())
}

/// The position of each rank's part in the result.
struct Parts<'a> {
    counts: Option<&'a [usize]>,
    even: usize,
    size: usize,
}

impl<'a> Parts<'a> {
    fn new(endpoint: &Endpoint, counts: Option<&'a [usize]>, total: usize) -> Parts<'a> {
        let size = endpoint.world().size();
        Parts { counts, even: total / size, size }
    }

    fn count(&self, rank: usize) -> usize {
        self.counts.map_or(self.even, |counts| counts[rank])
    }

    fn start(&self, rank: usize) -> usize {
        displacement(self.counts, self.even, rank)
    }

    /// Returns the bytes of the largest part.
    fn most_bytes(&self, dtype: DType) -> usize {
        let most = self.counts.map_or(self.even, |counts| counts.iter().copied().max().unwrap_or(0));
        most * dtype.size()
    }

    /// Exchanges all parts inline with the descriptors, in a step of this kind. This rank's part is
    /// `send`, or already at its position in `recv`.
    fn exchange(
        &self,
        endpoint: &mut Endpoint,
        signature: &Signature,
        step: StepKind,
        send: Option<HostBuf<'_>>,
        recv: &mut HostBufMut<'_>,
    ) -> Result<(), Fault> {
        let range = |rank| self.start(rank)..self.start(rank) + self.count(rank);
        let own = send.unwrap_or_else(|| recv.as_buf().slice(range(endpoint.world().rank())));
        let rank = endpoint.world().rank();
        let peers = (0..self.size).filter(|&peer| peer != rank);
        let expected = match self.most_bytes(own.dtype()) {
            most if self.counts.is_none() || most <= endpoint.tuning().ragged_bytes => most,
            _ => 0,
        };
        let payloads = match step {
            StepKind::Message => endpoint.step(signature).receive_messages(self.counts, own, expected)?,
            _ => endpoint.step(signature).exchange_expecting(Some(own), expected)?,
        };
        peers.into_iter().try_for_each(|peer| payloads.copy(peer, 0, &mut recv.reborrow().slice(range(peer))))?;
        if let Some(send) = send {
            copy_own(send, &mut recv.reborrow().slice(range(rank)));
        }
        Ok(())
    }

    /// Copies the parts of `ranks` into `target`, whose first element is element `origin` of the
    /// result.
    fn collect(
        &self,
        peers: &PeerBuffers<'_>,
        ranks: std::ops::Range<usize>,
        origin: usize,
        target: &mut HostBufMut<'_>,
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

/// Concatenates parts of unknown counts. Each rank publishes its part. The descriptors carry all
/// sizes, so the result is allocated and filled in one step.
pub(super) fn concat(
    endpoint: &mut Endpoint,
    signature: &Signature,
    send: HostBuf<'_>,
    rows: usize,
    recv: &mut Option<Memory>,
    counts: &mut Vec<usize>,
) -> Result<(), Fault> {
    let (mut total, mut result) = (None, None);
    endpoint.step(signature).published(Some(send), Chunking::WHOLE, |peers| {
        let total = match total {
            Some(total) => total,
            None => *total.insert(peers.counts(send.dtype(), counts)?),
        };
        let memory = match &mut result {
            Some(memory) => memory,
            None => result.insert(HostMemory::try_unspecified(send.dtype(), total).map_err(|_| peers.oversize())?),
        };
        let (stride, mut start) = (total / rows.max(1), 0);
        for (rank, count) in counts.iter().enumerate() {
            peers.copy_rows(rank, &mut memory.as_buf_mut(), Rows { rows, stride, start })?;
            start += count / rows.max(1);
        }
        Ok(())
    })?;
    *recv = result.map(Memory::Host);
    Ok(())
}
