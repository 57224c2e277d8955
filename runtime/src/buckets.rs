//! All-reduces that go on while a replica computes: what it hands over is collected in buckets, which travel when they are full.
//!
//! A thread that the strategy keeps carries the buckets out, one after the other, with the replica's communicator: the replica
//! lends it, and takes it back before it makes any other call. What is handed over is owned, not borrowed, and the closure of
//! [`ReplicaContext::overlap`] does not end before all of it is back.
//!
//! Where every core has a replica, such a thread only takes time from one that computes. There the replica itself carries the
//! buckets out, when it waits. Which of the two it is, each replica may choose for itself: the calls are the same.

use crate::{
    Axes, CommunicationOptions, Communicator, Error, ReduceOp, ReplicaContext, Result,
    backend::Configuration,
    carrier::{Carrier, Lent},
    error::{IntoReduceOp, op_of},
    nest::{Leaf, Nest, Path, Value},
    replica::check_leaves,
    session::Session,
    strategy::Held,
};
use consonance_kernels::step::{Aborter, Reason};
use consonance_spec::{DType, Kind};
use std::{
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// Where a replica hands over what is to be all-reduced while it goes on: see [`ReplicaContext::overlap`].
pub struct Buckets<'r> {
    replica: &'r ReplicaContext<'r>,
}

/// What a replica has handed over, until it [waits](PendingNest::wait) for the result. Dropping it is safe: the all-reduce is
/// made all the same, and the end of the closure reports its error.
pub struct PendingNest<'b, N> {
    buckets: &'b Buckets<'b>,
    /// Without its leaves.
    nest: N,
    parcel: Arc<Parcel>,
}

const CALL: &str = "Buckets::all_reduce";

impl Buckets<'_> {
    /// Hands over `value`, to be combined over all replicas: [`ReplicaContext::all_reduce`], whose result
    /// [`PendingNest::wait`] gives.
    ///
    /// Each replica hands over the same in the same order; in errors, the first is `value/0`, the second `value/1`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if `op` is not defined on the dtype, and [`Error::UnknownReduceOp`]: both end the group, after the other
    /// replicas are told; [`Error::WrongContext`] in a merge function. All others come from [`PendingNest::wait`] or the end of the
    /// closure.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| {
    ///     replica.overlap(|buckets| {
    ///         let (last, first) = (buckets.all_reduce("sum", [1, 2])?, buckets.all_reduce("mean", 0.5f32)?);
    ///         Ok((first.wait()?, last.wait()?))
    ///     })
    /// })?;
    /// assert_eq!(sums[0], (0.5, [2, 4]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce<N: Nest>(&self, op: impl IntoReduceOp, mut value: N) -> Result<PendingNest<'_, N>> {
        self.replica.require(CALL)?;
        let mut leaves = Vec::new();
        value.take_leaves(&Path::default().join(self.replica.with_flow(|flow, _| flow.parcels.len())), &mut leaves);
        let checked = op_of(CALL, op).and_then(|op| check_leaves(CALL, op, &leaves));
        let op = checked.map_err(|error| {
            let error = error.of_replica(self.replica.replica_id_in_sync_group());
            self.replica.with_flow(|flow, held| flow.refuse(&error, held));
            error
        })?;
        let parcel = self.replica.with_flow(|flow, held| flow.take(op, leaves, held));
        Ok(PendingNest { buckets: self, nest: value, parcel })
    }

    /// How long the collectives of the buckets that are finished took, together: the time in them, waiting for other replicas
    /// included. Beside the time in which the replica itself stood still for them, it tells how much was hidden.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// use std::time::Instant;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// strategy.run(|replica| {
    ///     replica.overlap(|buckets| {
    ///         let sum = buckets.all_reduce("sum", Tensor::from(vec![1.0f32; 100_000]))?;
    ///         // … something else is computed here …
    ///         let start = Instant::now();
    ///         sum.wait()?;
    ///         println!("waited {:?} for collectives of {:?}", start.elapsed(), buckets.in_collectives());
    ///         Ok(())
    ///     })
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn in_collectives(&self) -> Duration {
        self.replica.with_flow(|flow, _| flow.progress.lock().expect(UNHARMED).in_collectives)
    }
}

