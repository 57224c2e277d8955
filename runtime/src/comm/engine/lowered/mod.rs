//! Every call on an engine that carries only messages.
//!
//! The ranks exchange call [descriptors] (the fingerprint of the call's signature, and the bytes of
//! the rank's input) before any data moves. Then data moves between pairs of ranks. In round `k`
//! ranks `r` and `(k - r) mod n` exchange data. This pairing has no cycle of waiting ranks, even if
//! a send blocks until its message is received.

mod descriptors;

use self::descriptors::{Descriptor, Exchange, OF_TWO};
use super::{AbortHandle, Engine, Explanation, Failure, Service};
use crate::{
    Error, Implementation, Mailbox, Result,
    comm::{
        call::{Call, OnHost, unlike_counts},
        options::Configuration,
    },
    kind,
    profile::Transport,
};
use consonance_kernels::{
    cpu::{copy::copy_own, reduce::Reducer},
    group::{KeepWaiting, Reason},
    memory::{HostBuf, HostBufMut, HostMemory, Memory, Space},
    shm::codes::fingerprint,
};
use consonance_spec::{DType, Kind, ReduceOp, Signature, World, partition};
use std::{
    io,
    ops::Range,
    time::{Duration, Instant},
};

/// Executes all calls over an engine of messages.
pub(crate) struct Lowered {
    messages: Box<dyn Engine>,
    /// The algorithm of all-reduces. Here it changes nothing, but on any engine all ranks must
    /// choose the same one.
    implementation: Implementation,
    timeout: Duration,
    /// The deadline of the current call.
    deadline: Instant,
}

impl Lowered {
    /// Makes the engine. The caller [configures](Engine::configure) it.
    pub(crate) fn new(messages: Box<dyn Engine>) -> Lowered {
        Lowered { messages, implementation: Implementation::Auto, timeout: Duration::ZERO, deadline: Instant::now() }
    }

    /// Begins a call, whose waits share one deadline.
    fn begin(&mut self) {
        self.messages.begin_call();
        self.deadline = Instant::now() + self.timeout;
    }

    /// Waits until all ranks are in the generation that this rank has begun.
    fn meet(&mut self, why: Kind) -> Result<()> {
        self.begin();
        let met = self.agree(&kind::signature(why), None, why);
        met.map(drop).map_err(|failure| match failure {
            Failure::Error(error) => {
                if let Error::System { .. } = error {
                    // The peers wait for messages that this rank will not send.
                    self.abort_handle().abort(Reason::Memory);
                }
                error
            }
            Failure::Disagreement { .. } => {
                self.abort_handle().abort(Reason::Failure);
                Error::system(format!("{why}: meet the other replicas"), io::ErrorKind::InvalidData)
            }
        })
    }

    fn rank(&self) -> usize {
        self.world().rank()
    }

    fn size(&self) -> usize {
        self.world().size()
    }

    fn send(&mut self, data: HostBuf<'_>, to: usize, name: Kind) -> Result<(), Failure> {
        self.messages.execute(Call::Send { data: data.into(), to }, &Signature::new(Kind::SendRecv), name)
    }

    fn recv(&mut self, data: HostBufMut<'_>, from: usize, name: Kind) -> Result<(), Failure> {
        self.messages.execute(Call::Recv { data: data.into(), from }, &Signature::new(Kind::SendRecv), name)
    }

    /// Sends to `peer` and receives from it.
    fn exchange(&mut self, peer: usize, send: HostBuf<'_>, recv: HostBufMut<'_>, name: Kind) -> Result<(), Failure> {
        if self.rank() < peer {
            self.send(send, peer, name)?;
            return self.recv(recv, peer, name);
        }
        self.recv(recv, peer, name)?;
        self.send(send, peer, name)
    }

