//! The data of a call on which the ranks agree.

use super::{Lowered, direct};
use crate::{
    Error, Result,
    comm::{
        call::{Call, OnHost, unlike_counts},
        engine::Failure,
    },
};
use consonance_kernels::{
    cpu::{copy::copy_own, reduce::Reducer},
    memory::{HostBuf, HostBufMut, HostMemory, Memory},
};
use consonance_spec::{DType, Kind, ReduceOp, partition};
use std::ops::Range;

/// The size of the pieces in which data are reduced while others arrive, in bytes. A wire carries
/// as many in one message without a copy to put them together.
const PIECE_BYTES: usize = 256 << 10;

const DEFINED: &str = "Call::sign refuses operations that are not defined";

impl Lowered {
    /// Returns the first data of a call that this rank sends to a peer, if it knows them before the
    /// ranks agree.
    pub(super) fn first_data<'d>(&self, call: &'d Call<'_>, peer: usize) -> Option<HostBuf<'d>> {
        let (rank, size) = (self.rank(), self.size());
        let part = |buf: HostBuf<'d>, counts, rank: usize| {
            let ranges = parts(counts, buf.count(), size);
            buf.slice(ranges[rank].clone())
        };
        match call {
            Call::Barrier | Call::Recv { .. } => None,
            Call::Broadcast { data, root } => (rank == *root).then(|| data.as_buf().on_host()),
            Call::Send { data, to } => (peer == *to).then(|| data.on_host()),
            Call::AllReduce { send, recv, .. } => Some(send.unwrap_or_else(|| recv.as_buf()).on_host()),
            Call::Reduce { send, root, .. } => send.filter(|_| peer == *root).on_host(),
            Call::ReduceScatter { send, recv, .. } => {
                Some(part(send.unwrap_or_else(|| recv.as_buf()).on_host(), None, peer))
            }
            Call::Gather { send, root, .. } => send.filter(|_| peer == *root).on_host(),
            Call::AllGather { send, recv, counts } => match send {
                Some(send) => Some(send.on_host()),
                None => Some(part(recv.as_buf().on_host(), *counts, rank)),
            },
            Call::Concat { send, .. } => Some(send.on_host()),
            Call::Scatter { send, counts, root, .. } => {
                send.filter(|_| rank == *root).map(|send| part(send.on_host(), *counts, peer))
            }
            // Of counts it is not known before that they match.
            Call::AllToAll { counts: Some(_), .. } => None,
            Call::AllToAll { send, recv, counts: None } => {
                Some(part(send.unwrap_or_else(|| recv.as_buf()).on_host(), None, peer))
            }
        }
    }

    /// Sends data of the call, unless the peer has them.
    fn send_data(&mut self, data: HostBuf<'_>, to: usize, name: Kind) -> Result<(), Failure> {
        if data.count() == 0 || !self.first.must_send(to) { Ok(()) } else { self.send(data, to, name) }
    }

    /// Receives data of the call, unless they are here.
    fn recv_data(&mut self, mut data: HostBufMut<'_>, from: usize, name: Kind) -> Result<(), Failure> {
        if data.count() == 0 {
            return Ok(());
        }
        let taken = self.first.take(from, |bytes| {
            let fits = bytes.len() == data.bytes();
            fits.then(|| data.copy_from_bytes(bytes)).is_some()
        });
        match taken {
            Some(true) => Ok(()),
            Some(false) => Err(self.garbled("data", from, name)),
            None => self.recv(data, from, name),
        }
    }

    /// Sends to a peer what the next [`exchange`](Lowered::exchange) with it exchanges, if no send
    /// waits for its receiver. Several exchanges then go on at once. The data are kept until they
    /// are on their way: at most as many as the call has in all.
    fn offer(&mut self, peer: usize, send: HostBuf<'_>, name: Kind) -> Result<(), Failure> {
        if self.has_letters { self.send_data(send, peer, name) } else { Ok(()) }
    }

    /// Sends to `peer`, unless that was [offered](Lowered::offer), and receives from it.
    fn exchange(&mut self, peer: usize, send: HostBuf<'_>, recv: HostBufMut<'_>, name: Kind) -> Result<(), Failure> {
        if self.has_letters {
            return self.recv_data(recv, peer, name);
        }
        if self.rank() < peer {
            self.send_data(send, peer, name)?;
            return self.recv_data(recv, peer, name);
        }
        self.recv_data(recv, peer, name)?;
        self.send_data(send, peer, name)
    }

    /// Returns the range of an input of `count` elements of this type that each rank reduces: all
    /// of it in a group of two, where as many bytes move in fewer messages, and if it is small;
    /// else a block.
    fn shares(&self, dtype: DType, count: usize) -> Vec<Range<usize>> {
        let size = self.size();
        match size <= 2 || count * dtype.size() <= direct::limit(size - 1) {
            true => vec![0..count; size],
            false => blocks(count, size),
        }
    }

    /// Reduces part `shares[r]` of all ranks' inputs on each rank `r`; nothing where that is empty.
    /// A large part is reduced in pieces, each as soon as it has arrived.
    fn reduce_shares(
        &mut self,
        op: ReduceOp,
        mut data: Reduced<'_>,
        shares: &[Range<usize>],
        name: Kind,
    ) -> Result<(), Failure> {
        let (rank, dtype) = (self.rank(), data.input().dtype());
        let most = if self.has_letters { PIECE_BYTES / dtype.size() } else { usize::MAX };
        for peer in self.meetings() {
            pieces(&shares[peer], most).try_for_each(|piece| self.offer(peer, data.input().slice(piece), name))?;
        }
        for piece in pieces(&shares[rank], most) {
            let mut parts = Vec::new();
            for peer in self.meetings() {
                let send = data.input().slice(shares[peer].clone());
                parts.push((peer, self.exchange_part(peer, send, piece.len(), name)?));
            }
            if !piece.is_empty() {
                parts.sort_unstable_by_key(|(peer, _)| *peer);
                data.reduce(op, rank, piece.start - shares[rank].start, piece, &parts);
            }
        }
        Ok(())
    }

    /// [Exchanges](Lowered::exchange) data, and receives `count` elements of the same type into new
    /// memory.
    fn exchange_part(
        &mut self,
        peer: usize,
        send: HostBuf<'_>,
        count: usize,
        name: Kind,
    ) -> Result<HostMemory, Failure> {
        let dtype = send.dtype();
        if self.has_letters && count > 0 && !self.first.has(peer) {
            let bytes = self.messages.receive(peer, name)?;
            let fits = bytes.len() == count * dtype.size();
            return fits.then(|| HostMemory::from_bytes(dtype, bytes)).ok_or_else(|| self.garbled("data", peer, name));
        }
        let mut part = room(dtype, count, name)?;
        self.exchange(peer, send, part.as_buf_mut(), name)?;
        Ok(part)
    }

    /// Receives part `ranges[r]` of `recv` from each rank `r`. This rank's part is already in
    /// place.
    fn collect(&mut self, recv: &mut HostBufMut<'_>, ranges: &[Range<usize>], name: Kind) -> Result<(), Failure> {
        let own = &ranges[self.rank()];
        let mut part = room(recv.dtype(), own.len(), name)?;
        copy_own(recv.as_buf().slice(own.clone()), &mut part.as_buf_mut());
        for peer in self.meetings() {
            self.offer(peer, part.as_buf(), name)?;
        }
        for peer in self.meetings() {
            self.exchange(peer, part.as_buf(), recv.reborrow().slice(ranges[peer].clone()), name)?;
        }
        Ok(())
    }

    /// Receives on `root` part `ranges[r]` of `recv` from each rank `r`; its own part is already in
    /// place. The other ranks send `own`.
    fn gather(
        &mut self,
        own: Option<HostBuf<'_>>,
        recv: Option<&mut HostBufMut<'_>>,
        ranges: &[Range<usize>],
        root: usize,
        name: Kind,
    ) -> Result<(), Failure> {
        if self.rank() != root {
            return self.send_data(own.expect("Call::sign requires a buffer"), root, name);
        }
        let recv = recv.expect("Call::sign requires recv on the root");
        for peer in (0..self.size()).filter(|&peer| peer != root) {
            self.recv_data(recv.reborrow().slice(ranges[peer].clone()), peer, name)?;
        }
        Ok(())
    }

    /// Executes a call on which all ranks agree. `bytes` has the result of
    /// [`agree`](Lowered::agree).
    pub(super) fn carry_out(&mut self, call: Call<'_>, bytes: &[u64], name: Kind) -> Result<(), Failure> {
        let (rank, size) = (self.rank(), self.size());
        match call {
            // All descriptors have arrived before the verdict.
            Call::Barrier => Ok(()),
            Call::Broadcast { data, root } => {
                let mut data = data.on_host();
                match rank == root {
                    true => (0..size)
                        .filter(|&peer| peer != root)
                        .try_for_each(|peer| self.send_data(data.reborrow().into_buf(), peer, name)),
                    false => self.recv_data(data, root, name),
                }
            }
            Call::AllReduce { op, send, recv } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let input = send.unwrap_or_else(|| recv.as_buf());
                let (shares, count) = (self.shares(input.dtype(), input.count()), input.count());
                let own = shares[rank].clone();
                let data = match send {
                    Some(send) => Reduced::Apart(send, recv.reborrow().slice(own.clone())),
                    None => Reduced::InPlace(recv.reborrow()),
                };
                self.reduce_shares(op, data, &shares, name)?;
                // The last block is the shortest.
                if shares[size - 1].len() == count { Ok(()) } else { self.collect(&mut recv, &shares, name) }
            }
            Call::Reduce { op, send, recv, root } => {
                let (mut send, mut recv) = (send.on_host(), recv.on_host());

                if rank != root {
                    // A call in place only reads the data there.
                    send = send.or(recv.take().map(HostBufMut::into_buf));
                }
                let input =
                    send.or_else(|| recv.as_ref().map(HostBufMut::as_buf)).expect("Call::sign requires a buffer");
                let (dtype, count) = (input.dtype(), input.count());
                let mut shares = self.shares(dtype, count);
                let is_whole = shares[root].len() == count;
                if is_whole {
                    (0..size).filter(|&rank| rank != root).for_each(|rank| shares[rank] = 0..0);
                }
                let own = shares[rank].clone();
                let mut result = None;
                let data = match (send, recv.as_mut()) {
                    (Some(send), Some(recv)) => Reduced::Apart(send, recv.reborrow().slice(own.clone())),
                    (None, Some(recv)) => Reduced::InPlace(recv.reborrow()),
                    (_, None) => {
                        let result = result.insert(room(op.result(dtype).expect(DEFINED), own.len(), name)?);
                        Reduced::Apart(send.expect("Call::sign requires a buffer"), result.as_buf_mut())
                    }
                };
                self.reduce_shares(op, data, &shares, name)?;
                if is_whole {
                    return Ok(());
                }
                self.gather(result.as_ref().map(HostMemory::as_buf), recv.as_mut(), &shares, root, name)
            }
            Call::ReduceScatter { op, send, recv } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let blocks = blocks(send.map_or(recv.count(), |send| send.count()), size);
                let data = match send {
                    Some(send) => Reduced::Apart(send, recv.reborrow()),
                    None => Reduced::InPlace(recv.reborrow()),
                };
                self.reduce_shares(op, data, &blocks, name)
            }
            Call::Gather { send, recv, counts, root } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let mut recv = recv.as_mut().filter(|_| rank == root);
                let total = |count: usize| counts.map_or(count, |counts| counts.iter().sum());
                let ranges = match (&recv, send) {
                    (Some(recv), _) => parts(counts, recv.count(), size),
                    (None, Some(send)) => parts(counts, total(send.count() * size), size),
                    (None, None) => unreachable!("Call::sign requires a buffer"),
                };
                if let (Some(recv), Some(send)) = (&mut recv, send) {
                    copy_own(send, &mut recv.reborrow().slice(ranges[rank].clone()));
                }
                self.gather(send, recv, &ranges, root, name)
            }
            Call::AllGather { send, recv, counts } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let ranges = parts(counts, recv.count(), size);
                if let Some(send) = send {
                    copy_own(send, &mut recv.reborrow().slice(ranges[rank].clone()));
                }
                self.collect(&mut recv, &ranges, name)
            }
            Call::Concat { send, rows, recv, counts } => {
                let send = send.on_host();

                counts.clear();
                counts.extend(bytes.iter().map(|&bytes| bytes as usize / send.dtype().size()));
                self.concat(send, rows, recv, counts, name)
            }
            Call::Scatter { send, recv, counts, root } => {
                let (send, recv) = (send.on_host(), recv.on_host());

                let Some(send) = send.filter(|_| rank == root) else {
                    return self.recv_data(
                        recv.expect("Call::sign requires recv on every rank but the root"),
                        root,
                        name,
                    );
                };
                let ranges = parts(counts, send.count(), size);
                for peer in (0..size).filter(|&peer| peer != root) {
                    self.send_data(send.slice(ranges[peer].clone()), peer, name)?;
                }
                if let Some(mut recv) = recv {
                    copy_own(send.slice(ranges[rank].clone()), &mut recv);
                }
                Ok(())
            }
            Call::AllToAll { send, recv, counts } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let (sent, received) = match counts {
                    Some((sent, received)) => {
                        self.compare_counts(sent, received, name)?;
                        (Some(sent), Some(received))
                    }
                    None => (None, None),
                };
                let copy;
                let send = match send {
                    Some(send) => send,
                    None => {
                        let mut own = room(recv.dtype(), recv.count(), name)?;
                        copy_own(recv.as_buf(), &mut own.as_buf_mut());
                        copy = own;
                        copy.as_buf()
                    }
                };
                let (from, to) = (parts(sent, send.count(), size), parts(received, recv.count(), size));
                copy_own(send.slice(from[rank].clone()), &mut recv.reborrow().slice(to[rank].clone()));
                for peer in self.meetings() {
                    self.offer(peer, send.slice(from[peer].clone()), name)?;
                }
                for peer in self.meetings() {
                    let recv = recv.reborrow().slice(to[peer].clone());
                    self.exchange(peer, send.slice(from[peer].clone()), recv, name)?;
                }
                Ok(())
            }
            Call::Send { data, to } => self.send_data(data.on_host(), to, name),
            Call::Recv { data, from } => self.recv_data(data.on_host(), from, name),
        }
    }

    /// Executes [`Call::Concat`] for parts of these counts.
    fn concat(
        &mut self,
        send: HostBuf<'_>,
        rows: usize,
        recv: &mut Option<Memory>,
        counts: &[usize],
        name: Kind,
    ) -> Result<(), Failure> {
        let dtype = send.dtype();
        let total = counts.iter().try_fold(0usize, |total, &count| total.checked_add(count)).unwrap_or(usize::MAX);
        let mut result = room(dtype, total, name)?;
        let (rows, mut parts) = (rows.max(1), Vec::with_capacity(counts.len()));
        for &count in counts {
            parts.push(room(dtype, count, name)?);
        }
        copy_own(send, &mut parts[self.rank()].as_buf_mut());
        for peer in self.meetings() {
            self.offer(peer, send, name)?;
        }
        for peer in self.meetings() {
            self.exchange(peer, send, parts[peer].as_buf_mut(), name)?;
        }
        let (stride, mut start) = (total / rows, 0);
        for part in &parts {
            let inner = part.count() / rows;
            for row in 0..rows {
                let target = row * stride + start;
                let mut target = result.as_buf_mut().slice(target..target + inner);
                copy_own(part.as_buf().slice(row * inner..(row + 1) * inner), &mut target);
            }
            start += inner;
        }
        *recv = Some(result.into());
        Ok(())
    }

    /// Compares the counts that each rank sends with those that its peers expect. Every rank comes
    /// to the same verdict.
    fn compare_counts(&mut self, sent: &[usize], received: &[usize], name: Kind) -> Result<(), Failure> {
        let row = 2 * self.size();
        let own: Vec<u64> = sent.iter().chain(received).map(|&count| count as u64).collect();
        let mut table = vec![0u64; row * self.size()];
        table[self.rank() * row..][..row].copy_from_slice(&own);
        for peer in self.meetings() {
            self.offer(peer, own.as_slice().into(), name)?;
        }
        for peer in self.meetings() {
            self.exchange(peer, own.as_slice().into(), (&mut table[peer * row..][..row]).into(), name)?;
        }
        Ok(unlike_counts(&table, self.size()).map_or(Ok(()), |unlike| Err(unlike.error(name)))?)
    }
}

