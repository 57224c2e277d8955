//! The collectives of a communicator on typed slices. Each method executes one call.

use super::{agreement::Agreement, call::Call};
use crate::{
    Communicator, Result,
    error::{IntoReduceOp, op_of},
};
use consonance_spec::{Element, Kind, ReduceOp};

impl Communicator {
    /// Waits until every rank has made this call.
    ///
    /// # Errors
    /// Like every collective: [`Error::Mismatch`](crate::Error::Mismatch),
    /// [`Error::Left`](crate::Error::Left), [`Error::Timeout`](crate::Error::Timeout),
    /// [`Error::Aborted`](crate::Error::Aborted).
    pub fn barrier(&mut self) -> Result<()> {
        self.call(Call::Barrier)
    }

    /// Combines every rank's `data` and writes the result to each rank's `data`.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`](crate::Error::UnknownReduceOp);
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if `op` is not defined on `T`, or its
    /// result is of another type (the mean of integers); otherwise as
    /// [`barrier`](Communicator::barrier).
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

    /// Combines every rank's `send` and writes the result to each rank's `recv`, which has the same
    /// count.
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

    /// Combines every rank's `data` and writes the result to `root`'s `data`. The other ranks' data
    /// is not changed.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    pub fn reduce<T: Element>(&mut self, op: impl IntoReduceOp, data: &mut [T], root: usize) -> Result<()> {
        let op = self.op(Kind::Reduce, op)?;
        self.call(Call::reduce_in_place(op, data, root, self.rank()))
    }

    /// Combines every rank's `send` and writes the result to `root`'s `recv`, which has the same
    /// count. The other ranks need no `recv`.
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

    /// Combines every rank's `data` and writes block `r` of the result to block `r` of rank `r`'s
    /// `data`. The rest of `data` is not changed. Blocks are even: the count is a multiple of the
    /// number of ranks.
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

    /// Combines every rank's `send` and writes block `r` of the result to rank `r`'s `recv`. `send`
    /// has `size` times as many elements as `recv`.
    ///
    /// # Errors
    /// As [`all_reduce`](Communicator::all_reduce).
    pub fn reduce_scatter_into<T: Element>(&mut self, op: impl IntoReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        let op = self.op(Kind::ReduceScatter, op)?;
        self.call(Call::ReduceScatter { op, send: Some(send.into()), recv: recv.into() })
    }

    /// Copies `root`'s `data` to every rank's `data`. Between processes up to 4 KiB are a
    /// [message](crate::guide::errors#replicas-that-make-different-calls): the root does not wait.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier), and [`Error::InvalidCall`](crate::Error::InvalidCall)
    /// if `root` is not a rank.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        self.call(Call::Broadcast { data: data.into(), root })
    }

    /// Copies block `r` of rank `r`'s `data` to block `r` of every rank's `data`. Blocks are even.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier), and [`Error::InvalidCall`](crate::Error::InvalidCall)
    /// for counts that do not fit.
    pub fn all_gather<T: Element>(&mut self, data: &mut [T]) -> Result<()> {
        self.call(Call::AllGather { send: None, recv: data.into(), counts: None })
    }

    /// Concatenates every rank's `send`, in rank order, into each rank's `recv`, which has `size`
    /// times as many elements.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn all_gather_into<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.call(Call::AllGather { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// Like [`all_gather_into`](Communicator::all_gather_into), but rank `r` sends `counts[r]`
    /// elements. Without `send`, this rank's part is already at its position in `recv`.
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

    /// Concatenates every rank's `send`, in rank order, into `root`'s `recv`. The other ranks need
    /// no `recv`. Between processes up to 4 KiB of each rank are a
    /// [message](crate::guide::errors#replicas-that-make-different-calls): only the root waits.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn gather<T: Element>(&mut self, send: &[T], recv: Option<&mut [T]>, root: usize) -> Result<()> {
        let recv = recv.map(Into::into);
        self.call(Call::Gather { send: Some(send.into()), recv, counts: None, root })
    }

    /// Like [`gather`](Communicator::gather), but rank `r` sends `counts[r]` elements. Without
    /// `send`, the root's part is already at its position in `recv`. The largest part decides
    /// whether parts are a message, for which up to 64 counts have room.
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

    /// Copies block `r` of `root`'s `send` to rank `r`'s `recv`. The root needs no `recv`. Between
    /// processes up to 4 KiB in all are a
    /// [message](crate::guide::errors#replicas-that-make-different-calls): the root does not wait.
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

    /// Like [`scatter`](Communicator::scatter), but rank `r` receives `counts[r]` elements.
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

    /// Copies block `s` of rank `r`'s `data` to block `r` of rank `s`'s `data`. Blocks are even.
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

    /// Copies block `s` of rank `r`'s `send` to block `r` of rank `s`'s `recv`. Blocks are even.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn all_to_all_into<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.call(Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// Sends `send_counts[s]` elements of `send` to each rank `s` and receives `recv_counts[r]`
    /// elements from each rank `r` into `recv`. Parts are contiguous, in rank order. The count that
    /// a rank sends equals the count that its peer receives.
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

    /// Sends `data` to rank `to`, which receives the same count. Returns when `to` has the data.
    /// Between processes up to 4 KiB are a
    /// [message](crate::guide::errors#replicas-that-make-different-calls): this rank does not wait
    /// for `to` before its next call.
    ///
    /// The call is compared only with calls of `to` that send to or receive from this rank. If `to`
    /// makes a call of all ranks instead, both wait until a deadline.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier), between the two ranks, and
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if `to` is not another rank.
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

    /// Receives `data` from rank `from`, which sends the same count.
    ///
    /// # Errors
    /// As [`send`](Communicator::send).
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<()> {
        self.call(Call::Recv { data: data.into(), from })
    }

    /// Returns the operation. For text that names none, tells the other ranks and returns the
    /// error.
    pub(super) fn op(&mut self, kind: Kind, op: impl IntoReduceOp) -> Result<ReduceOp> {
        let checked = op_of(kind.name(), op).map_err(|error| error.of_replica(self.rank()));
        checked.inspect_err(|error| _ = self.refuse(kind, error))
    }

    fn call_with_counts(&mut self, call: Call<'_>, counts: &[usize]) -> Result<()> {
        // The call's signature has the digest of the counts; the agreement adds only their words.
        let describe = || vec![("counts".to_owned(), format!("{counts:?}"))];
        self.execute(call, &Agreement { describe: &describe, ..Agreement::NONE })
    }
}
