//! The raw layer: collectives on slices, for backends of frameworks and numeric code.

use crate::{
    CommunicationOptions, Error, Implementation, Result,
    backend::{Arguments, Backend, Configuration, Host},
    call::Call,
    error::{IntoReduceOp, op_of},
    options,
};
use consonance_kernels::{
    buffer::Memory,
    plan::Ground,
    step::{Aborter, Reason, Seat},
};
use consonance_spec::{Element, Kind, ReduceOp, Signature, World};
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut, Range},
    sync::Arc,
    time::Duration,
};

/// Elements in memory that all ranks of a group can read and write in place: see [`Communicator::alloc`].
pub struct SharedMemory<T> {
    memory: Memory,
    element: PhantomData<T>,
}

impl<T: Element> Deref for SharedMemory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.as_buf().as_slice().expect("made for this type")
    }
}

impl<T: Element> DerefMut for SharedMemory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_buf_mut().into_mut_slice().expect("made for this type")
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for SharedMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// One rank of a group, with MPI's collectives on slices.
///
/// Every rank makes the same calls in the same order; a rank that does not is named in the error of all. The result of a
/// reduction has the same bits on every rank, for every size, position and [`Implementation`].
///
/// Names without a suffix work in place; `_into` reads one slice and writes another; `_v` takes a count for each rank.
/// Blocking calls on slices allocate nothing after the first of their size. In errors, a replica is a rank.
///
/// A call that cannot be right is made all the same, so that the others are told at once: it waits for them as any call does.
///
/// ```
/// use consonance::{Communicator, ReduceOp};
/// let ranks = Communicator::threads(3);
/// let sums = std::thread::scope(|scope| {
///     let threads: Vec<_> = ranks
///         .into_iter()
///         .map(|mut communicator| {
///             scope.spawn(move || {
///                 let mut data = [communicator.rank() as f32, 1.0];
///                 communicator.all_reduce(ReduceOp::Sum, &mut data).map(|()| data)
///             })
///         })
///         .collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(sums, [[3.0, 3.0]; 3]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct Communicator {
    backend: Box<dyn Backend>,
    configuration: Configuration,
}

impl Communicator {
    /// The communicators of a new group of `size` threads of this process, in rank order: give each to a thread of its own.
    ///
    /// A rank that is dropped has left the group: who waits for it gets [`Error::Left`]. A group of 0 is empty.
    pub fn threads(size: usize) -> Vec<Communicator> {
        let configuration = CommunicationOptions::new().configuration();
        Seat::group(size, configuration.timeout)
            .into_iter()
            .map(|seat| Communicator::on_seat(seat, configuration))
            .collect()
    }

    pub(crate) fn on_seat(seat: Seat, configuration: Configuration) -> Communicator {
        Communicator { backend: Box::new(Host::new(seat, configuration, None)), configuration }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn in_processes(
        seat: Seat,
        configuration: Configuration,
        processes: Arc<dyn crate::backend::Processes>,
    ) -> Communicator {
        Communicator { backend: Box::new(Host::new(seat, configuration, Some(processes))), configuration }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.world().rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.world().size()
    }

    /// This rank and the number of ranks.
    pub fn world(&self) -> World {
        self.backend.world()
    }

    /// Sets how long a call waits for a peer: more than zero and at most a day. By default 5 minutes.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for any other timeout.
    ///
    /// ```
    /// # use consonance::{Communicator, Error};
    /// use std::time::Duration;
    /// let mut ranks = Communicator::threads(2);
    /// // Rank 1 makes no call.
    /// ranks[0].set_timeout(Duration::from_millis(20))?;
    /// assert!(matches!(ranks[0].barrier(), Err(Error::Timeout { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        let timeout = options::check_timeout("Communicator::set_timeout", timeout)?;
        self.configure(Configuration { timeout, ..self.configuration });
        Ok(())
    }

    /// Sets how an all-reduce is done: the same on every rank, or a call fails as a mismatch.
    pub fn set_implementation(&mut self, implementation: Implementation) {
        self.configure(Configuration { implementation, ..self.configuration });
    }

    pub(crate) fn configure(&mut self, configuration: Configuration) {
        if configuration != self.configuration {
            self.configuration = configuration;
            self.backend.configure(&configuration);
        }
    }

