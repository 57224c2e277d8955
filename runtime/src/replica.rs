//! What a replica sees while it runs.

use crate::{
    Axes, Axis, CommunicationOptions, Communicator, Device, Error, PerReplica, ReduceOp, Result, Strategy, Tensor,
    backend::Arguments,
    buckets::Flow,
    call::Call,
    context,
    error::{IntoReduceOp, op_of},
    nest::{self, Leaf, Nest, Value},
    session::Session,
    strategy::{Held, Workers},
    values::Merged,
};
use consonance_kernels::step::Reason;
use consonance_spec::{
    Kind,
    call::{digest, mix},
};
use std::{
    any::{Any, TypeId, type_name},
    cell::{RefCell, RefMut},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    marker::PhantomData,
    ops::Range,
    sync::{Condvar, Mutex, MutexGuard},
    time::Duration,
};

/// One replica of a [`run`](Strategy::run): who it is, and its collectives with the other replicas.
///
/// Every replica makes the same calls in the same order, under `if` and in loops too as long as all take the same way. A
/// replica that does not is named in an error that all get at once.
///
/// The context ends with the function it was given to:
///
/// ```compile_fail,E0521
/// # use std::cell::Cell;
/// # use consonance::ReplicaContext;
/// thread_local!(static KEPT: Cell<Option<&'static ReplicaContext<'static>>> = Cell::new(None));
/// # let strategy = consonance::MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
/// strategy.run(|replica| Ok(KEPT.set(Some(replica))));
/// ```
pub struct ReplicaContext<'r> {
    strategy: &'r Strategy,
    id: usize,
    communicator: RefCell<Held>,
    /// Within an overlap.
    pub(crate) flow: RefCell<Option<Flow>>,
    board: &'r Board,
}

/// Where the replicas of this process leave what a merge function sees, and find what it gives back.
pub(crate) struct Board {
    places: Vec<Mutex<Option<Box<dyn Any + Send>>>>,
    /// How many merge functions have ended.
    merges: Mutex<usize>,
    ended: Condvar,
}

/// What a replica leaves for a merge function: its arguments, and the type of the result that it is to find.
struct Left<A, V>(A, PhantomData<fn() -> V>);

/// The time of a merge function, which ends when this is dropped.
struct Merging<'b>(&'b Board);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        *self.0.merges() += 1;
        self.0.ended.notify_all();
    }
}

impl Board {
    pub(crate) fn new(replicas: usize) -> Board {
        let places = (0..replicas).map(|_| Mutex::default()).collect();
        Board { places, merges: Mutex::default(), ended: Condvar::new() }
    }

    fn merges(&self) -> MutexGuard<'_, usize> {
        self.merges.lock().expect("nobody panics at the board")
    }

    /// Waits until more than `before` merge functions have ended; whether that was before the timeout.
    fn wait_for_merge(&self, before: usize, timeout: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.merges(), timeout, |merges| *merges <= before);
        !waited.expect("nobody panics at the board").1.timed_out()
    }

    fn put(&self, place: usize, value: Box<dyn Any + Send>) {
        *self.places[place].lock().expect("nobody panics at the board") = Some(value);
    }

    fn take(&self, place: usize) -> Option<Box<dyn Any + Send>> {
        self.places[place].lock().expect("nobody panics at the board").take()
    }
}