/// Returns the range of each rank's part in `total` elements: contiguous parts of these counts, or
/// even parts without counts.
fn parts(counts: Option<&[usize]>, total: usize, size: usize) -> Vec<Range<usize>> {
    let mut start = 0;
    let part = |rank: usize| {
        let begin = start;
        start += counts.map_or(total / size, |counts| counts[rank]);
        begin..start
    };
    (0..size).map(part).collect()
}

/// Returns the block of `count` elements of each rank.
fn blocks(count: usize, size: usize) -> Vec<Range<usize>> {
    (0..size).map(|rank| partition::block(count, size, rank)).collect()
}

/// Divides a range into pieces of at most `most` elements; one piece if it is empty.
fn pieces(range: &Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let Range { start, end } = *range;
    let count = range.len().div_ceil(most).max(1);
    (0..count).map(move |piece| start + piece * most..end.min(start.saturating_add((piece + 1).saturating_mul(most))))
}

/// The data of a reduction.
enum Reduced<'a> {
    /// The input, whose part that this rank reduces is replaced by the result.
    InPlace(HostBufMut<'a>),
    /// The input, and the place of the result of this rank's part.
    Apart(HostBuf<'a>, HostBufMut<'a>),
}

impl Reduced<'_> {
    fn input(&self) -> HostBuf<'_> {
        match self {
            Reduced::InPlace(data) => data.as_buf(),
            Reduced::Apart(input, _) => *input,
        }
    }

    /// Reduces a range of the inputs: that of rank `rank`, which these data are, and those of the
    /// others, in rank order. The result begins at element `at` of its place.
    fn reduce(&mut self, op: ReduceOp, rank: usize, at: usize, range: Range<usize>, others: &[(usize, HostMemory)]) {
        let mut inputs: Vec<HostBuf<'_>> = others.iter().map(|(_, part)| part.as_buf()).collect();
        let reducer = Reducer::new(op, self.input().dtype()).expect(DEFINED);
        match self {
            Reduced::InPlace(data) => reducer.reduce_in_place(rank, &mut data.reborrow().slice(range), &inputs),
            Reduced::Apart(input, result) => {
                let count = range.len();
                inputs.insert(rank, input.slice(range));
                reducer.reduce(&inputs, &mut result.reborrow().slice(at..at + count));
            }
        }
    }
}

/// Allocates memory for elements in transit.
fn room(dtype: DType, count: usize, name: Kind) -> Result<HostMemory, Failure> {
    let what = || format!("{name}: allocate {count} elements of {dtype}");
    Ok(HostMemory::try_unspecified(dtype, count).map_err(|source| Error::system(what(), source))?)
}