    /// `count` elements, all zero, in memory that every rank of this group can read and write in place: with such data
    /// collectives of processes copy nothing that they need not. Of threads, any memory is so. Of processes it is made of huge
    /// pages from 2 MiB on, where the system (Linux 6.1 and later) has some, which takes about as long as to fill it once.
    ///
    /// It stays when the group has ended, but the data of another group's collectives are copied again. A process made by `fork`
    /// has none of it, and a core dump leaves that of processes out.
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory for them.
    ///
    /// ```
    /// use consonance::{Communicator, ReduceOp};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut gradients = alone.alloc::<f32>(1000)?;
    /// gradients.fill(0.5);
    /// alone.all_reduce(ReduceOp::Sum, &mut gradients)?;
    /// assert_eq!(gradients[999], 0.5);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn alloc<T: Element>(&self, count: usize) -> Result<SharedMemory<T>> {
        Ok(SharedMemory { memory: self.backend.alloc(T::DTYPE, count)?, element: PhantomData })
    }

    /// What the way of this group's data depends on, or of what goes to and from `peer`, once something has: for
    /// `consonance explain`.
    #[doc(hidden)]
    pub fn ground(&self, peer: Option<usize>) -> Ground {
        self.backend.ground(peer)
    }

    /// Ends the group: every rank that waits in it, or calls anything in it later, gets [`Error::Aborted`]. Waits for nobody.
    pub fn abort(&self) {
        self.backend.aborter().abort(Reason::Failure);
    }

    pub(crate) fn aborter(&self) -> Aborter {
        self.backend.aborter()
    }

    /// After an abort, waits until all ranks are ready to go on, and goes on; otherwise does nothing.
    pub(crate) fn renew(&mut self) -> Result<()> {
        self.backend.renew()
    }

    /// Says whether this rank rests: it makes no call before `company`, ranks of the same process, have ended theirs.
    pub(crate) fn rest(&mut self, company: Range<usize>, resting: bool) {
        self.backend.rest(company, resting);
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// As every collective: [`Error::Mismatch`], [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`].
    pub fn barrier(&mut self) -> Result<()> {
        self.call(Call::Barrier)
    }

    /// Combines every rank's `data` into each rank's `data`.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] if `op` is not defined on `T`, or its result is of another type (the mean of
    /// integers); otherwise as [`barrier`](Communicator::barrier).
    ///
    /// ```
    /// # use consonance::{Communicator, Error, ReduceOp};
    /// # fn step(communicator: &mut Communicator) -> Result<(), Error> {
    /// let mut gradients = vec![0.5f32; 1000];
    /// communicator.all_reduce(ReduceOp::Mean, &mut gradients)?;
    /// # Ok(()) }
    /// # step(&mut Communicator::threads(1).remove(0))?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn all_reduce<T: Element>(&mut self, op: impl IntoReduceOp, data: &mut [T]) -> Result<()> {
        let op = self.op(Kind::AllReduce, op)?;
        self.call(Call::AllReduce { op, send: None, recv: data.into() })
    }

    /// Combines every rank's `send` into each rank's `recv`, as long.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    pub fn all_reduce_into<T: Element, R: Element>(
        &mut self,
        op: impl IntoReduceOp,
        send: &[T],
        recv: &mut [R],
    ) -> Result<()> {
        let op = self.op(Kind::AllReduce, op)?;
        self.call(Call::AllReduce { op, send: Some(send.into()), recv: recv.into() })
    }

    /// Combines every rank's `data` into `root`'s `data`; the others' stays as it is.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    pub fn reduce<T: Element>(&mut self, op: impl IntoReduceOp, data: &mut [T], root: usize) -> Result<()> {
        let op = self.op(Kind::Reduce, op)?;
        self.call(Call::reduce_in_place(op, data, root, self.rank()))
    }

    /// Combines every rank's `send` into `root`'s `recv`, as long; the others need none.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    pub fn reduce_into<T: Element>(
        &mut self,
        op: impl IntoReduceOp,
        send: &[T],
        recv: Option<&mut [T]>,
        root: usize,
    ) -> Result<()> {
        let (op, recv) = (self.op(Kind::Reduce, op)?, recv.map(Into::into));
        self.call(Call::Reduce { op, send: Some(send.into()), recv, root })
    }

    /// Combines every rank's `data` and leaves block `r` of the result in block `r` of rank `r`'s `data`; the rest of `data` stays
    /// as it is. Blocks are even: the count is a multiple of the number of ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// let blocks: Vec<_> = std::thread::scope(|scope| {
    ///     let threads: Vec<_> = Communicator::threads(2)
    ///         .into_iter()
    ///         .map(|mut rank| {
    ///             scope.spawn(move || {
    ///                 let mut data = [1, 2, 3, 4];
    ///                 rank.reduce_scatter(ReduceOp::Sum, &mut data).map(|()| data)
    ///             })
    ///         })
    ///         .collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_, _>>()
    /// })?;
    /// assert_eq!(blocks, [[2, 4, 3, 4], [1, 2, 6, 8]]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_scatter<T: Element>(&mut self, op: impl IntoReduceOp, data: &mut [T]) -> Result<()> {
        let op = self.op(Kind::ReduceScatter, op)?;
        self.call(Call::ReduceScatter { op, send: None, recv: data.into() })
    }

    /// Combines every rank's `send` and gives block `r` of the result to rank `r`'s `recv`. `send` has `size * recv` elements.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    pub fn reduce_scatter_into<T: Element>(&mut self, op: impl IntoReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        let op = self.op(Kind::ReduceScatter, op)?;
        self.call(Call::ReduceScatter { op, send: Some(send.into()), recv: recv.into() })
    }

    /// `root`'s `data` into every rank's.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier), and [`Error::InvalidCall`] if there is no rank `root`.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        self.call(Call::Broadcast { data: data.into(), root })
    }

    /// Block `r` of rank `r`'s `data` into block `r` of every rank's. Blocks are even.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier), and [`Error::InvalidCall`] for counts that do not fit.
    pub fn all_gather<T: Element>(&mut self, data: &mut [T]) -> Result<()> {
        self.call(Call::AllGather { send: None, recv: data.into(), counts: None })
    }

    /// Every rank's `send`, in rank order, into each rank's `recv`: `size * send` elements.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn all_gather_into<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.call(Call::AllGather { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// Like [`all_gather_into`](Communicator::all_gather_into), where rank `r` sends `counts[r]` elements. Without `send` this
    /// rank's part is in its place in `recv` already.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let counts = [1, 2];
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             let own: &[u8] = if rank.rank() == 0 { &[7] } else { &[8, 9] };
    ///             let mut all = [0; 3];
    ///             rank.all_gather_v(Some(own), &mut all, &counts).unwrap();
    ///             assert_eq!(all, [7, 8, 9]);
    ///         });
    ///     }
    /// });
    /// ```
    pub fn all_gather_v<T: Element>(&mut self, send: Option<&[T]>, recv: &mut [T], counts: &[usize]) -> Result<()> {
        let send = send.map(Into::into);
        self.call_with_counts(Call::AllGather { send, recv: recv.into(), counts: Some(counts) }, counts)
    }

    /// Every rank's `send`, in rank order, into `root`'s `recv`; the others need none.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn gather<T: Element>(&mut self, send: &[T], recv: Option<&mut [T]>, root: usize) -> Result<()> {
        let recv = recv.map(Into::into);
        self.call(Call::Gather { send: Some(send.into()), recv, counts: None, root })
    }

    /// Like [`gather`](Communicator::gather), where rank `r` sends `counts[r]` elements. Without `send` the root's part is in its
    /// place in `recv` already.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn gather_v<T: Element>(
        &mut self,
        send: Option<&[T]>,
        recv: Option<&mut [T]>,
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let (send, recv) = (send.map(Into::into), recv.map(Into::into));
        self.call_with_counts(Call::Gather { send, recv, counts: Some(counts), root }, counts)
    }

    /// Block `r` of `root`'s `send` into rank `r`'s `recv`. The root may go without `recv`.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             let send: Option<&[u8]> = if rank.rank() == 0 { Some(&[1, 2, 3, 4]) } else { None };
    ///             let mut recv = [0; 2];
    ///             rank.scatter(send, Some(&mut recv), 0).unwrap();
    ///             assert_eq!(recv, [[1, 2], [3, 4]][rank.rank()]);
    ///         });
    ///     }
    /// });
    /// ```
    pub fn scatter<T: Element>(&mut self, send: Option<&[T]>, recv: Option<&mut [T]>, root: usize) -> Result<()> {
        let (send, recv) = (send.map(Into::into), recv.map(Into::into));
        self.call(Call::Scatter { send, recv, counts: None, root })
    }

    /// Like [`scatter`](Communicator::scatter), where rank `r` receives `counts[r]` elements.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn scatter_v<T: Element>(
        &mut self,
        send: Option<&[T]>,
        recv: Option<&mut [T]>,
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let (send, recv) = (send.map(Into::into), recv.map(Into::into));
        self.call_with_counts(Call::Scatter { send, recv, counts: Some(counts), root }, counts)
    }

    /// Block `s` of rank `r`'s `data` into block `r` of rank `s`'s. Blocks are even.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             let mut data = [[1, 2, 3, 4], [5, 6, 7, 8]][rank.rank()];
    ///             rank.all_to_all(&mut data).unwrap();
    ///             assert_eq!(data, [[1, 2, 5, 6], [3, 4, 7, 8]][rank.rank()]);
    ///         });
    ///     }
    /// });
    /// ```
    pub fn all_to_all<T: Element>(&mut self, data: &mut [T]) -> Result<()> {
        self.call(Call::AllToAll { send: None, recv: data.into(), counts: None })
    }

    /// Block `s` of rank `r`'s `send` into block `r` of rank `s`'s `recv`. Blocks are even.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn all_to_all_into<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.call(Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// `send_counts[s]` elements of `send` to each rank `s`, `recv_counts[r]` elements from each rank `r` into `recv`; parts lie one
    /// after the other in rank order. The two counts of a pair of ranks are the same.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             // Rank 0 sends all it has to rank 1, which keeps one of its own.
    ///             let (send, sent, received): (&[u8], _, _) =
    ///                 if rank.rank() == 0 { (&[1, 2], [0, 2], [0, 0]) } else { (&[3], [0, 1], [2, 1]) };
    ///             let mut recv = vec![0; received.iter().sum()];
    ///             rank.all_to_all_v(send, &sent, &mut recv, &received).unwrap();
    ///             assert_eq!(recv, if rank.rank() == 0 { vec![] } else { vec![1, 2, 3] });
    ///         });
    ///     }
    /// });
    /// ```
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let counts = Some((send_counts, recv_counts));
        self.call(Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts })
    }

    /// Sends `data` to rank `to`, which receives as many elements; returns when it has them.
    ///
    /// It is compared with what `to` receives and sends from and to this rank alone: if that makes a call of all ranks instead, both wait
    /// until a deadline.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier), between the two ranks, and [`Error::InvalidCall`] if `to` is no other rank.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut ranks = Communicator::threads(2);
    /// let (mut second, mut first) = (ranks.remove(1), ranks.remove(0));
    /// let mut data = [0u8; 2];
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| first.send(&[1u8, 2], 1));
    ///     second.recv(&mut data, 0)
    /// })?;
    /// assert_eq!(data, [1, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<()> {
        self.call(Call::Send { data: data.into(), to })
    }

    /// Receives `data` from rank `from`, which sends as many elements.
    ///
    /// # Errors
    /// As [`send`](Communicator::send).
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<()> {
        self.call(Call::Recv { data: data.into(), from })
    }

    /// The communicator of the ranks that give the same `color`, ordered by `key` and then by rank; none for no color. Every rank
    /// of this group calls it. An [`abort`](Communicator::abort) of this group ends the new one, too; a communicator of this group that is
    /// dropped does not. In errors a replica is a rank of the new group; but who ended this one is named by its rank here, and
    /// [`Error::Aborted`] says so.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier).
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(4) {
    ///         scope.spawn(move || {
    ///             let mut pair = rank.split(Some(rank.rank() as u32 / 2), 0).unwrap().expect("a color was given");
    ///             let mut sum = [rank.rank()].map(|rank| rank as u64);
    ///             pair.all_reduce(ReduceOp::Sum, &mut sum).unwrap();
    ///             assert_eq!(sum, if rank.rank() < 2 { [0 + 1] } else { [2 + 3] });
    ///         });
    ///     }
    /// });
    /// ```
    pub fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let configuration = self.configuration;
        Ok(self.backend.split(color, key)?.map(|backend| Communicator { backend, configuration }))
    }

    /// The operation, or the error for text that names none, of which the others are told.
    fn op(&mut self, kind: Kind, op: impl IntoReduceOp) -> Result<ReduceOp> {
        let checked = op_of(kind.name(), op).map_err(|error| error.of_replica(self.rank()));
        checked.inspect_err(|error| _ = self.refuse(kind, error))
    }

    fn call_with_counts(&mut self, call: Call<'_>, counts: &[usize]) -> Result<()> {
        // The digest of counts is in the call's signature; only the words for them are missing.
        let describe = || vec![("counts".to_owned(), format!("{counts:?}"))];
        self.call_with(call, &Arguments { describe: &describe, ..Arguments::NONE })
    }

    pub(crate) fn call(&mut self, call: Call<'_>) -> Result<()> {
        self.call_with(call, &Arguments::NONE)
    }

    pub(crate) fn call_with(&mut self, call: Call<'_>, arguments: &Arguments<'_>) -> Result<()> {
        let mut signature = Signature::new(call.kind());
        if let Err(error) = call.sign(self.world(), &mut signature) {
            // The two of a send and a receive are a group of their own: no other rank waits for this call.
            if !matches!(call, Call::Send { .. } | Call::Recv { .. }) {
                let _ = self.refuse(call.kind(), &error);
            }
            return Err(error);
        }
        arguments.sign(&mut signature);
        self.backend.execute(call, &signature, arguments)
    }

    /// Tells the others, who make the same call, that this rank's cannot be right: who calls it has an error of its own.
    ///
    /// # Errors
    /// Those of a collective, if they were not told.
    pub(crate) fn refuse(&mut self, kind: Kind, error: &Error) -> Result<()> {
        self.backend.refuse(&Signature::new(kind), &error.to_string())
    }

    /// A call in which ranks only meet, of a strategy's own kind.
    pub(crate) fn meet(&mut self, kind: Kind, arguments: &Arguments<'_>) -> Result<()> {
        let mut signature = Signature::new(kind);
        arguments.sign(&mut signature);
        self.backend.execute(Call::Barrier, &signature, arguments)
    }
}
