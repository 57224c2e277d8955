//! Asynchronous calls: made inside a closure and executed in order on a separate thread. All are
//! finished when the closure's scope ends.
//!
//! A handle could be forgotten while a peer reads its buffer; a closure cannot end early. So
//! buffers are lent for the whole closure, or owned by the call. Dropping a handle is always safe.

use crate::{
    Accumulator, Communicator, Error, Result,
    comm::{
        call::Call,
        pending::Pending,
        promise::{Unheard, promise},
    },
    error::{IntoReduceOp, op_of},
    kind::ALL_REDUCE_EXACT,
    panics,
};
use consonance_kernels::group::Reason;
use consonance_spec::{Element, Kind, ReduceOp};
use std::{
    fmt,
    marker::PhantomData,
    ops::DerefMut,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, mpsc},
    thread,
};

/// Starts asynchronous calls: see [`Communicator::scope`].
pub struct Scope<'env> {
    rank: usize,
    tasks: mpsc::Sender<Task<'env>>,
    calls: Mutex<Vec<Arc<dyn Unheard + 'env>>>,
    /// Makes the lifetime invariant: with a shorter one, buffers could be used before the calls are
    /// finished.
    invariant: PhantomData<&'env mut &'env ()>,
}

/// A task of a scope's thread, with the communicator.
type Task<'env> = Box<dyn FnOnce(&mut Communicator) + Send + 'env>;

/// Defines methods that start calls, each the twin of a method of [`Communicator`]. `op of KIND` is
/// an operation, the first argument.
macro_rules! starts {
    ($($name:ident($self:ident $(, $argument:ident: $type:ty)*) => $call:expr;)*) => { $(
        #[doc = concat!("Starts [`Communicator::", stringify!($name), "`].")]
        pub fn $name<T: Element>(&$self $(, $argument: $type)*) -> Pending {
            $self.start($call)
        }
    )* };
    ($(
        $name:ident $(<$of:ident>)?($self:ident, $op:ident of $kind:ident $(, $argument:ident: $type:ty)*) =>
            $call:expr;
    )*) => { $(
        #[doc = concat!("Starts [`Communicator::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// [`Error::UnknownReduceOp`]. All others come from [`Pending::wait`] or the end of the
        /// scope.
        pub fn $name<T: Element $(, $of: Element)?>(
            &$self,
            $op: impl IntoReduceOp
            $(, $argument: $type)*
        ) -> Result<Pending> {
            let $op = $self.op(Kind::$kind, $op)?;
            Ok($self.start($call))
        }
    )* };
}

/// Defines methods that start calls on leaves, each the twin of a method of [`Communicator`].
macro_rules! starts_accumulated {
    ($(
        $name:ident $(<$of:ident>)?($self:ident, $rank:ident, $sum:ident $(, $argument:ident: $type:ty)*) =>
            $call:expr;
    )*) => { $(
        #[doc = concat!("Starts [`Communicator::", stringify!($name), "`].")]
        pub fn $name<T: Element $(, $of: Element)?>(
            &$self,
            $sum: &'env mut Accumulator<T>
            $(, $argument: $type)*
        ) -> Pending {
            $self.add(move |communicator| communicator.complete(|$rank| $call))
        }
    )* };
}

