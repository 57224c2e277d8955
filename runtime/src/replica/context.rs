//! The context of a running replica.

use crate::{
    Axes, Axis, CommunicationOptions, Communicator, Device, Error, ReduceOp, Result, Strategy, Tensor,
    comm::{agreement::Agreement, call::Call},
    error::{IntoReduceOp, op_of},
    execution::{CommLease, context},
    replica::{
        board::MergeBoard,
        nest_call::{NestCall, check_leaves},
        overlap_queue::Flow,
    },
    value::{
        contract::Contract,
        nest::{self, Leaf, Nest, Value},
    },
};
use consonance_kernels::sync::one_thread::OneThread;
use consonance_spec::{
    Kind,
    static_shapes::{GATHERED_SHAPE, REDUCED_SHAPE},
};
use std::{
    cell::{RefCell, RefMut},
    fmt,
    marker::PhantomData,
};

/// One replica of a [`run`](Strategy::run): its id, and its collectives with the other replicas.
///
/// Every replica makes the same calls in the same order. Calls may be inside `if` and loops if all
/// replicas take the same branches. If a replica differs, all replicas get at once an error that
/// names it.
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
///
/// It stays on its thread. [`overlap`](ReplicaContext::overlap) reduces gradients on another thread
/// while the replica computes, and [`current_replica`](crate::current_replica) returns a handle of
/// the replica that the thread runs:
///
/// ```compile_fail,E0277
/// # let strategy = consonance::MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
/// strategy.run(|replica| std::thread::scope(|scope| scope.spawn(|| replica.barrier()).join().unwrap()));
/// ```
pub struct ReplicaContext<'r> {
    pub(super) strategy: Strategy,
    /// The contract of static shapes, with the shapes of the run's arguments.
    contract: Option<Contract>,
    id: usize,
    state: OneThread<State>,
    pub(super) board: MergeBoard,
    /// A borrow of users ends with the function, though nothing in it does.
    function: PhantomData<&'r ()>,
}

/// The state that calls change.
struct State {
    communicator: RefCell<CommLease>,
    /// The state of the overlap that the replica is in, if any.
    flow: RefCell<Option<Flow>>,
}

