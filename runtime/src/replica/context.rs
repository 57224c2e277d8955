//! What a replica sees while it runs.

use crate::{
    Axes, Axis, CommunicationOptions, Communicator, Device, Error, ReduceOp, Result, Strategy, Tensor,
    comm::{agreement::Agreement, call::Call},
    error::{IntoReduceOp, op_of},
    handle::{CommLease, context},
    replica::{
        board::MergeBoard,
        nest_call::{NestCall, check_leaves},
        overlap_queue::Flow,
    },
    value::nest::{self, Leaf, Nest, Value},
};
use consonance_spec::Kind;
use std::cell::{RefCell, RefMut};

/// One replica of a [`run`](Strategy::run): who it is, and its collectives with the other replicas.
///
/// Every replica makes the same calls in the same order, under `if` and in loops too as long as all
/// take the same way. A replica that does not is named in an error that all get at once.
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
    pub(super) strategy: &'r Strategy,
    id: usize,
    communicator: RefCell<CommLease>,
    /// Within an overlap.
    pub(super) flow: RefCell<Option<Flow>>,
    pub(super) board: &'r MergeBoard,
}

impl<'r> ReplicaContext<'r> {
    pub(crate) fn new(
        strategy: &'r Strategy,
        id: usize,
        communicator: CommLease,
        board: &'r MergeBoard,
    ) -> ReplicaContext<'r> {
        ReplicaContext { strategy, id, communicator: RefCell::new(communicator), flow: RefCell::default(), board }
    }

    /// Its communicator, if that was made for runs of this process alone.
    pub(crate) fn into_communicator(self) -> Option<Communicator> {
        self.communicator.into_inner().into_own()
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
    /// Shapes and structure are the same on all replicas. A tensor that nobody else holds is
    /// reduced in its own memory. Small tensors travel together
    /// ([`CommunicationOptions::bytes_per_pack`]). The mean of integers is a float: f64 for 32 and
    /// 64 bits, f32 for 8 and 16. So plain integers have no mean, since a float has no place in
    /// them: give a [`Tensor`]. [`IndexedSlices`](crate::IndexedSlices) keep all rows of all
    /// replicas, in replica order; their mean is divided by the number of replicas.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] if `op` is not defined on the dtype, or
    /// its result is no number of the type that was given; [`Error::Mismatch`] if the replicas did
    /// not call the same; [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`] if a replica is
    /// gone.
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
    /// Sizes along `axis` may differ from replica to replica, and be zero; all other dimensions are
    /// the same. A negative axis counts from the last. Of [`IndexedSlices`](crate::IndexedSlices)
    /// the large tensors are concatenated, along axis 0, and stay sparse.
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
        let axes = leaves.iter().map(|leaf| leaf.gather_axis(call, axis)).collect();
        let axes: Vec<usize> = self.or_refuse(Kind::AllGather, axes)?;
        let mut session = self.session(Kind::AllGather, &leaves, Some(axis), &options);
        session.all_gather_leaves(&mut leaves, &axes)?;
        drop(session);
        self.put(call, value, leaves)
    }

    /// Combines `value` over all replicas and gives each replica its block of the result along axis
    /// 0. The size of axis 0 is a multiple of the number of replicas.
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

    /// Replica `root`'s `value` to all. The others give a value of the same structure, dtypes and
    /// shapes.
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
            session.call(Call::Broadcast { data: leaf.dense(call)?.buf_mut().into(), root })?;
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
        self.meet(Kind::Barrier, &Agreement::NONE)
    }

    /// A step in which the replicas only meet.
    pub(crate) fn meet(&self, kind: Kind, agreement: &Agreement<'_>) -> Result<()> {
        self.configured().meet(kind, agreement)
    }

    /// One step of a call that has no session.
    pub(crate) fn call_with(&self, call: Call<'_>, agreement: &Agreement<'_>) -> Result<()> {
        self.configured().execute(call, agreement)
    }

    /// The communicator, when all that this replica has on its way is done.
    pub(crate) fn held(&self) -> RefMut<'_, CommLease> {
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
    pub(crate) fn with_flow<R>(&self, work: impl FnOnce(&mut Flow, &mut CommLease) -> R) -> R {
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
    ) -> NestCall<RefMut<'_, Communicator>> {
        let mut communicator = RefMut::map(self.held(), |held| &mut **held);
        communicator.configure(options.configuration());
        NestCall::new(kind, communicator, leaves, ragged.map_or_else(Axes::default, Axes::from))
    }
}
