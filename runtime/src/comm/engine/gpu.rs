//! The engine of a rank whose values lie in a GPU's memory.
//!
//! The ranks meet on an engine of host memory: it compares their calls, bounds their waits and
//! names the culprit. An all-reduce between replicas of one GPU is a kernel that reads all their
//! values there and writes all results. Every other call, and every call between several GPUs or
//! with ranks on the host, is made on copies in host memory. Both have the bits of the host.
//!
//! **Invariant:** one stream orders all work of a GPU. So a rank enqueues after a meeting what
//! comes after all that any rank had enqueued before it.

use super::{AbortHandle, Buffers, Copies, Engine, Explanation, Failure, LeavesStep, Service, Way};
use crate::{
    Communicator, Device, Error, Mailbox, Result,
    comm::{call::Call, options::Configuration},
    device::{self, address},
};
use consonance_kernels::{
    cuda::{CallerStream, Gpu},
    group::{KeepWaiting, Reason},
    memory::{Buf, BufMut, HostMemory, Memory, Space},
};
use consonance_spec::{DType, Kind, ReduceOp, Signature, World};
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Added to the detail of a call that the kernels make, so that no rank makes it on host memory.
const ON_DEVICE: u64 = 0x6370_7564_655f_6e6f;

/// The engine of a rank on a GPU.
pub(crate) struct OnGpu {
    /// The engine on which the ranks meet, and whose calls are on host memory.
    ranks: Box<dyn Engine>,
    gpu: Arc<Gpu>,
    /// If all ranks are of this process and this GPU: whether the GPU may no longer access their
    /// buffers. A rank of a call that failed takes its buffers back.
    closed: Option<Arc<Mutex<bool>>>,
    /// The stream of the caller that orders the calls.
    stream: Option<CallerStream>,
    timeout: Duration,
}

impl OnGpu {
    /// Makes the engines of ranks, which meet on `ranks`: each is on a GPU or on the host.
    pub(super) fn group(ranks: Vec<Box<dyn Engine>>, gpus: Vec<Option<Arc<Gpu>>>) -> Vec<Box<dyn Engine>> {
        let is_first = |gpu: &Option<Arc<Gpu>>| {
            gpu.as_ref().zip(gpus[0].as_ref()).is_some_and(|(gpu, first)| Arc::ptr_eq(gpu, first))
        };
        let is_together = gpus.iter().all(is_first) && gpus.len() <= Gpu::MOST_SOURCES;
        let timeout = crate::CommunicationOptions::new().configuration().timeout;
        let closed = is_together.then(Arc::default);
        let on = |(ranks, gpu): (Box<dyn Engine>, Option<Arc<Gpu>>)| match gpu {
            Some(gpu) => Box::new(OnGpu { ranks, gpu, closed: closed.clone(), stream: None, timeout }),
            None => ranks,
        };
        ranks.into_iter().zip(gpus).map(on).collect()
    }

    /// Puts the ranks of a process on these devices, one each. They meet as before, also with ranks
    /// of other processes. Ranks that reach the memory of their device stay as they are.
    ///
    /// # Errors
    /// Those of [`device::open`].
    pub(crate) fn place(
        call: &'static str,
        communicators: Vec<Communicator>,
        devices: &[Device],
    ) -> Result<Vec<Communicator>> {
        let placed = communicators.into_iter().zip(devices).map(|(communicator, device)| match device.gpu() {
            Some(gpu) if !communicator.engine.reaches(device.space()) => {
                let (gpu, timeout) = (device::open(call, gpu)?, communicator.configuration.timeout);
                communicator.engine.say_gpu(gpu.device().ordinal(), gpu.device().uuid());
                let engine = Box::new(OnGpu { ranks: communicator.engine, gpu, closed: None, stream: None, timeout });
                Ok(Communicator { engine, ..communicator })
            }
            Some(_) | None => Ok(communicator),
        });
        placed.collect()
    }