impl<'r> ReplicaContext<'r> {
    pub(crate) fn new(strategy: &'r Strategy, id: usize, communicator: Held, board: &'r Board) -> ReplicaContext<'r> {
        ReplicaContext { strategy, id, communicator: RefCell::new(communicator), flow: RefCell::default(), board }
    }

    /// This replica, from 0 to [`num_replicas_in_sync`](ReplicaContext::num_replicas_in_sync).
    pub fn replica_id_in_sync_group(&self) -> usize {
        self.id
    }

    /// Its place among the replicas of this process.
    pub(crate) fn place(&self) -> usize {
        self.id - self.strategy.local_replicas().start
    }

    /// The number of replicas, those of all processes.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.strategy.num_replicas_in_sync()
    }

    /// The devices of this replica: one.
    pub fn devices(&self) -> [Device; 1] {
        [self.strategy.worker_devices()[self.place()]]
    }

    /// The strategy that runs this replica.
    pub fn strategy(&self) -> &Strategy {
        self.strategy
    }

    /// Combines `value` over all replicas; each gets the result.
    ///
    /// Shapes and structure are the same on all replicas. A tensor that nobody else holds is reduced in its own memory. Small
    /// tensors travel together ([`CommunicationOptions::bytes_per_pack`]). The mean of integers is a float: f64 for 32 and 64
    /// bits, f32 for 8 and 16. So plain integers have no mean, since a float has no place in them: give a [`Tensor`].
    /// [`IndexedSlices`](crate::IndexedSlices) keep all rows of all replicas, in replica order; their mean is divided by the number
    /// of replicas.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] if `op` is not defined on the dtype, or its result is no number of the type that
    /// was given; [`Error::Mismatch`] if the replicas did not call the same;
    /// [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`] if a replica is gone.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run(|replica| {
    ///     replica.all_reduce("SUM", [Tensor::from(1.0f32), Tensor::from(2.0f32)])
    /// })?;
    /// assert_eq!(result[0], [Tensor::from(2.0f32), Tensor::from(4.0f32)]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce<N: Nest>(&self, op: impl IntoReduceOp, value: N) -> Result<N> {
        self.all_reduce_with(op, value, CommunicationOptions::new())
    }

    /// [`all_reduce`](ReplicaContext::all_reduce) with options that override the strategy's.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce).
    ///
    /// ```
    /// use consonance::{CommunicationOptions, MirroredStrategy, ReduceOp};
    /// use std::time::Duration;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let options = CommunicationOptions::new().timeout(Duration::from_secs(10))?;
    /// let sums = strategy.run(|replica| replica.all_reduce_with(ReduceOp::Sum, 1.5f32, options))?;
    /// assert_eq!(sums.values(), [3.0, 3.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_with<N: Nest>(
        &self,
        op: impl IntoReduceOp,
        mut value: N,
        options: CommunicationOptions,
    ) -> Result<N> {
        let call = "ReplicaContext::all_reduce";
        self.require(call)?;
        let options = options.over(self.strategy.options());
        let mut leaves = nest::take(&mut value);
        let checked = op_of(call, op).and_then(|op| check_leaves(call, op, &leaves));
        let op = self.or_refuse(Kind::AllReduce, checked)?;
        let mut session = self.session(Kind::AllReduce, &leaves, None, &options);
        session.all_reduce_leaves(op, &mut leaves, options.pack_limit())?;
        drop(session);
        self.put(call, value, leaves)
    }

    /// Concatenates `value` over all replicas along `axis`, in replica order; each gets the result.
    ///
    /// Sizes along `axis` may differ from replica to replica, and be zero; all other dimensions are the same. A negative axis
    /// counts from the last. Of [`IndexedSlices`](crate::IndexedSlices) the large tensors are concatenated, along axis 0, and
    /// stay sparse.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for a scalar, an axis out of range, or
    /// [`IndexedSlices`](crate::IndexedSlices) whose dense shape is not known.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run(|replica| {
    ///     let rows = 1 + replica.replica_id_in_sync_group();
    ///     replica.all_gather(Tensor::new([rows, 1], &vec![rows as i32; rows])?, 0)
    /// })?;
    /// assert_eq!(result[0], Tensor::from([[1], [2], [2]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_gather<N: Nest>(&self, value: N, axis: impl Into<Axis>) -> Result<N> {
        self.all_gather_with(value, axis, CommunicationOptions::new())
    }

    /// [`all_gather`](ReplicaContext::all_gather) with options that override the strategy's.
    ///
    /// # Errors
    /// As [`all_gather`](ReplicaContext::all_gather).
    ///
    /// ```
    /// use consonance::{CommunicationOptions, MirroredStrategy, Tensor};
    /// use std::time::Duration;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let options = CommunicationOptions::new().timeout(Duration::from_secs(10))?;
    /// let all = strategy.run(|replica| {
    ///     replica.all_gather_with(Tensor::from([replica.replica_id_in_sync_group() as u64]), 0, options)
    /// })?;
    /// assert_eq!(all[1], Tensor::from([0u64, 1]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_gather_with<N: Nest>(
        &self,
        mut value: N,
        axis: impl Into<Axis>,
        options: CommunicationOptions,
    ) -> Result<N> {
        let call = "ReplicaContext::all_gather";
        self.require(call)?;
        let (axis, options) = (axis.into(), options.over(self.strategy.options()));
        let mut leaves = nest::take(&mut value);
        let axes = leaves.iter().map(|leaf| leaf.gather_axis(call, axis)).collect();
        let axes: Vec<usize> = self.or_refuse(Kind::AllGather, axes)?;
        let mut session = self.session(Kind::AllGather, &leaves, Some(axis), &options);
        session.all_gather_leaves(&mut leaves, &axes)?;
        drop(session);
        self.put(call, value, leaves)
    }

    /// Combines `value` over all replicas and gives each replica its block of the result along axis 0. The size of axis 0 is a
    /// multiple of the number of replicas.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for a size that cannot be divided, or
    /// [`IndexedSlices`](crate::IndexedSlices).
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run(|replica| replica.reduce_scatter("sum", Tensor::from([1, 2, 3, 4])))?;
    /// assert_eq!(result.values(), [Tensor::from([2, 4]), Tensor::from([6, 8])]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_scatter<N: Nest>(&self, op: impl IntoReduceOp, mut value: N) -> Result<N> {
        let call = "ReplicaContext::reduce_scatter";
        self.require(call)?;
        let mut leaves = nest::take(&mut value);
        let checked = op_of(call, op).and_then(|op| check_leaves(call, op, &leaves)).and_then(|op| {
            leaves.iter().try_for_each(|leaf| leaf.divisible(call, self.num_replicas_in_sync())).map(|()| op)
        });
        let op = self.or_refuse(Kind::ReduceScatter, checked)?;
        let options = self.strategy.options();
        let mut session = self.session(Kind::ReduceScatter, &leaves, None, &options);
        if leaves.is_empty() {
            session.reduce_scatter(op, &mut Tensor::default())?;
        }
        for leaf in &mut leaves {
            session.reduce_scatter(op, leaf.dense(call)?)?;
        }
        drop(session);
        self.put(call, value, leaves)
    }

    /// Replica `root`'s `value` to all. The others give a value of the same structure, dtypes and shapes.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for a replica that does not exist, or
    /// [`IndexedSlices`](crate::IndexedSlices).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run(|replica| replica.broadcast(replica.replica_id_in_sync_group() as u64, 1))?;
    /// assert_eq!(ids.values(), [1, 1]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn broadcast<N: Nest>(&self, mut value: N, root: usize) -> Result<N> {
        let call = "ReplicaContext::broadcast";
        self.require(call)?;
        let mut leaves = nest::take(&mut value);
        let dense: Result<()> = leaves.iter_mut().try_for_each(|leaf| leaf.dense(call).map(drop));
        self.or_refuse(Kind::Broadcast, dense)?;
        let options = self.strategy.options();
        let mut session = self.session(Kind::Broadcast, &leaves, None, &options);
        if leaves.is_empty() {
            session.call(Call::Broadcast { data: [0u8; 0].as_mut_slice().into(), root })?;
        }
        for leaf in &mut leaves {
            session.call(Call::Broadcast { data: leaf.dense(call)?.buf_mut(), root })?;
        }
        drop(session);
        self.put(call, value, leaves)
    }

    /// The sum of all replicas' `value` on replica `root`, and zeros on the others.
    pub(crate) fn sum_on<N: Nest>(&self, call: &'static str, root: usize, mut value: N) -> Result<N> {
        self.require(call)?;
        let mut leaves = nest::take(&mut value);
        let replicas = self.num_replicas_in_sync();
        let checked = if root < replicas {
            check_leaves(call, ReduceOp::Sum, &leaves)
        } else {
            Err(Error::invalid(call, "root", format!("a replica below {replicas}"), root.to_string()))
        };
        let op = self.or_refuse(Kind::Reduce, checked)?;
        let options = self.strategy.options();
        let mut session = self.session(Kind::Reduce, &leaves, None, &options);
        if leaves.iter().all(|leaf| matches!(leaf.value, Value::Sparse(_))) {
            // Whether the replicas agree on the root is compared here.
            session.sum_on(root, &mut Tensor::default())?;
        }
        for leaf in &mut leaves {
            match &mut leaf.value {
                Value::Dense(tensor) => session.sum_on(root, tensor)?,
                Value::Sparse(slices) => {
                    session.all_reduce_rows(op, slices)?;
                    if self.id != root {
                        *slices = slices.none()?;
                    }
                }
            }
        }
        drop(session);
        self.put(call, value, leaves)
    }

    /// Waits until every replica has come here.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`].
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// use std::sync::Mutex;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let arrived = Mutex::new(0);
    /// strategy.run(|replica| {
    ///     *arrived.lock().unwrap() += 1;
    ///     replica.barrier()?;
    ///     assert_eq!(*arrived.lock().unwrap(), 2);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<()> {
        self.require("ReplicaContext::barrier")?;
        self.meet(Kind::Barrier, &Arguments::NONE)
    }

    /// Pauses all replicas, runs `merge` once in the cross-replica context with the arguments of all, and goes on with its
    /// results: each replica's own if they are [`PerReplica`], the same on all if they are
    /// [`Mirrored`](crate::Mirrored) ([`Strategy::mirror`]), none if they are `()`.
    ///
    /// The function of replica 0 is the one that runs. Where several processes have replicas, the function of the first replica of
    /// each runs there, with the arguments of the replicas of that process; the cross-replica calls that it makes are of all
    /// replicas.
    ///
    /// # Errors
    /// The error of `merge`; otherwise as [`barrier`](ReplicaContext::barrier). Every replica has an [`Error::Mismatch`],
    /// [`Error::Left`], [`Error::Timeout`] or [`Error::Aborted`] as it is; of any other error those that did not run the function have
    /// the text, in an [`Error::Replica`] that names who did. Where several processes have replicas those of one have the error of its
    /// function, which ends the group, unless it is an [`Error::Mismatch`], which all functions have.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let totals = strategy.run(|replica| {
    ///     let x = Tensor::from(replica.replica_id_in_sync_group() as i32);
    ///     replica.merge_call(x, |strategy, all| Ok(strategy.mirror(strategy.reduce(ReduceOp::Sum, &all, None)?)))
    /// })?;
    /// assert_eq!(totals.values(), [Tensor::from(1), Tensor::from(1)]);
    ///
    /// // A function that only does something, such as to apply gradients.
    /// let weight = strategy.variable(|| Tensor::from(1.0f32))?;
    /// strategy.run(|replica| {
    ///     let gradient = Tensor::from(0.25 * replica.replica_id_in_sync_group() as f32);
    ///     replica.merge_call(gradient, |strategy, gradients| {
    ///         let sum = strategy.reduce(ReduceOp::Sum, &gradients, None)?;
    ///         strategy.update(&weight, |copy| copy.assign_sub(sum.clone()))?;
    ///         Ok(())
    ///     })
    /// })?;
    /// assert_eq!(weight.read()?, Tensor::from(0.75f32));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn merge_call<A, M>(
        &self,
        arguments: A,
        merge: impl FnOnce(&Strategy, PerReplica<A>) -> Result<M>,
    ) -> Result<M::Value>
    where
        A: Send + 'static,
        M: Merged,
        M::Value: Send + 'static,
    {
        self.require("ReplicaContext::merge_call")?;
        let types = type_name::<(A, M)>();
        // Two types may have one name. Ids say nothing in another process, which may be of another build: there those of one process are
        // compared by the merge function's replica.
        let ids = self.strategy.workers().is_none().then(TypeId::of::<(A, M::Value)>);
        let describe = || {
            let ids = ids.map(|ids| ("type ids".to_owned(), format!("{ids:?}")));
            [("types".to_owned(), types.to_owned())].into_iter().chain(ids).collect()
        };
        let digest = mix(digest(types), BuildHasherDefault::<DefaultHasher>::new().hash_one(ids));
        let merges = *self.board.merges();
        self.board.put(self.place(), Box::new(Left::<A, M::Value>(arguments, PhantomData)));
        let arrived = self.meet(Kind::MergeCall, &Arguments { digest, describe: &describe, ..Arguments::NONE });
        if let Err(Error::Mismatch { .. }) = arrived {
            self.board.take(self.place());
        }
        arrived?;
        let failure = match self.strategy.workers() {
            None if self.place() == 0 => self.merge::<A, M>(merge),
            None => None,
            Some(workers) => self.lend_to_merge(workers, merges, || self.merge::<A, M>(merge))?,
        };
        let returned = self.meet(Kind::MergeReturn, &Arguments::NONE);
        if let Err(Error::Mismatch { .. }) = returned {
            // Another worker's function makes calls that this one's did not, and has yet to come here.
            self.held().aborter().abort(Reason::Failure);
        }
        let result = match &returned {
            // Nothing else says that the function has returned: what is on the board may be for it.
            Err(_) if self.strategy.workers().is_none() => None,
            _ => self.board.take(self.place()),
        };
        let result = result.and_then(|result| result.downcast::<Result<M::Value>>().ok());
        match (result.map(|result| *result), failure) {
            (_, Some(error)) | (Some(Err(error)), None) => Err(error),
            (Some(Ok(value)), None) => returned.map(|()| value),
            (None, None) => {
                Err(returned.expect_err("the first replica leaves a result of the agreed type for every replica"))
            }
        }
    }

    /// Lends the communicators of this worker's replicas to the merge function that the first of them runs: the one after
    /// `merges` others.
    fn lend_to_merge(
        &self,
        workers: &Workers,
        merges: usize,
        merge: impl FnOnce() -> Option<Error>,
    ) -> Result<Option<Error>> {
        let aborter = self.held().aborter();
        self.held().lend();
        let timeout = self.strategy.options().configuration().timeout;
        let result = if self.place() == 0 {
            let _merging = Merging(self.board);
            let _turn = workers.hand_over();
            let failure = merge();
            if failure.as_ref().is_some_and(|error| !matches!(error, Error::Mismatch { .. })) {
                // The other workers' functions know nothing of it. A mismatch they have, too.
                aborter.abort(Reason::Failure);
            }
            Ok(failure)
        } else if self.board.wait_for_merge(merges, timeout) {
            Ok(None)
        } else {
            aborter.abort(Reason::Deadline);
            let missing =
                vec![(self.strategy.local_replicas().start, "its merge function has not returned".to_owned())];
            Err(Error::Timeout { call: Kind::MergeReturn.to_string(), waited: timeout, missing })
        };
        self.held().take_back();
        result
    }

    /// Runs the merge function and leaves each replica's result, or its error instead of the one that is returned, on the board.
    fn merge<A, M>(&self, merge: impl FnOnce(&Strategy, PerReplica<A>) -> Result<M>) -> Option<Error>
    where
        A: Send + 'static,
        M: Merged,
        M::Value: Send + 'static,
    {
        let Range { start, end } = self.strategy.local_replicas();
        let replicas = end - start;
        let mut arguments = Vec::with_capacity(replicas);
        for place in 0..replicas {
            let left = self.board.take(place).expect("every replica left its arguments before it arrived");
            let Ok(left) = left.downcast::<Left<A, M::Value>>() else {
                let expected = format!("the types of replica {start}, {}", type_name::<(A, M)>());
                let error = Error::invalid("ReplicaContext::merge_call", "types", expected, "others of these names");
                return Some(error.of_replica(start + place));
            };
            arguments.push(left.0);
        }
        let arguments = PerReplica::new(arguments);
        let merged = context::within(self.strategy, None, || merge(self.strategy, arguments)).and_then(|merged| {
            let values = merged.split(replicas);
            if values.len() == replicas {
                return Ok(values);
            }
            let (expected, found) = (format!("{replicas} values"), format!("{} values", values.len()));
            Err(Error::invalid("ReplicaContext::merge_call", "the merge function's result", expected, found))
        });
        match merged {
            Ok(values) => {
                for (place, value) in values.into_iter().enumerate() {
                    self.board.put(place, Box::new(Ok::<_, Error>(value)));
                }
                None
            }
            Err(error) => {
                for place in 0..replicas {
                    self.board.put(place, Box::new(Err::<M::Value, _>(merge_failed(start, &error))));
                }
                Some(error)
            }
        }
    }

    /// A step in which the replicas only meet.
    pub(crate) fn meet(&self, kind: Kind, arguments: &Arguments<'_>) -> Result<()> {
        self.configured().meet(kind, arguments)
    }

    /// One step of a call that has no session.
    pub(crate) fn call_with(&self, call: Call<'_>, arguments: &Arguments<'_>) -> Result<()> {
        self.configured().call_with(call, arguments)
    }

    /// The communicator, when all that this replica has on its way is done.
    pub(crate) fn held(&self) -> RefMut<'_, Held> {
        let mut held = self.communicator.borrow_mut();
        if let Some(flow) = &mut *self.flow.borrow_mut() {
            flow.settle(&mut held);
        }
        held
    }

    /// `work` with the overlap that this replica is in, and its communicator.
    ///
    /// # Panics
    /// If it is in none.
    pub(crate) fn with_flow<R>(&self, work: impl FnOnce(&mut Flow, &mut Held) -> R) -> R {
        let mut flow = self.flow.borrow_mut();
        work(flow.as_mut().expect("buckets are of an overlap"), &mut self.communicator.borrow_mut())
    }

    /// The communicator with the strategy's options, whatever those of the last call were.
    fn configured(&self) -> RefMut<'_, Communicator> {
        let mut communicator = RefMut::map(self.held(), |held| &mut **held);
        communicator.configure(self.strategy.options().configuration());
        communicator
    }

    pub(crate) fn require(&self, call: &'static str) -> Result<()> {
        context::require_replica(call, self.strategy, self.id)
    }

    /// The nest with the results of `call` in their places.
    pub(crate) fn put<N: Nest>(&self, call: &'static str, value: N, leaves: Vec<Leaf>) -> Result<N> {
        nest::put(value, leaves).map_err(|error| error.of_call(call).of_replica(self.id))
    }

    /// The value, or the error that the other replicas, who make the same call, are told of.
    pub(crate) fn or_refuse<T>(&self, kind: Kind, checked: Result<T>) -> Result<T> {
        checked.map_err(|error| {
            let error = error.of_replica(self.id);
            let _ = self.configured().refuse(kind, &error);
            error
        })
    }

    pub(crate) fn session(
        &self,
        kind: Kind,
        leaves: &[Leaf],
        ragged: Option<Axis>,
        options: &CommunicationOptions,
    ) -> Session<RefMut<'_, Communicator>> {
        let mut communicator = RefMut::map(self.held(), |held| &mut **held);
        communicator.configure(options.configuration());
        Session::new(kind, communicator, leaves, ragged.map_or_else(Axes::default, Axes::from))
    }
}

/// The error of the merge function that `replica` ran, for the others. What came of a collective is the same to all; what is the
/// function's own is that replica's.
fn merge_failed(replica: usize, error: &Error) -> Error {
    match error {
        Error::Mismatch { .. } | Error::Left { .. } | Error::Timeout { .. } | Error::Aborted { .. } => {
            error.duplicate()
        }
        _ => {
            let source = Error::other(format!("its merge function failed: {error}"));
            Error::Replica { replica, source: Box::new(source) }
        }
    }
}

/// The operation, if it is defined on every leaf.
pub(crate) fn check_leaves(call: &'static str, op: ReduceOp, leaves: &[Leaf]) -> Result<ReduceOp> {
    leaves.iter().try_for_each(|leaf| leaf.check_op(call, op)).map(|()| op)
}