impl ReplicaContext<'_> {
    pub(crate) fn new(
        strategy: Strategy,
        contract: Option<Contract>,
        id: usize,
        communicator: CommLease,
        board: MergeBoard,
    ) -> ReplicaContext<'static> {
        let state = State { communicator: RefCell::new(communicator), flow: RefCell::default() };
        ReplicaContext { strategy, contract, id, state: OneThread::new(state), board, function: PhantomData }
    }

    /// Returns its communicator, if that was made for runs of this process only.
    pub(crate) fn into_communicator(self) -> Option<Communicator> {
        self.state.into_inner().communicator.into_inner().into_own()
    }

    /// Returns the id of this replica, from 0 to
    /// [`num_replicas_in_sync`](ReplicaContext::num_replicas_in_sync) (exclusive).
    pub fn replica_id_in_sync_group(&self) -> usize {
        self.id
    }

    /// Returns the position of this replica among those of this process.
    pub(crate) fn place(&self) -> usize {
        self.id - self.strategy.local_replicas().start
    }

    /// Returns the number of replicas in all processes.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.strategy.num_replicas_in_sync()
    }

    /// Returns the devices of this replica: always one.
    pub fn devices(&self) -> [Device; 1] {
        [self.strategy.worker_devices()[self.place()]]
    }

    /// Returns the strategy that runs this replica.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Combines `value` over all replicas. Every replica gets the result.
    ///
    /// Structure, dtypes and shapes are the same on all replicas. A tensor whose elements are not
    /// shared is reduced in its own memory, and so is a `Vec` of numbers, which is one tensor.
    /// Small tensors are fused ([`CommunicationOptions::bytes_per_pack`]). The mean of integers is
    /// a float: f64 for 32 and 64 bits, f32 for 8 and 16. Plain integers in a nest cannot hold that
    /// result; pass a [`Tensor`] instead. For [`IndexedSlices`](crate::IndexedSlices) the result
    /// has the rows of all replicas, in replica order; for the mean they are divided by the number
    /// of replicas.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] if `op` is not defined on the dtype, or
    /// the result does not fit the type of a plain number; [`Error::Mismatch`] if the replicas did
    /// not make the same call; both also by the rules of [`StaticShapes`](crate::StaticShapes);
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
        let checked = self.reduced_op(call, op).and_then(|op| check_leaves(call, op, &leaves));
        let op = self.or_refuse(Kind::AllReduce, checked)?;
        self.refuse_nan(call, Kind::AllReduce, &leaves, &options)?;
        let mut session = self.session(Kind::AllReduce, &leaves, None, &options);
        let reduced = session.all_reduce_leaves(op, &mut leaves, options.pack_limit());
        self.by_rule(REDUCED_SHAPE, reduced)?;
        drop(session);
        self.put(call, value, leaves)
    }

    /// Concatenates `value` over all replicas along `axis`, in replica order. Every replica gets
    /// the result.
    ///
    /// Sizes along `axis` may differ between replicas, and may be zero. All other dimensions are
    /// the same. A negative axis counts from the last. For [`IndexedSlices`](crate::IndexedSlices)
    /// the large tensors are concatenated along axis 0, and the result is sparse.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for a scalar, an
    /// axis out of range, or [`IndexedSlices`](crate::IndexedSlices) whose dense shape is not
    /// known.
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
        let axes = self.check_gathered(call, &leaves);
        let axes = axes.and_then(|()| leaves.iter().map(|leaf| leaf.gather_axis(call, axis)).collect());
        let axes: Vec<usize> = self.or_refuse(Kind::AllGather, axes)?;
        let mut session = self.session(Kind::AllGather, &leaves, axis, &options);
        let gathered = session.all_gather_leaves(&mut leaves, &axes);
        self.by_rule(GATHERED_SHAPE, gathered)?;
        drop(session);
        self.put(call, value, leaves)
    }

    /// Combines `value` over all replicas. Each replica gets its block of the result along axis 0.
    /// The size of axis 0 must be a multiple of the number of replicas.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for a size that
    /// cannot be divided, or [`IndexedSlices`](crate::IndexedSlices).
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
        self.refuse_nan(call, Kind::ReduceScatter, &leaves, &options)?;
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

    /// Copies the `value` of replica `root` to all replicas. The other replicas pass a value of the
    /// same structure, dtypes and shapes.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for a replica that
    /// does not exist, or [`IndexedSlices`](crate::IndexedSlices).
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
            session.call(Call::Broadcast { data: leaf.dense(call)?.buf_mut()?, root })?;
        }
        drop(session);
        self.put(call, value, leaves)
    }

    /// Returns the sum of all replicas' `value` on replica `root`, and zeros on the others.
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
        let mut sum = || -> Result<()> {
            if leaves.iter().all(|leaf| matches!(leaf.value, Value::Sparse(_))) {
                // No step on sparse rows compares the root; this one does.
                session.sum_on(root, &mut Tensor::default())?;
            }
            leaves.iter_mut().try_for_each(|leaf| match &mut leaf.value {
                Value::Dense(tensor) => session.sum_on(root, tensor),
                Value::Sparse(slices) => {
                    session.all_reduce_rows(op, slices)?;
                    if self.id != root {
                        *slices = slices.none()?;
                    }
                    Ok(())
                }
            })
        };
        let summed = sum();
        self.by_rule(REDUCED_SHAPE, summed)?;
        drop(session);
        self.put(call, value, leaves)
    }

    /// Waits until every replica has made this call.
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
        self.meet(Kind::Barrier, &Agreement::NONE)
    }

    /// Executes a barrier of this kind.
    pub(crate) fn meet(&self, kind: Kind, agreement: &Agreement<'_>) -> Result<()> {
        self.configured().meet(kind, agreement)
    }

    /// Executes one step of a call that has no [`NestCall`].
    pub(crate) fn call_with(&self, call: Call<'_>, agreement: &Agreement<'_>) -> Result<()> {
        self.configured().execute(call, agreement)
    }

    /// Returns the communicator after all pending buckets of this replica are done.
    pub(crate) fn held(&self) -> RefMut<'_, CommLease> {
        let mut held = self.state.communicator.borrow_mut();
        if let Some(flow) = &mut *self.state.flow.borrow_mut() {
            flow.settle(&mut held);
        }
        held
    }

    /// Returns the state of the overlap that the replica is in, if any.
    pub(super) fn flow(&self) -> &RefCell<Option<Flow>> {
        &self.state.flow
    }

    /// Runs `work` with the overlap that this replica is in and its communicator.
    ///
    /// # Panics
    /// If the replica is in no overlap.
    pub(crate) fn with_flow<R>(&self, work: impl FnOnce(&mut Flow, &mut CommLease) -> R) -> R {
        let mut flow = self.state.flow.borrow_mut();
        work(flow.as_mut().expect("buckets are of an overlap"), &mut self.state.communicator.borrow_mut())
    }

    /// Returns the communicator, configured with the strategy's options again.
    pub(super) fn configured(&self) -> RefMut<'_, Communicator> {
        let mut communicator = RefMut::map(self.held(), |held| &mut **held);
        communicator.configure(self.strategy.options().configuration());
        communicator
    }

    pub(crate) fn require(&self, call: &'static str) -> Result<()> {
        context::require_replica(call, &self.strategy, self.id)
    }

    /// Moves the results of `call` into the nest.
    pub(crate) fn put<N: Nest>(&self, call: &'static str, value: N, leaves: Vec<Leaf>) -> Result<N> {
        nest::put(value, leaves).map_err(|error| error.of_call(call).of_replica(self.id))
    }

    /// Returns the value. For an error, tells the other replicas, which make the same call, and
    /// returns the error.
    pub(crate) fn or_refuse<T>(&self, kind: Kind, checked: Result<T>) -> Result<T> {
        checked.map_err(|error| {
            let error = error.of_replica(self.id);
            let _ = self.configured().refuse(kind, &error);
            error
        })
    }

    /// Returns the contract of static shapes, if calls obey it.
    pub(super) fn contract(&self) -> Option<&Contract> {
        self.contract.as_ref()
    }

    pub(crate) fn session(
        &self,
        kind: Kind,
        leaves: &[Leaf],
        ragged: impl Into<Axes>,
        options: &CommunicationOptions,
    ) -> NestCall<RefMut<'_, Communicator>> {
        let mut communicator = RefMut::map(self.held(), |held| &mut **held);
        communicator.configure(options.configuration());
        NestCall::new(kind, communicator, leaves, ragged.into(), self.contract.clone())
    }
}

impl fmt::Debug for ReplicaContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaContext(replica {} of {}, {})", self.id, self.num_replicas_in_sync(), self.strategy)
    }
}