    /// Makes the error of the device's. The other ranks wait for this one, so the group ends.
    fn failed(&self, what: &str, source: std::io::Error) -> Error {
        self.ranks.abort_handle().abort(Reason::Failure);
        Error::system(format!("{what} cuda:{}", self.gpu.device().ordinal()), source)
    }

    /// Returns a copy of the elements in host memory.
    fn copy(&self, buf: Buf<'_>) -> Result<HostMemory> {
        if let Some(host) = buf.host() {
            return Ok(host.into());
        }
        let mut memory = self.room(&buf)?;
        let read = self.gpu.read(address(&buf), memory.as_buf_mut());
        read.map(|()| memory).map_err(|source| self.failed("read", source))
    }

    /// Returns host memory for the elements.
    fn room(&self, buf: &Buf<'_>) -> Result<HostMemory> {
        HostMemory::try_unspecified(buf.dtype(), buf.count()).map_err(|source| {
            self.ranks.abort_handle().abort(Reason::Memory);
            Error::no_memory(buf.dtype(), buf.count())(source)
        })
    }

    /// Writes a result to its place.
    fn put(&self, recv: BufMut<'_>, result: &HostMemory) -> Result<()> {
        let to = address(&recv.as_buf());
        match recv.host() {
            Some(mut host) => {
                host.copy_from_bytes(result.as_buf().as_bytes());
                Ok(())
            }
            None => self.gpu.write(result.as_buf(), to).map_err(|source| self.failed("write", source)),
        }
    }

    /// Lets the work of all ranks begin after that of the caller's stream.
    fn begin_after_stream(&self) -> Result<()> {
        let ordered = self.stream.as_ref().map_or(Ok(()), CallerStream::precede);
        ordered.map_err(|source| self.failed("wait for a stream of", source))
    }

    /// Makes a call on copies of its buffers. Only calls on tensors have buffers of a device.
    fn staged(&mut self, call: Call<'_>, copies: Copies, signature: &Signature, name: Kind) -> Result<(), Failure> {
        const RESULT: &str = "the call has a result";
        const INPUT: &str = "the call sends";
        if self.stream.is_some() {
            self.begin_after_stream()?;
            self.gpu.wait(Instant::now() + self.timeout).map_err(|source| self.failed("wait for", source))?;
        }
        match call {
            Call::Broadcast { data, root } => self.on_copies(copies, None, Some(data), |ranks, _, recv| {
                ranks.execute(Call::Broadcast { data: recv.expect(RESULT), root }, signature, name)
            }),
            Call::Reduce { op, send, recv, root } => self.on_copies(copies, send, recv, |ranks, send, recv| {
                ranks.execute(Call::Reduce { op, send, recv, root }, signature, name)
            }),
            Call::AllReduce { op, send, recv } => self.on_copies(copies, send, Some(recv), |ranks, send, recv| {
                ranks.execute(Call::AllReduce { op, send, recv: recv.expect(RESULT) }, signature, name)
            }),
            Call::ReduceScatter { op, send, recv } => self.on_copies(copies, send, Some(recv), |ranks, send, recv| {
                ranks.execute(Call::ReduceScatter { op, send, recv: recv.expect(RESULT) }, signature, name)
            }),
            Call::Gather { send, recv, counts, root } => self.on_copies(copies, send, recv, |ranks, send, recv| {
                ranks.execute(Call::Gather { send, recv, counts, root }, signature, name)
            }),
            Call::AllGather { send, recv, counts } => self.on_copies(copies, send, Some(recv), |ranks, send, recv| {
                ranks.execute(Call::AllGather { send, recv: recv.expect(RESULT), counts }, signature, name)
            }),
            Call::Concat { send, rows, recv, counts } => {
                self.on_copies(copies, Some(send), None, |ranks, own, _| {
                    let send = own.expect(INPUT);
                    ranks.execute(Call::Concat { send, rows, recv, counts }, signature, name)
                })?;
                if let Some(Memory::Host(all)) = &*recv {
                    let device = self.alloc(send.space(), all.dtype(), all.count());
                    let mut device = device.inspect_err(|_| self.ranks.abort_handle().abort(Reason::Memory))?;
                    self.put(device.as_buf_mut(), all)?;
                    *recv = Some(device);
                }
                Ok(())
            }
            Call::Scatter { send, recv, counts, root } => self.on_copies(copies, send, recv, |ranks, send, recv| {
                ranks.execute(Call::Scatter { send, recv, counts, root }, signature, name)
            }),
            Call::AllToAll { send, recv, counts } => self.on_copies(copies, send, Some(recv), |ranks, send, recv| {
                ranks.execute(Call::AllToAll { send, recv: recv.expect(RESULT), counts }, signature, name)
            }),
            Call::Send { data, to } => self.on_copies(copies, Some(data), None, |ranks, send, _| {
                ranks.execute(Call::Send { data: send.expect(INPUT), to }, signature, name)
            }),
            Call::Recv { data, from } => self.on_copies(copies, None, Some(data), |ranks, _, recv| {
                ranks.execute(Call::Recv { data: recv.expect(RESULT), from }, signature, name)
            }),
            Call::Barrier => self.ranks.execute(Call::Barrier, signature, name),
        }
    }