impl<'env> Scope<'env> {
    starts! {
        all_reduce(self, op of AllReduce, data: &'env mut [T]) =>
            Call::AllReduce { op, send: None, recv: data.into() };
        all_reduce_into<R>(self, op of AllReduce, send: &'env [T], recv: &'env mut [R]) =>
            Call::AllReduce { op, send: Some(send.into()), recv: recv.into() };
        reduce(self, op of Reduce, data: &'env mut [T], root: usize) =>
            Call::reduce_in_place(op, data, root, self.rank);
        reduce_into(self, op of Reduce, send: &'env [T], recv: Option<&'env mut [T]>, root: usize) =>
            Call::Reduce { op, send: Some(send.into()), recv: recv.map(Into::into), root };
        reduce_scatter(self, op of ReduceScatter, data: &'env mut [T]) =>
            Call::ReduceScatter { op, send: None, recv: data.into() };
        reduce_scatter_into(self, op of ReduceScatter, send: &'env [T], recv: &'env mut [T]) =>
            Call::ReduceScatter { op, send: Some(send.into()), recv: recv.into() };
    }

    starts! {
        broadcast(self, data: &'env mut [T], root: usize) => Call::Broadcast { data: data.into(), root };
        all_gather(self, data: &'env mut [T]) =>
            Call::AllGather { send: None, recv: data.into(), counts: None };
        all_gather_into(self, send: &'env [T], recv: &'env mut [T]) =>
            Call::AllGather { send: Some(send.into()), recv: recv.into(), counts: None };
        all_gather_v(self, send: Option<&'env [T]>, recv: &'env mut [T], counts: &'env [usize]) =>
            Call::AllGather { send: send.map(Into::into), recv: recv.into(), counts: Some(counts) };
        gather(self, send: &'env [T], recv: Option<&'env mut [T]>, root: usize) =>
            Call::Gather { send: Some(send.into()), recv: recv.map(Into::into), counts: None, root };
        gather_v(
            self, send: Option<&'env [T]>, recv: Option<&'env mut [T]>, counts: &'env [usize], root: usize
        ) =>
            Call::Gather { send: send.map(Into::into), recv: recv.map(Into::into), counts: Some(counts), root };
        scatter(self, send: Option<&'env [T]>, recv: Option<&'env mut [T]>, root: usize) =>
            Call::Scatter { send: send.map(Into::into), recv: recv.map(Into::into), counts: None, root };
        scatter_v(
            self, send: Option<&'env [T]>, recv: Option<&'env mut [T]>, counts: &'env [usize], root: usize
        ) =>
            Call::Scatter { send: send.map(Into::into), recv: recv.map(Into::into), counts: Some(counts), root };
        all_to_all(self, data: &'env mut [T]) =>
            Call::AllToAll { send: None, recv: data.into(), counts: None };
        all_to_all_into(self, send: &'env [T], recv: &'env mut [T]) =>
            Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts: None };
        all_to_all_v(
            self, send: &'env [T], send_counts: &'env [usize], recv: &'env mut [T], recv_counts: &'env [usize]
        ) =>
            Call::AllToAll { send: Some(send.into()), recv: recv.into(), counts: Some((send_counts, recv_counts)) };
        send(self, data: &'env [T], to: usize) => Call::Send { data: data.into(), to };
        recv(self, data: &'env mut [T], from: usize) => Call::Recv { data: data.into(), from };
    }

    starts_accumulated! {
        all_reduce_accumulated(self, rank, sum, last: &'env mut [T]) => rank.all_reduce_accumulated(sum, last);
        all_reduce_accumulated_into<R>(self, rank, sum, last: &'env [T], recv: &'env mut [R]) =>
            rank.all_reduce_accumulated_into(sum, last, recv);
        reduce_accumulated(self, rank, sum, last: &'env mut [T], root: usize) =>
            rank.reduce_accumulated(sum, last, root);
        reduce_accumulated_into<R>(self, rank, sum, last: &'env [T], recv: Option<&'env mut [R]>, root: usize) =>
            rank.reduce_accumulated_into(sum, last, recv, root);
        reduce_scatter_accumulated(self, rank, sum, last: &'env mut [T]) =>
            rank.reduce_scatter_accumulated(sum, last);
        reduce_scatter_accumulated_into<R>(self, rank, sum, last: &'env [T], recv: &'env mut [R]) =>
            rank.reduce_scatter_accumulated_into(sum, last, recv);
    }

    /// Starts [`Communicator::all_reduce_exact`].
    ///
    /// # Errors
    /// As [`all_reduce`](Scope::all_reduce).
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut loss = [0.5f64];
    /// alone.scope(|scope| scope.all_reduce_exact("mean", &mut loss)?.wait())?;
    /// assert_eq!(loss, [0.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_exact<T: Element>(&self, op: impl IntoReduceOp, data: &'env mut [T]) -> Result<Pending> {
        let op = self.op(ALL_REDUCE_EXACT, op)?;
        Ok(self.add(move |communicator| communicator.complete(|rank| rank.all_reduce_exact(op, data))))
    }

    /// Starts [`Communicator::barrier`]: it finishes when the earlier calls of every rank have
    /// finished.
    pub fn barrier(&self) -> Pending {
        self.start(Call::Barrier)
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
    /// the call of them when the calls before it are finished. After an error the buffers are
    /// dropped when the engine uses them no more.
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
        // The buffers outlive what the call has enqueued, also after an error.
        self.add(move |communicator| {
            let done = communicator.complete(|communicator| communicator.call(call(&mut buffers)));
            done.map(|()| buffers)
        })
    }

    /// Returns the operation. For text that names none, queues a task that tells the other ranks,
    /// which make the call, and returns the error.
    fn op(&self, kind: Kind, op: impl IntoReduceOp) -> Result<ReduceOp> {
        let checked = op_of(kind.name(), op).map_err(|error| error.of_replica(self.rank));
        checked.inspect_err(|error| {
            let why = Error::other(error.to_string());
            self.queue(move |communicator| _ = communicator.refuse(kind, &why));
        })
    }

    fn start(&self, call: Call<'env>) -> Pending {
        self.add(|communicator| communicator.complete(|communicator| communicator.call(call)))
    }

    fn add<B: Send + 'env>(&self, work: impl FnOnce(&mut Communicator) -> Result<B> + Send + 'env) -> Pending<B> {
        let (promise, promised) = promise();
        self.calls.lock().expect("nobody panics while pushing").push(promised.unheard());
        self.queue(move |communicator| promise.keep(work(communicator)));
        Pending(promised)
    }

    fn queue(&self, task: impl FnOnce(&mut Communicator) + Send + 'env) {
        self.tasks.send(Box::new(task)).expect("the thread takes tasks until the scope ends");
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
        let (tasks, queue) = mpsc::channel::<Task<'env>>();
        let scope = Scope { rank, tasks, calls: Mutex::default(), invariant: PhantomData };
        let execute = move || {
            for task in queue {
                if panics::catch(|| task(self)).is_err() {
                    self.abort_handle().abort(Reason::Panic);
                }
            }
        };
        let (result, calls) = thread::scope(|threads| {
            let thread = thread::Builder::new().name("consonance-async".to_owned()).spawn_scoped(threads, execute);
            let thread = thread.map_err(|source| {
                aborter.abort(Reason::Failure);
                Error::system("start a thread for asynchronous calls", source)
            })?;
            let result = panic::catch_unwind(AssertUnwindSafe(|| body(&scope)));
            if result.is_err() {
                aborter.abort(Reason::Panic);
            }
            let Scope { tasks, calls, .. } = scope;
            drop(tasks);
            // `thread::scope` waits for the end of the closure only, not for the end of the thread.
            thread.join().expect("the tasks' panics are caught");
            Ok::<_, Error>((result.unwrap_or_else(|panic| panic::resume_unwind(panic)), calls))
        })?;
        let value = result?;
        let calls = calls.into_inner().expect("nobody panics while pushing");
        calls.iter().find_map(|call| call.error()).map_or(Ok(value), Err)
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("rank", &self.rank).finish_non_exhaustive()
    }
}