    /// Iterates over the peers in the order in which this rank meets them.
    fn meetings(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank(), self.size());
        (0..size).map(move |round| (round + size - rank) % size).filter(move |&peer| peer != rank)
    }

    /// Compares the call on all ranks. `bytes` is the size of this rank's input if peers do not
    /// know it; then returns these bytes of every rank.
    fn agree(&mut self, signature: &Signature, bytes: Option<usize>, name: Kind) -> Result<Vec<u64>, Failure> {
        let chosen = if signature.kind == Kind::AllReduce { self.implementation as u64 } else { 0 };
        let own = fingerprint(signature) ^ chosen;
        let agreed = Exchange::new(self, name).compare(own, bytes.unwrap_or(0) as u64, bytes.is_some())?;
        agreed.ok_or(Failure::Disagreement { peer: None })
    }

    /// Aborts the group because one rank made a call of all ranks and the other a send or receive:
    /// their next messages could not be told apart.
    fn out_of_step(&self, peer: usize, name: Kind, expected: &str, found: &str) -> Failure {
        self.abort_handle().abort(Reason::Failure);
        Failure::Error(Error::Mismatch {
            call: name.to_string(),
            replica: peer,
            argument: "the call".to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }

    /// Reduces block `r` of every rank's `input` on rank `r`. Returns the result of this rank's
    /// block.
    fn fold_blocks(&mut self, op: ReduceOp, input: HostBuf<'_>, name: Kind) -> Result<HostMemory, Failure> {
        let (rank, size) = (self.rank(), self.size());
        let block = |rank: usize| partition::block(input.count(), size, rank);
        let mut parts: Vec<HostMemory> = Vec::with_capacity(size);
        for _ in 0..size {
            parts.push(room(input.dtype(), block(rank).len(), name)?);
        }
        copy_own(input.slice(block(rank)), &mut parts[rank].as_buf_mut());
        for peer in self.meetings() {
            self.exchange(peer, input.slice(block(peer)), parts[peer].as_buf_mut(), name)?;
        }
        let reducer = Reducer::new(op, input.dtype()).expect("Call::sign refuses operations that are not defined");
        let mut result = room(reducer.output(), block(rank).len(), name)?;
        let inputs: Vec<HostBuf<'_>> = parts.iter().map(HostMemory::as_buf).collect();
        reducer.reduce(&inputs, &mut result.as_buf_mut());
        Ok(result)
    }

    /// Receives part `ranges[r]` of `recv` from each rank `r`. This rank's part is already in
    /// place.
    fn collect(&mut self, recv: &mut HostBufMut<'_>, ranges: &[Range<usize>], name: Kind) -> Result<(), Failure> {
        let own = &ranges[self.rank()];
        let mut part = room(recv.dtype(), own.len(), name)?;
        copy_own(recv.as_buf().slice(own.clone()), &mut part.as_buf_mut());
        for peer in self.meetings() {
            self.exchange(peer, part.as_buf(), recv.reborrow().slice(ranges[peer].clone()), name)?;
        }
        Ok(())
    }

    /// Receives on `root` part `ranges[r]` of `recv` from each rank `r`; its own part is already in
    /// place. The other ranks send `own`.
    fn gather(
        &mut self,
        own: HostBuf<'_>,
        recv: Option<&mut HostBufMut<'_>>,
        ranges: &[Range<usize>],
        root: usize,
        name: Kind,
    ) -> Result<(), Failure> {
        if self.rank() != root {
            return self.send(own, root, name);
        }
        let recv = recv.expect("Call::sign requires recv on the root");
        for peer in (0..self.size()).filter(|&peer| peer != root) {
            self.recv(recv.reborrow().slice(ranges[peer].clone()), peer, name)?;
        }
        Ok(())
    }

    /// Executes a call on which all ranks agree. `bytes` has the result of
    /// [`agree`](Lowered::agree).
    fn carry_out(&mut self, call: Call<'_>, bytes: &[u64], name: Kind) -> Result<(), Failure> {
        let (rank, size) = (self.rank(), self.size());
        let blocks =
            |count: usize| -> Vec<Range<usize>> { (0..size).map(|rank| partition::block(count, size, rank)).collect() };
        match call {
            // The root has had the descriptors of all ranks before its verdict.
            Call::Barrier => Ok(()),
            Call::Broadcast { data, root } => {
                let mut data = data.on_host();
                match rank == root {
                    true => (0..size)
                        .filter(|&peer| peer != root)
                        .try_for_each(|peer| self.send(data.reborrow().into_buf(), peer, name)),
                    false => self.recv(data, root, name),
                }
            }
            Call::AllReduce { op, send, recv } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let result = self.fold_blocks(op, send.unwrap_or_else(|| recv.as_buf()), name)?;
                let ranges = blocks(recv.count());
                copy_own(result.as_buf(), &mut recv.reborrow().slice(ranges[rank].clone()));
                self.collect(&mut recv, &ranges, name)
            }
            Call::Reduce { op, send, recv, root } => {
                let (send, mut recv) = (send.on_host(), recv.on_host());

                let input =
                    send.or_else(|| recv.as_ref().map(HostBufMut::as_buf)).expect("Call::sign requires a buffer");
                let ranges = blocks(input.count());
                let result = self.fold_blocks(op, input, name)?;
                let mut recv = recv.as_mut().filter(|_| rank == root);
                if let Some(recv) = &mut recv {
                    copy_own(result.as_buf(), &mut recv.reborrow().slice(ranges[rank].clone()));
                }
                self.gather(result.as_buf(), recv, &ranges, root, name)
            }
            Call::ReduceScatter { op, send, recv } => {
                let (send, recv) = (send.on_host(), recv.on_host());

                let result = self.fold_blocks(op, send.unwrap_or_else(|| recv.as_buf()), name)?;
                let own = if send.is_some() { 0..recv.count() } else { partition::block(recv.count(), size, rank) };
                copy_own(result.as_buf(), &mut recv.slice(own));
                Ok(())
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
                let own = send.unwrap_or_else(|| [0u8; 0].as_slice().into());
                self.gather(own, recv, &ranges, root, name)
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
                    return self.recv(recv.expect("Call::sign requires recv on every rank but the root"), root, name);
                };
                let ranges = parts(counts, send.count(), size);
                for peer in (0..size).filter(|&peer| peer != root) {
                    self.send(send.slice(ranges[peer].clone()), peer, name)?;
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
                    let recv = recv.reborrow().slice(to[peer].clone());
                    self.exchange(peer, send.slice(from[peer].clone()), recv, name)?;
                }
                Ok(())
            }
            Call::Send { .. } | Call::Recv { .. } => unreachable!("a pair's call, not a group's"),
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
            self.exchange(peer, own.as_slice().into(), (&mut table[peer * row..][..row]).into(), name)?;
        }
        Ok(unlike_counts(&table, self.size()).map_or(Ok(()), |unlike| Err(unlike.error(name)))?)
    }

    /// Executes a send or receive: compares it with `peer`'s, then moves the data.
    fn pair(&mut self, call: Call<'_>, peer: usize, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let own: Descriptor = [fingerprint(signature), OF_TWO, 0, 0];
        let mut other = own;
        self.send(own.as_slice().into(), peer, name)?;
        self.recv(other.as_mut_slice().into(), peer, name)?;
        if other[1] != OF_TWO {
            return Err(self.out_of_step(peer, name, "a send or a receive", "a call of all ranks"));
        }
        if own != other {
            return Err(Failure::Disagreement { peer: Some(peer) });
        }
        self.messages.execute(call, signature, name)
    }
}