    /// Executes a call on copies of these buffers, and writes the result back.
    fn on_copies(
        &mut self,
        copies: Copies,
        send: Option<Buf<'_>>,
        recv: Option<BufMut<'_>>,
        execute: impl FnOnce(&mut dyn Engine, Option<Buf<'_>>, Option<BufMut<'_>>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (send, recv) = (send.filter(|_| copies.send), recv.filter(|_| copies.result));
        let send = send.map(|send| self.copy(send)).transpose()?;
        let place = |recv: Buf<'_>| if copies.input { self.copy(recv) } else { self.room(&recv) };
        let mut result = recv.as_ref().map(|recv| place(recv.as_buf())).transpose()?;
        let sent = send.as_ref().map(|send| send.as_buf().into());
        execute(&mut *self.ranks, sent, result.as_mut().map(|result| result.as_buf_mut().into()))?;
        match recv.zip(result.as_ref()) {
            Some((recv, result)) => Ok(self.put(recv, result)?),
            None => Ok(()),
        }
    }

    /// Reduces the values of all ranks on the GPU.
    fn fold(
        &mut self,
        op: ReduceOp,
        (send, recv): (Option<Buf<'_>>, BufMut<'_>),
        signature: &Signature,
        name: Kind,
    ) -> Result<(), Failure> {
        let signature = Signature { detail: signature.detail ^ ON_DEVICE, ..*signature };
        let target = recv.as_buf();
        let source = send.unwrap_or(target);
        // No data moves before the calls are compared.
        self.ranks.execute(Call::Barrier, &signature, name)?;
        self.begin_after_stream()?;
        let enqueued = self.enqueue(op, (source, target), name);
        // Also after an error: the kernel may be enqueued.
        let ordered = self.stream.as_ref().map_or(Ok(()), CallerStream::follow);
        enqueued?;
        Ok(ordered.map_err(|source| self.failed("order a stream of", source))?)
    }

    /// Enqueues the reduction once all ranks have told where their values are. After an error
    /// nothing is enqueued any more.
    fn enqueue(&mut self, op: ReduceOp, (source, target): (Buf<'_>, Buf<'_>), name: Kind) -> Result<(), Failure> {
        let (own, mut all) = ([address(&source), address(&target)], vec![0; 2 * self.world().size()]);
        let meet = Call::AllGather { send: Some((&own[..]).into()), recv: (&mut all[..]).into(), counts: None };
        let exchange = Signature { dtype: Some(DType::U64), count: Some(2), ..Signature::new(Kind::AllGather) };
        self.ranks.execute(meet, &exchange, name).inspect_err(|_| self.set_closed(true))?;
        if self.world().rank() == 0 {
            let (sources, targets): (Vec<u64>, Vec<u64>) = all.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
            let is_closed = self.lock_closed();
            if is_closed.as_deref().is_some_and(|closed| *closed) {
                // The failed rank has ended the group, or is about to.
                self.ranks.abort_handle().abort(Reason::Failure);
            } else {
                let folded = self.gpu.fold(op, source.dtype(), (&sources, &targets), source.count());
                folded.map_err(|error| self.failed("reduce on", error))?;
            }
        }
        // The results are enqueued before any rank goes on.
        let end = self.ranks.execute(Call::Barrier, &Signature::new(Kind::Barrier), name);
        end.inspect_err(|_| self.set_closed(true))
    }

    fn lock_closed(&self) -> Option<MutexGuard<'_, bool>> {
        self.closed.as_ref().map(|closed| closed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closed, what rank 0 has not enqueued yet, it never will.
    fn set_closed(&self, is_closed: bool) {
        if let Some(mut closed) = self.lock_closed() {
            *closed = is_closed;
        }
    }
}

/// Whether two buffers share memory of a device without being the same.
fn overlap(one: &Buf<'_>, two: &Buf<'_>) -> bool {
    let (first, second) = (address(one), address(two));
    let meets = first < second + two.bytes() as u64 && second < first + one.bytes() as u64;
    let is_same = (first, one.bytes()) == (second, two.bytes());
    one.space() == two.space() && one.space() != Space::Host && meets && !is_same
}

impl Engine for OnGpu {
    fn world(&self) -> World {
        self.ranks.world()
    }

    fn service(&self) -> Service {
        self.ranks.service()
    }

    fn reaches(&self, space: Space) -> bool {
        space == Space::Host || space == self.gpu.space()
    }

    fn begin_call(&mut self) {
        self.ranks.begin_call();
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let way = self.way(&Buffers::of(&call, self.world().rank()));
        match (way, call) {
            (Way::Host, call) => self.ranks.execute(call, signature, name),
            (Way::Fold, Call::AllReduce { op, send, recv }) => self.fold(op, (send, recv), signature, name),
            (Way::Fold, _) => unreachable!("only an all-reduce is folded"),
            (Way::Copies(copies), call) => self.staged(call, copies, signature, name),
        }
    }

    fn way(&self, buffers: &Buffers) -> Way {
        Way::of(buffers, self.closed.is_some())
    }

    fn check(&self, call: &Call<'_>) -> Result<()> {
        let (send, recv) = call.buffers();
        let send = send.map(|send| ("send", *send));
        let recv = recv.map(|recv| ("recv", recv.as_buf()));
        for (argument, buf) in send.iter().chain(&recv).copied() {
            if buf.space() == Space::Host || buf.count() == 0 {
                continue;
            }
            let (at, size) = (address(&buf), buf.dtype().size());
            let invalid = |expected: String, found: String| {
                Error::invalid(call.kind().name(), argument, expected, found).of_replica(self.world().rank())
            };
            if !at.is_multiple_of(size as u64) {
                return Err(invalid(format!("an address aligned for elements of {}", buf.dtype()), format!("{at:#x}")));
            }
            let found = self.gpu.expect_memory(at, buf.bytes());
            found.map_err(|found| {
                invalid(format!("{} bytes of memory of {}", buf.bytes(), buf.space()), format!("{found} at {at:#x}"))
            })?;
        }
        match send.zip(recv) {
            Some(((_, send), (_, recv))) if overlap(&send, &recv) => {
                let (expected, found) = ("the memory of send, or none of it", "memory that overlaps it");
                let error = Error::invalid(call.kind().name(), "recv", expected, found);
                Err(error.of_replica(self.world().rank()))
            }
            _ => Ok(()),
        }
    }

    fn order_by(&mut self, stream: Option<&CallerStream>) -> Result<()> {
        self.stream = None;
        if let Some(stream) = stream {
            let (own, other) = (self.gpu.space(), stream.space());
            if own != other {
                let (expected, found) = (format!("a stream of {own}"), format!("a stream of {other}"));
                return Err(Error::invalid("Communicator::on_stream", "stream", expected, found));
            }
            let is_captured =
                stream.is_captured().map_err(|source| Error::system(format!("ask a stream of {own}"), source));
            if is_captured? {
                let (expected, found) = ("a stream that is not being captured into a graph", "one that is");
                return Err(Error::invalid("Communicator::on_stream", "stream", expected, found));
            }
            self.stream = Some(stream.clone());
        }
        Ok(())
    }

    fn has_leaves_step(&self) -> bool {
        self.ranks.has_leaves_step()
    }

    fn reduce_leaves(&mut self, step: LeavesStep<'_>, signature: &Signature, name: Kind) -> Result<bool, Failure> {
        self.ranks.reduce_leaves(step, signature, name)
    }

    fn refuse(&mut self, signature: &Signature, why: &str) -> Result<(), Failure> {
        self.ranks.refuse(signature, why)
    }

    fn late_error(&mut self) -> Option<Error> {
        self.ranks.late_error()
    }

    fn synchronize(&mut self) -> Result<()> {
        self.ranks.synchronize()?;
        self.gpu.wait(Instant::now() + self.timeout).map_err(|source| self.failed("wait for", source))
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.timeout = configuration.timeout;
        self.ranks.configure(configuration);
    }

    fn keep_waiting(&mut self, ask: KeepWaiting) {
        self.ranks.keep_waiting(ask);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.ranks.abort_handle()
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        let part = self.ranks.subgroup(members)?;
        let OnGpu { gpu, timeout, .. } = &*self;
        let on = |ranks| OnGpu { ranks, gpu: gpu.clone(), closed: None, stream: None, timeout: *timeout };
        Ok(part.map(|ranks| Box::new(on(ranks)) as Box<dyn Engine>))
    }

    fn mailbox(&mut self) -> Result<Mailbox> {
        self.ranks.mailbox()
    }

    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        if space != self.gpu.space() {
            return self.ranks.alloc(space, dtype, count);
        }
        let what = || format!("allocate {count} elements of {dtype} on {space}");
        let memory = self.gpu.alloc(dtype, count).map_err(|source| Error::system(what(), source))?;
        Ok(memory.into())
    }

    fn next_generation(&mut self) -> Result<()> {
        self.ranks.next_generation()
    }

    fn remaining(&mut self) -> Result<()> {
        self.ranks.remaining()
    }

    fn formed(&mut self) {
        self.ranks.formed();
    }

    fn waive_majority(&mut self) {
        self.ranks.waive_majority();
    }

    fn reform(&mut self) -> Result<()> {
        self.ranks.reform()
    }

    fn renew(&mut self) -> Result<()> {
        // All ranks are here, and no call is under way.
        self.ranks.renew().inspect(|()| self.set_closed(false))
    }

    fn end_run(&mut self) -> bool {
        self.ranks.end_run()
    }

    fn begin_run(&mut self) -> bool {
        let goes_on = self.ranks.begin_run();
        self.set_closed(false);
        goes_on
    }

    fn explain(&self, peer: Option<usize>) -> Explanation {
        let device = self.gpu.device();
        Explanation { gpu: Some((device.ordinal(), device.uuid())), ..self.ranks.explain(peer) }
    }

    fn blame(&self, rank: usize) {
        self.ranks.blame(rank);
    }

    fn describe_silent(&self, ranks: &[usize]) -> Vec<Option<String>> {
        self.ranks.describe_silent(ranks)
    }

    fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.ranks.set_idle(company, idle);
    }
}