impl<N: Nest> PendingNest<'_, N> {
    /// Waits until all of it has been combined, and gives the result. Bounded, as each all-reduce is.
    ///
    /// What is in a bucket that is not full goes on its way now, with all other such buckets. So the first wait for it has its place
    /// among the calls that replicas make in the same order.
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`]. When the group has ended, all that comes after has the error by which it did.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| replica.overlap(|buckets| buckets.all_reduce("sum", 1.5f64)?.wait()))?;
    /// assert_eq!(sums.values(), [3.0, 3.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn wait(self) -> Result<N> {
        self.buckets.replica.with_flow(|flow, held| {
            if flow.open.iter().any(|bucket| bucket.has_of(&self.parcel)) {
                flow.send_all(held);
            }
            flow.make_progress(held);
        });
        self.buckets.replica.put(CALL, self.nest, self.parcel.wait()?)
    }
}

/// The buckets of one [`ReplicaContext::overlap`].
pub(crate) struct Flow {
    /// Of a bucket, in bytes.
    limit: usize,
    configuration: Configuration,
    /// Those that are not full, one for each operation and dtype at most, in the order in which they were last added to.
    open: Vec<Bucket>,
    /// All that was handed over.
    parcels: Vec<Arc<Parcel>>,
    progress: Arc<Mutex<Progress>>,
    way: Way,
    /// Ends the group, whoever has its communicator.
    aborter: Aborter,
}

/// What became of the buckets so far.
#[derive(Default)]
struct Progress {
    in_collectives: Duration,
    /// Why no more buckets travel, which is the error of all from there on: the group has ended, which itself would only say that it
    /// has, or the replicas' buckets differ, and so may their number.
    ended: Option<Error>,
}

const UNHARMED: &str = "nobody panics while noting progress";

/// Who carries out the buckets that were sent.
enum Way {
    /// A thread, which has the communicator from the first of them on.
    Thread(Carrier, Option<Lent>),
    /// The replica, when it waits.
    Later(Vec<Task>),
}

impl Flow {
    fn new(options: CommunicationOptions, communicator: &Communicator, carrier: Option<Carrier>) -> Flow {
        let limit = match options.pack_limit() {
            // One replica has no step to save.
            _ if communicator.size() == 1 => 1,
            0 => usize::MAX,
            bytes => bytes,
        };
        Flow {
            limit,
            configuration: options.configuration(),
            open: Vec::new(),
            parcels: Vec::new(),
            progress: Arc::default(),
            way: carrier.map_or(Way::Later(Vec::new()), |carrier| Way::Thread(carrier, None)),
            aborter: communicator.aborter(),
        }
    }

    /// Puts the leaves into buckets, and sends those that are full. A leaf that fills a bucket has one to itself.
    fn take(&mut self, op: ReduceOp, leaves: Vec<Leaf>, held: &mut Held) -> Arc<Parcel> {
        let parcel = Arc::new(Parcel::new(leaves.len()));
        self.parcels.push(parcel.clone());
        for (place, leaf) in leaves.into_iter().enumerate() {
            let promise = Promise { parcel: parcel.clone(), place, kept: false };
            let (dtype, bytes) = match &leaf.value {
                Value::Dense(tensor) => (Some(tensor.dtype()), tensor.buf().bytes()),
                Value::Sparse(_) => (None, usize::MAX),
            };
            let mut bucket = Bucket::new(op, dtype, self.limit);
            if bytes < self.limit
                && let Some(begun) = self.open.iter().position(|bucket| (bucket.op, bucket.dtype) == (op, dtype))
            {
                let begun = self.open.remove(begun);
                if bytes <= begun.free {
                    bucket = begun;
                } else {
                    self.send(begun, held);
                }
            }
            bucket.free = bucket.free.saturating_sub(bytes);
            bucket.leaves.push(leaf);
            bucket.promises.push(promise);
            if bucket.free == 0 {
                self.send(bucket, held);
            } else {
                self.open.push(bucket);
            }
        }
        parcel
    }

    /// Sends a bucket on its way, after those before it.
    fn send(&mut self, bucket: Bucket, held: &mut Held) {
        let task = Task { bucket, configuration: self.configuration, progress: self.progress.clone() };
        match &mut self.way {
            Way::Thread(carrier, lent) => {
                let lent = lent.get_or_insert_with(|| carrier.lend(held.give_up()));
                lent.carry_out(task);
            }
            Way::Later(tasks) => tasks.push(task),
        }
    }

    /// Sends the buckets that are not full, too.
    fn send_all(&mut self, held: &mut Held) {
        for bucket in mem::take(&mut self.open) {
            self.send(bucket, held);
        }
    }

    /// Sees to it that what was sent gets done by the time that somebody has waited for it.
    fn make_progress(&mut self, held: &mut Held) {
        if let Way::Later(tasks) = &mut self.way {
            mem::take(tasks).into_iter().for_each(|task| task.carry_out(held));
        }
    }

    /// Returns when all that was sent is done: the communicator is back.
    fn finish(&mut self, held: &mut Held) {
        self.make_progress(held);
        if let Way::Thread(_, lent) = &mut self.way
            && let Some(lent) = lent.take()
        {
            held.put_back(lent.take_back());
        }
    }

    /// Tells the other replicas, in the place of the next bucket, why this one hands over no more, and ends the group: they have gone
    /// on with what follows in their closures, and learn of it later than this one does.
    fn refuse(&mut self, error: &Error, held: &mut Held) {
        self.finish(held);
        let ended = self.progress.lock().expect(UNHARMED).ended.is_some();
        if !ended {
            held.configure(self.configuration);
            let _ = held.refuse(Kind::AllReduce, error);
            self.progress.lock().expect(UNHARMED).ended = Some(error.duplicate());
        }
        self.aborter.abort(Reason::Failure);
    }

    /// Returns when all that was handed over is done.
    pub(crate) fn settle(&mut self, held: &mut Held) {
        self.send_all(held);
        self.finish(held);
    }
}

/// What travels together: of one operation and dtype, or one [`IndexedSlices`](crate::IndexedSlices).
struct Bucket {
    op: ReduceOp,
    /// None for sparse rows.
    dtype: Option<DType>,
    /// Bytes.
    free: usize,
    leaves: Vec<Leaf>,
    /// One for each leaf.
    promises: Vec<Promise>,
}

impl Bucket {
    fn new(op: ReduceOp, dtype: Option<DType>, limit: usize) -> Bucket {
        Bucket { op, dtype, free: limit, leaves: Vec::new(), promises: Vec::new() }
    }

    /// Whether it has a leaf of this parcel.
    fn has_of(&self, parcel: &Arc<Parcel>) -> bool {
        self.promises.iter().any(|promise| Arc::ptr_eq(&promise.parcel, parcel))
    }
}

/// A bucket on its way.
pub(crate) struct Task {
    bucket: Bucket,
    configuration: Configuration,
    progress: Arc<Mutex<Progress>>,
}

impl Task {
    pub(crate) fn carry_out(self, communicator: &mut Communicator) {
        let Task { bucket: Bucket { op, mut leaves, promises, .. }, configuration, progress } = self;
        let ended = progress.lock().expect(UNHARMED).ended.as_ref().map(Error::duplicate);
        let start = Instant::now();
        let result = ended.map_or_else(
            || {
                communicator.configure(configuration);
                let mut session = Session::new(Kind::AllReduce, communicator, &leaves, Axes::default());
                session.all_reduce_leaves(op, &mut leaves, 0)
            },
            Err,
        );
        let mut progress = progress.lock().expect(UNHARMED);
        progress.in_collectives += start.elapsed();
        if let Err(error) = &result {
            progress.ended = Some(error.duplicate());
        }
        drop(progress);
        match result {
            Ok(()) => promises.into_iter().zip(leaves).for_each(|(promise, leaf)| promise.keep(Ok(leaf))),
            Err(error) => promises.into_iter().for_each(|promise| promise.keep(Err(error.duplicate()))),
        }
    }
}

/// What was handed over at once. It is back when every leaf is.
struct Parcel {
    state: Mutex<Contents>,
    complete: Condvar,
}

struct Contents {
    /// Those that are back.
    leaves: Vec<Option<Leaf>>,
    missing: usize,
    /// Of a leaf that did not come back, until it is taken.
    error: Option<Error>,
}

impl Parcel {
    fn new(leaves: usize) -> Parcel {
        let contents = Contents { leaves: vec![None; leaves], missing: leaves, error: None };
        Parcel { state: Mutex::new(contents), complete: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.state.lock().expect("nobody panics holding a parcel")
    }

    fn put(&self, place: usize, leaf: Result<Leaf>) {
        let mut contents = self.lock();
        contents.missing -= 1;
        match leaf {
            Ok(leaf) => contents.leaves[place] = Some(leaf),
            Err(error) => _ = contents.error.get_or_insert(error),
        }
        if contents.missing == 0 {
            self.complete.notify_all();
        }
    }

    /// All leaves, when they are back.
    fn wait(&self) -> Result<Vec<Leaf>> {
        let waited = self.complete.wait_while(self.lock(), |contents| contents.missing > 0);
        let mut contents = waited.expect("nobody panics holding a parcel");
        match contents.error.take() {
            Some(error) => Err(error),
            None => Ok(contents.leaves.drain(..).map(|leaf| leaf.expect("none is missing")).collect()),
        }
    }
}

/// The duty to bring a leaf back. Dropped before, which only a failure of the closure or a panic does, it tells so to who waits.
struct Promise {
    parcel: Arc<Parcel>,
    place: usize,
    kept: bool,
}

impl Promise {
    fn keep(mut self, leaf: Result<Leaf>) {
        self.kept = true;
        self.parcel.put(self.place, leaf);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.kept {
            self.parcel.put(self.place, Err(Error::other("the all-reduce was given up")));
        }
    }
}

impl ReplicaContext<'_> {
    /// Runs `body`, in which all-reduces go on while the replica does something else: it hands each layer's gradients over as soon
    /// as it has them, computes the next layer's meanwhile, and waits at the end.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| {
    ///     replica.overlap(|buckets| {
    ///         let mut pending = Vec::new();
    ///         for layer in (0..3).rev() {
    ///             let gradient = Tensor::from(vec![layer as f32; 1000]);
    ///             pending.push(buckets.all_reduce(ReduceOp::Sum, gradient)?);
    ///         }
    ///         pending.into_iter().map(|gradient| gradient.wait()).collect::<Result<Vec<_>, _>>()
    ///     })
    /// })?;
    /// assert_eq!(sums[1][0], Tensor::from(vec![4.0f32; 1000]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// What is handed over is collected, by operation and dtype, in buckets of [`CommunicationOptions::bytes_per_pack`]. A full one
    /// is all-reduced at once, by a thread that the strategy keeps for it; the others are when the replica waits for them, and
    /// at the end. Where every core has a replica there is no such thread, and the replica itself does it all when it waits: see
    /// [`CommunicationOptions::carriers`]. The result has the bits of [`all_reduce`](ReplicaContext::all_reduce).
    ///
    /// Any other call that the replica makes in `body` comes after all that was handed over before it, and waits for that.
    ///
    /// # Errors
    /// The error of `body`, else the first of an all-reduce that was not waited for. [`Error::WrongContext`] within another overlap.
    ///
    /// After an [`Error::Mismatch`] of what was handed over none of that travels any more, and all of it has that error, on all replicas; the
    /// group works. If `body` fails with any other error the group is ended, as by a replica's own failure: the other replicas may
    /// have handed over more, or less, and no later call is to meet what they wait for.
    ///
    /// # Panics
    /// If `body` panics; the group is then ended, so that no other replica waits.
    pub fn overlap<R>(&self, body: impl FnOnce(&Buckets<'_>) -> Result<R>) -> Result<R> {
        self.overlap_with(CommunicationOptions::new(), body)
    }

    /// [`overlap`](ReplicaContext::overlap) with options that override the strategy's.
    ///
    /// # Errors
    /// As [`overlap`](ReplicaContext::overlap).
    ///
    /// ```
    /// use consonance::{CommunicationOptions, MirroredStrategy};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let options = CommunicationOptions::new().bytes_per_pack(1 << 20).carriers(true);
    /// let sums = strategy.run(|replica| replica.overlap_with(options, |buckets| buckets.all_reduce("sum", 1)?.wait()))?;
    /// assert_eq!(sums.values(), [2, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn overlap_with<R>(
        &self,
        options: CommunicationOptions,
        body: impl FnOnce(&Buckets<'_>) -> Result<R>,
    ) -> Result<R> {
        let call = "ReplicaContext::overlap";
        self.require(call)?;
        let options = options.over(self.strategy().options());
        if self.flow.borrow().is_some() {
            return Err(Error::WrongContext {
                call,
                problem: "called within another overlap of the replica".to_owned(),
            });
        }
        let carrier = self.strategy().carrier(options);
        let flow = Flow::new(options, &self.held(), carrier);
        *self.flow.borrow_mut() = Some(flow);
        let mut end = End { replica: self, failure: Some(Reason::Panic) };
        let result = body(&Buckets { replica: self });
        end.failure = match &result {
            // All replicas have the same mismatch, and go on alike.
            Ok(_) | Err(Error::Mismatch { .. }) => None,
            Err(_) => Some(Reason::Failure),
        };
        if end.failure.is_none() {
            self.with_flow(|flow, held| flow.settle(held));
        }
        let parcels = self.with_flow(|flow, _| mem::take(&mut flow.parcels));
        drop(end);
        let value = result?;
        let mut errors = parcels.iter().filter_map(|parcel| parcel.lock().error.take());
        errors.next().map_or(Ok(value), Err)
    }
}

/// Ends an overlap when it is dropped: what is not on its way is given up, what is comes back.
struct End<'r> {
    replica: &'r ReplicaContext<'r>,
    /// Why the group ends with the overlap, if it does.
    failure: Option<Reason>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.replica.with_flow(|flow, held| {
            if let Some(reason) = self.failure {
                flow.aborter.abort(reason);
            }
            flow.open.clear();
            flow.finish(held);
        });
        if let Some(Flow { way: Way::Thread(carrier, _), .. }) = self.replica.flow.take() {
            self.replica.strategy().give_carrier_back(carrier);
        }
    }
}
