//! Asynchronous calls: made inside a closure and executed in order on a separate thread. All are
//! finished when the closure's scope ends.
//!
//! A handle could be forgotten while a peer reads its buffer; a closure cannot end early. So
//! buffers are lent for the whole closure, and dropping a handle is always safe.

use crate::{
    Communicator, Error, Result,
    comm::{
        call::Call,
        progress::{self, Tasks},
    },
    error::{IntoReduceOp, op_of},
};
use consonance_kernels::group::Reason;
use consonance_spec::{Element, Kind, ReduceOp};
use std::{
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};

/// Starts asynchronous calls: see [`Communicator::scope`].
pub struct Scope<'env> {
    rank: usize,
    tasks: Tasks<'env>,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Makes the lifetime invariant: with a shorter one, buffers could be used before the calls are
    /// finished.
    invariant: PhantomData<&'env mut &'env ()>,
}

/// An asynchronous call in progress. Dropping it is safe: the call finishes before its scope ends,
/// and the scope returns its error.
pub struct Pending {
    slot: Arc<Slot>,
}

/// The slot for a call's result, which is taken once.
#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    UnderWay,
    Finished(Result<()>),
    Taken,
}

/// The duty to finish a call. It is dropped without a result only in a panic; then the waiter gets
/// an error.
struct Promise(Arc<Slot>);

impl Promise {
    fn keep(self, result: Result<()>) {
        self.0.finish(result);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if matches!(*self.0.lock(), State::UnderWay) {
            self.0.finish(Err(Error::other("the thread of the asynchronous calls panicked")));
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding the state of a call")
    }

    fn finish(&self, result: Result<()>) {
        *self.lock() = State::Finished(result);
        self.finished.notify_all();
    }

    /// Takes the result; `Ok` if it was taken before.
    fn take(&self) -> Result<()> {
        match std::mem::replace(&mut *self.lock(), State::Taken) {
            State::Finished(result) => result,
            State::UnderWay | State::Taken => Ok(()),
        }
    }
}

impl Pending {
    /// Waits until the call is finished and returns its result. The call's deadline bounds the
    /// wait.
    ///
    /// # Errors
    /// The call's.
    pub fn wait(self) -> Result<()> {
        let mut state = self.slot.lock();
        while matches!(*state, State::UnderWay) {
            state = self.slot.finished.wait(state).expect("nobody panics while holding the state of a call");
        }
        drop(state);
        self.slot.take()
    }

    /// Returns whether the call is finished. Never waits.
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// let (mut alone, mut gradients) = (Communicator::threads(1).remove(0), [0.5f32; 1000]);
    /// alone.scope(|scope| {
    ///     let sum = scope.all_reduce(ReduceOp::Sum, &mut gradients)?;
    ///     while !sum.is_finished() {
    ///         // Compute something else.
    ///     }
    ///     sum.wait()
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        !matches!(*self.slot.lock(), State::UnderWay)
    }
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
        let slot = Arc::new(Slot::default());
        self.slots.lock().expect("nobody panics while pushing").push(slot.clone());
        let promise = Promise(slot.clone());
        self.tasks.add(|communicator| promise.keep(communicator.call(call)));
        Pending { slot }
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
                    return Err(Error::System { what, source });
                }
            };
            let scope = Scope { rank, tasks, slots: Mutex::default(), invariant: PhantomData };
            let result = body(&scope);
            let Scope { tasks, slots, .. } = scope;
            tasks.close();
            let slots = slots.into_inner().expect("nobody panics while pushing");
            let results: Vec<Result<()>> = slots.into_iter().map(|slot| Pending { slot }.wait()).collect();
            // `thread::scope` waits for the end of the closure only, not for the end of the thread.
            thread.join().expect("the tasks' panics are caught");
            let value = result?;
            results.into_iter().collect::<Result<()>>()?;
            Ok(value)
        })
    }
}
