//! Asynchronous calls: made inside a closure and executed in order on a separate thread. All are
//! finished when the closure's scope ends.
//!
//! A handle could be forgotten while a peer reads its buffer; a closure cannot end early. So
//! buffers are lent for the whole closure, or owned by the call. Dropping a handle is always safe.

use crate::{
    Communicator, Error, Result,
    comm::{
        call::Call,
        pending::{Ending, Pending, pending},
        progress::{self, Tasks},
    },
    error::{IntoReduceOp, op_of},
};
use consonance_kernels::group::Reason;
use consonance_spec::{Element, Kind, ReduceOp};
use std::fmt;
use std::{
    marker::PhantomData,
    ops::DerefMut,
    sync::{Arc, Mutex},
    thread,
};

/// Starts asynchronous calls: see [`Communicator::scope`].
pub struct Scope<'env> {
    rank: usize,
    tasks: Tasks<'env>,
    calls: Mutex<Vec<Arc<dyn Ending + 'env>>>,
    /// Makes the lifetime invariant: with a shorter one, buffers could be used before the calls are
    /// finished.
    invariant: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'env> {
    /// Starts [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]. All others come from [`Pending::wait`] or the end of the scope.
    pub fn all_reduce<T: Element>(&self, op: impl IntoReduceOp, data: &'env mut [T]) -> Result<Pending> {
        let op = self.op(Kind::AllReduce, op)?;
        Ok(self.start(Call::AllReduce { op, send: None, recv: data.into() }))
    }

    /// Starts [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    pub fn all_reduce_into<T: Element, R: Element>(
        &self,
        op: impl IntoReduceOp,
        send: &'env [T],
        recv: &'env mut [R],
    ) -> Result<Pending> {
        let op = self.op(Kind::AllReduce, op)?;
        Ok(self.start(Call::AllReduce { op, send: Some(send.into()), recv: recv.into() }))
    }

    /// Starts [`Communicator::reduce`].
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    pub fn reduce<T: Element>(&self, op: impl IntoReduceOp, data: &'env mut [T], root: usize) -> Result<Pending> {
        let op = self.op(Kind::Reduce, op)?;
        Ok(self.start(Call::reduce_in_place(op, data, root, self.rank)))
    }

    /// Starts [`Communicator::reduce_into`].
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    pub fn reduce_into<T: Element>(
        &self,
        op: impl IntoReduceOp,
        send: &'env [T],
        recv: Option<&'env mut [T]>,
        root: usize,
    ) -> Result<Pending> {
        let (op, recv) = (self.op(Kind::Reduce, op)?, recv.map(Into::into));
        Ok(self.start(Call::Reduce { op, send: Some(send.into()), recv, root }))
    }

    /// Starts [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    pub fn reduce_scatter<T: Element>(&self, op: impl IntoReduceOp, data: &'env mut [T]) -> Result<Pending> {
        let op = self.op(Kind::ReduceScatter, op)?;
        Ok(self.start(Call::ReduceScatter { op, send: None, recv: data.into() }))
    }

    /// Starts [`Communicator::reduce_scatter_into`].
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    pub fn reduce_scatter_into<T: Element>(
        &self,
        op: impl IntoReduceOp,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<Pending> {
        let op = self.op(Kind::ReduceScatter, op)?;
        Ok(self.start(Call::ReduceScatter { op, send: Some(send.into()), recv: recv.into() }))
    }

    /// Starts [`Communicator::broadcast`].
    pub fn broadcast<T: Element>(&self, data: &'env mut [T], root: usize) -> Pending {
        self.start(Call::Broadcast { data: data.into(), root })
    }

    /// Starts [`Communicator::all_gather`].
    pub fn all_gather<T: Element>(&self, data: &'env mut [T]) -> Pending {
        self.start(Call::AllGather { send: None, recv: data.into(), counts: None })
    }

    /// Starts [`Communicator::all_gather_into`].
    pub fn all_gather_into<T: Element>(&self, send: &'env [T], recv: &'env mut [T]) -> Pending {
        self.start(Call::AllGather { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// Starts [`Communicator::all_gather_v`].
    pub fn all_gather_v<T: Element>(
        &self,
        send: Option<&'env [T]>,
        recv: &'env mut [T],
        counts: &'env [usize],
    ) -> Pending {
        self.start(Call::AllGather { send: send.map(Into::into), recv: recv.into(), counts: Some(counts) })
    }

    /// Starts [`Communicator::gather`].
    pub fn gather<T: Element>(&self, send: &'env [T], recv: Option<&'env mut [T]>, root: usize) -> Pending {
        self.start(Call::Gather { send: Some(send.into()), recv: recv.map(Into::into), counts: None, root })
    }

    /// Starts [`Communicator::gather_v`].
    pub fn gather_v<T: Element>(
        &self,
        send: Option<&'env [T]>,
        recv: Option<&'env mut [T]>,
        counts: &'env [usize],
        root: usize,
    ) -> Pending {
        self.start(Call::Gather { send: send.map(Into::into), recv: recv.map(Into::into), counts: Some(counts), root })
    }

    /// Starts [`Communicator::scatter`].
    pub fn scatter<T: Element>(&self, send: Option<&'env [T]>, recv: Option<&'env mut [T]>, root: usize) -> Pending {
        self.start(Call::Scatter { send: send.map(Into::into), recv: recv.map(Into::into), counts: None, root })
    }

    /// Starts [`Communicator::scatter_v`].
    pub fn scatter_v<T: Element>(
        &self,
        send: Option<&'env [T]>,
        recv: Option<&'env mut [T]>,
        counts: &'env [usize],
        root: usize,
    ) -> Pending {
        self.start(Call::Scatter { send: send.map(Into::into), recv: recv.map(Into::into), counts: Some(counts), root })
    }

    /// Starts [`Communicator::all_to_all`].
    pub fn all_to_all<T: Element>(&self, data: &'env mut [T]) -> Pending {
        self.start(Call::AllToAll { send: None, recv: data.into(), counts: None })
    }

    /// Starts [`Communicator::all_to_all_into`].
    pub fn all_to_all_into<T: Element>(&self, send: &'env [T], recv: &'env mut [T]) -> Pending {
        self.start(Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// Starts [`Communicator::all_to_all_v`].
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &'env [T],
        send_counts: &'env [usize],
        recv: &'env mut [T],
        recv_counts: &'env [usize],
    ) -> Pending {
        let counts = Some((send_counts, recv_counts));
        self.start(Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts })
    }

    /// Starts [`Communicator::barrier`]: it finishes when the earlier calls of every rank have
    /// finished.
    pub fn barrier(&self) -> Pending {
        self.start(Call::Barrier)
    }

    /// Starts [`Communicator::send`].
    pub fn send<T: Element>(&self, data: &'env [T], to: usize) -> Pending {
        self.start(Call::Send { data: data.into(), to })
    }

    /// Starts [`Communicator::recv`].
    pub fn recv<T: Element>(&self, data: &'env mut [T], from: usize) -> Pending {
        self.start(Call::Recv { data: data.into(), from })
    }

    /// Starts an all-reduce of `data` in place, and owns `data` until [`Pending::wait`] returns it.
    /// So `data` may be made in the body, and its result may be read there. A `Vec`, a `Box` of a
    /// slice and [`SharedMemory`](crate::SharedMemory) can be owned.
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    ///
    /// ```
    /// use consonance::{Communicator, ReduceOp};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut weights = [1.0f32; 8];
    /// alone.scope(|scope| {
    ///     let pending = (0..2).map(|layer| scope.all_reduce_owned(ReduceOp::Mean, vec![layer as f32; 4]));
    ///     let pending: Vec<_> = pending.collect::<Result<_, _>>()?;
    ///     for (weights, gradient) in weights.chunks_mut(4).zip(pending) {
    ///         weights.iter_mut().zip(gradient.wait()?).for_each(|(weight, gradient)| *weight -= 0.5 * gradient);
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(weights, [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_owned<T, B>(&self, op: impl IntoReduceOp, data: B) -> Result<Pending<B>>
    where
        T: Element,
        B: DerefMut<Target = [T]> + Send + 'env,
    {
        let op = self.op(Kind::AllReduce, op)?;
        Ok(self.start_owned(data, move |data| Call::AllReduce { op, send: None, recv: (&mut **data).into() }))
    }

    /// Starts any call on buffers that it owns until [`Pending::wait`] returns them. `call` makes
    /// the call of them when the calls before it are finished.
    ///
    /// ```
    /// use consonance::{Communicator, raw::Call};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let gathered = alone.scope(|scope| {
    ///     let (part, all) = (vec![1, 2, 3], vec![0; 3]);
    ///     let call = scope.start_owned((part, all), |(part, all)| {
    ///         let (send, recv) = (Some(part[..].into()), (&mut all[..]).into());
    ///         Call::AllGather { send, recv, counts: None }
    ///     });
    ///     Ok(call.wait()?.1)
    /// })?;
    /// assert_eq!(gathered, [1, 2, 3]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn start_owned<B: Send + 'env>(
        &self,
        mut buffers: B,
        call: impl for<'b> FnOnce(&'b mut B) -> Call<'b> + Send + 'env,
    ) -> Pending<B> {
        self.add(move |communicator| {
            communicator.call(call(&mut buffers))?;
            Ok(buffers)
        })
    }

    /// Returns the operation. For text that names none, queues a task that tells the other ranks,
    /// which make the call, and returns the error.
    fn op(&self, kind: Kind, op: impl IntoReduceOp) -> Result<ReduceOp> {
        let checked = op_of(kind.name(), op).map_err(|error| error.of_replica(self.rank));
        checked.inspect_err(|error| {
            let why = Error::other(error.to_string());
            self.tasks.add(move |communicator| _ = communicator.refuse(kind, &why));
        })
    }

    fn start(&self, call: Call<'env>) -> Pending {
        self.add(|communicator| communicator.call(call))
    }

    fn add<B: Send + 'env>(&self, work: impl FnOnce(&mut Communicator) -> Result<B> + Send + 'env) -> Pending<B> {
        let (pending, ending, task) = pending(work);
        self.calls.lock().expect("nobody panics while pushing").push(ending);
        self.tasks.add(task);
        pending
    }
}

impl Communicator {
    /// Runs `body`, in which calls return at once. A separate thread executes them in the order in
    /// which they were made. All are finished when this returns.
    ///
    /// # Errors
    /// The error of `body`, else the first error of a call that was not waited for.
    /// [`Error::System`] if the system cannot start a thread. This aborts the group, because the
    /// other ranks make calls that this rank does not.
    ///
    /// # Panics
    /// If `body` panics. The group is then aborted, so that no peer waits.
    ///
    /// ```
    /// use consonance::{Communicator, ReduceOp};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let (mut last_layer, mut first_layer) = (vec![1.0f32; 8], vec![2.0f32; 8]);
    /// alone.scope(|scope| {
    ///     let last = scope.all_reduce(ReduceOp::Mean, &mut last_layer)?;
    ///     // … the gradients of the first layer are computed here …
    ///     scope.all_reduce(ReduceOp::Mean, &mut first_layer)?;
    ///     last.wait()
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn scope<'env, R>(&'env mut self, body: impl FnOnce(&Scope<'env>) -> Result<R>) -> Result<R> {
        let (rank, aborter) = (self.rank(), self.abort_handle());
        thread::scope(|threads| {
            let (tasks, progress) = progress::queue(self);
            let what = "start a thread for asynchronous calls".to_owned();
            let thread = thread::Builder::new()
                .name("consonance-async".to_owned())
                .spawn_scoped(threads, move || progress.run(self));
            let thread = match thread {
                Ok(thread) => thread,
                Err(source) => {
                    aborter.abort(Reason::Failure);
                    tasks.close();
                    return Err(Error::system(what, source));
                }
            };
            let scope = Scope { rank, tasks, calls: Mutex::default(), invariant: PhantomData };
            let result = body(&scope);
            let Scope { tasks, calls, .. } = scope;
            tasks.close();
            // `thread::scope` waits for the end of the closure only, not for the end of the thread.
            thread.join().expect("the tasks' panics are caught");
            let value = result?;
            let calls = calls.into_inner().expect("nobody panics while pushing");
            calls.iter().find_map(|call| call.error()).map_or(Ok(value), Err)
        })
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("rank", &self.rank).finish_non_exhaustive()
    }
}