impl Engine for Lowered {
    fn world(&self) -> World {
        self.messages.world()
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        // Calls that explain a mismatch share the deadline of the call.
        if signature.kind != kind::EXPLAIN {
            self.begin();
        }
        if self.size() == 1 && self.abort_handle().is_aborted() {
            // A rank that is alone sends no message, and would not notice.
            return Err(Error::aborted(name.name(), self.rank(), Reason::Failure).into());
        }
        let done = match call {
            Call::Send { to: peer, .. } | Call::Recv { from: peer, .. } => self.pair(call, peer, signature, name),
            call => {
                self.agree(signature, call.concat_bytes(), name).and_then(|bytes| self.carry_out(call, &bytes, name))
            }
        };
        if let Err(Failure::Error(Error::System { .. })) = &done {
            // The peers wait for messages that this rank will not send.
            self.abort_handle().abort(Reason::Memory);
        }
        done
    }

    fn configure(&mut self, configuration: &Configuration) {
        (self.implementation, self.timeout) = (configuration.implementation, configuration.timeout);
        self.messages.configure(configuration);
    }

    fn keep_waiting(&mut self, ask: KeepWaiting) {
        self.messages.keep_waiting(ask);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.messages.abort_handle()
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        let messages = self.messages.subgroup(members)?;
        Ok(messages.map(|messages| Box::new(Lowered::new(messages)) as Box<dyn Engine>))
    }

    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        self.messages.alloc(space, dtype, count)
    }

    fn renew(&mut self) -> Result<()> {
        if !self.abort_handle().is_aborted() {
            return Ok(());
        }
        self.messages.next_generation()?;
        self.meet(kind::RENEW)
    }

    fn waive_majority(&mut self) {
        self.messages.waive_majority();
    }

    fn reform(&mut self) -> Result<()> {
        self.messages.remaining()?;
        self.meet(kind::REFORM)?;
        self.messages.formed();
        Ok(())
    }

    fn end_run(&mut self) -> bool {
        self.messages.end_run()
    }

    fn begin_run(&mut self) -> bool {
        self.messages.begin_run()
    }

    fn mailbox(&mut self) -> Result<Mailbox> {
        self.messages.mailbox()
    }

    fn late_error(&mut self) -> Option<Error> {
        self.messages.late_error()
    }

    fn synchronize(&mut self) -> Result<()> {
        self.messages.synchronize()
    }

    fn explain(&self, peer: Option<usize>) -> Explanation {
        Explanation { transport: Some(Transport::Messages), ..self.messages.explain(peer) }
    }

    fn blame(&self, rank: usize) {
        self.messages.blame(rank);
    }

    fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.messages.set_idle(company, idle);
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

/// Allocates memory for elements in transit.
fn room(dtype: DType, count: usize, name: Kind) -> Result<HostMemory, Failure> {
    let what = || format!("{name}: allocate {count} elements of {dtype}");
    Ok(HostMemory::try_zeroed(dtype, count).map_err(|source| Error::system(what(), source))?)
}
