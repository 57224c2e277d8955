//! The queue of an overlap: leaves are collected in buckets, and a full bucket is all-reduced.

use crate::{
    Axes, CommunicationOptions, Communicator, Error, ReduceOp, Result,
    comm::{
        engine::AbortHandle,
        options::Configuration,
        progress::{CommThread, Lent},
    },
    handle::CommLease,
    replica::{nest_call::NestCall, verify::refuse_nan},
    value::nest::{Leaf, Value},
};
use consonance_kernels::group::Reason;
use consonance_spec::{DType, Kind};
use std::{
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// The buckets of one [`ReplicaContext::overlap`](crate::ReplicaContext::overlap).
pub(crate) struct Flow {
    /// The capacity of a bucket in bytes.
    limit: usize,
    configuration: Configuration,
    /// Whether replicas look for NaN before each bucket.
    verifies: bool,
    /// The buckets that are not full, at most one per operation and dtype, in the order of their
    /// last additions.
    open: Vec<Bucket>,
    /// All values that were passed.
    parcels: Vec<Arc<Parcel>>,
    progress: Arc<Mutex<Progress>>,
    way: Way,
    /// Aborts the group, even while its communicator is lent.
    aborter: AbortHandle,
}

/// The state of the finished buckets.
#[derive(Default)]
struct Progress {
    in_collectives: Duration,
    /// The error that stopped the queue, and that all later buckets fail with. Either the group was
    /// aborted, and a later call would report only the abort; or the replicas' buckets differ, and
    /// their numbers may differ, too.
    ended: Option<Error>,
    /// Whether a NaN ended the queue, on all replicas.
    found_nan: bool,
}

/// The call that queues a value, as errors name it.
pub(super) const CALL: &str = "Buckets::all_reduce";

const UNHARMED: &str = "nobody panics while noting progress";

/// The executor of the buckets that were sent.
enum Way {
    /// A thread. It borrows the communicator when the first bucket is sent.
    Thread(CommThread, Option<Lent>),
    /// The replica, when it waits.
    Later(Vec<Task>),
}

impl Flow {
    pub(super) fn new(options: CommunicationOptions, communicator: &Communicator, carrier: Option<CommThread>) -> Flow {
        let limit = match options.pack_limit() {
            // Packing saves steps, and a single replica has none to save.
            _ if communicator.size() == 1 => 1,
            0 => usize::MAX,
            bytes => bytes,
        };
        Flow {
            limit,
            configuration: options.configuration(),
            verifies: options.verifies(),
            open: Vec::new(),
            parcels: Vec::new(),
            progress: Arc::default(),
            way: carrier.map_or(Way::Later(Vec::new()), |carrier| Way::Thread(carrier, None)),
            aborter: communicator.abort_handle(),
        }
    }

    /// Puts the leaves into buckets, and sends full buckets. A leaf that fills a bucket gets its
    /// own.
    pub(super) fn take(&mut self, op: ReduceOp, leaves: Vec<Leaf>, held: &mut CommLease) -> Arc<Parcel> {
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

    /// Queues a bucket for its all-reduce, after earlier buckets.
    fn send(&mut self, bucket: Bucket, held: &mut CommLease) {
        let Flow { configuration, verifies, .. } = *self;
        let task = Task { bucket, configuration, verifies, progress: self.progress.clone() };
        match &mut self.way {
            Way::Thread(carrier, lent) => {
                let lent = lent.get_or_insert_with(|| carrier.lend(held.give_up()));
                lent.tasks.add(|communicator| task.carry_out(communicator));
            }
            Way::Later(tasks) => tasks.push(task),
        }
    }

    /// Sends the buckets that are not full.
    fn send_all(&mut self, held: &mut CommLease) {
        for bucket in mem::take(&mut self.open) {
            self.send(bucket, held);
        }
    }

    /// Ensures that a wait for sent buckets can end: without a thread, all-reduces them here.
    fn make_progress(&mut self, held: &mut CommLease) {
        if let Way::Later(tasks) = &mut self.way {
            mem::take(tasks).into_iter().for_each(|task| task.carry_out(held));
        }
    }

    /// Waits until all sent buckets are done and the communicator is back.
    fn finish(&mut self, held: &mut CommLease) {
        self.make_progress(held);
        if let Way::Thread(_, lent) = &mut self.way
            && let Some(lent) = lent.take()
        {
            held.put_back(lent.take_back());
        }
    }

    /// Returns the number of values that were passed so far.
    pub(super) fn handed_over(&self) -> usize {
        self.parcels.len()
    }

    /// Returns the total time in the collectives of the finished buckets.
    pub(super) fn in_collectives(&self) -> Duration {
        self.progress.lock().expect(UNHARMED).in_collectives
    }

    /// Returns whether a NaN ended the queue, on all replicas.
    pub(super) fn found_nan(&self) -> bool {
        self.progress.lock().expect(UNHARMED).found_nan
    }

    /// Ensures that a wait for `parcel` can end. If a bucket that is not full has a leaf of it,
    /// sends all buckets that are not full.
    pub(super) fn hasten(&mut self, parcel: &Arc<Parcel>, held: &mut CommLease) {
        if self.open.iter().any(|bucket| bucket.has_of(parcel)) {
            self.send_all(held);
        }
        self.make_progress(held);
    }

    /// Tells the other replicas, in place of the next bucket, why this one passes no more values,
    /// and aborts the group: the others go on in their closures and notice the error later.
    pub(super) fn refuse(&mut self, error: &Error, held: &mut CommLease) {
        self.finish(held);
        let ended = self.progress.lock().expect(UNHARMED).ended.is_some();
        if !ended {
            held.configure(self.configuration);
            let _ = held.refuse(Kind::AllReduce, error);
            self.progress.lock().expect(UNHARMED).ended = Some(error.clone());
        }
        self.aborter.abort(Reason::Failure);
    }

    /// Waits until all values that were passed are done.
    pub(crate) fn settle(&mut self, held: &mut CommLease) {
        self.send_all(held);
        self.finish(held);
    }

    /// Returns the first error of a value that was not waited for.
    pub(super) fn first_error(&mut self) -> Option<Error> {
        mem::take(&mut self.parcels).iter().find_map(|parcel| parcel.lock().error.take())
    }

    /// Ends the overlap: discards buckets that were not sent, and waits for those that were. A
    /// `failure` aborts the group first.
    pub(super) fn end(&mut self, failure: Option<Reason>, held: &mut CommLease) {
        if let Some(reason) = failure {
            self.aborter.abort(reason);
        }
        self.open.clear();
        self.finish(held);
    }

    /// Returns the thread of the overlap, if it had one.
    pub(super) fn into_carrier(self) -> Option<CommThread> {
        match self.way {
            Way::Thread(carrier, _) => Some(carrier),
            Way::Later(_) => None,
        }
    }
}

/// Leaves that are all-reduced together: of one operation and dtype, or one
/// [`IndexedSlices`](crate::IndexedSlices).
struct Bucket {
    op: ReduceOp,
    /// `None` for sparse rows.
    dtype: Option<DType>,
    /// The free space in bytes.
    free: usize,
    leaves: Vec<Leaf>,
    /// One promise per leaf.
    promises: Vec<Promise>,
}

impl Bucket {
    fn new(op: ReduceOp, dtype: Option<DType>, limit: usize) -> Bucket {
        Bucket { op, dtype, free: limit, leaves: Vec::new(), promises: Vec::new() }
    }

    /// Returns whether it has a leaf of this parcel.
    fn has_of(&self, parcel: &Arc<Parcel>) -> bool {
        self.promises.iter().any(|promise| Arc::ptr_eq(&promise.parcel, parcel))
    }
}

/// A bucket that was sent.
pub(crate) struct Task {
    bucket: Bucket,
    configuration: Configuration,
    verifies: bool,
    progress: Arc<Mutex<Progress>>,
}

impl Task {
    pub(crate) fn carry_out(self, communicator: &mut Communicator) {
        let Task { bucket: Bucket { op, mut leaves, promises, .. }, configuration, verifies, progress } = self;
        let ended = progress.lock().expect(UNHARMED).ended.clone();
        let start = Instant::now();
        let mut found_nan = false;
        let result = ended.map_or_else(
            || {
                communicator.configure(configuration);
                if verifies {
                    let refused = refuse_nan(CALL, communicator, Kind::AllReduce, &leaves);
                    found_nan = matches!(refused, Err(Error::InvalidCall { .. }));
                    refused?;
                }
                let mut session = NestCall::new(Kind::AllReduce, communicator, &leaves, Axes::default());
                session.all_reduce_leaves(op, &mut leaves, 0)
            },
            Err,
        );
        let mut progress = progress.lock().expect(UNHARMED);
        progress.in_collectives += start.elapsed();
        progress.found_nan |= found_nan;
        if let Err(error) = &result {
            progress.ended = Some(error.clone());
        }
        drop(progress);
        match result {
            Ok(()) => promises.into_iter().zip(leaves).for_each(|(promise, leaf)| promise.keep(Ok(leaf))),
            Err(error) => promises.into_iter().for_each(|promise| promise.keep(Err(error.clone()))),
        }
    }
}

/// The leaves of one value. It is complete when every leaf is back.
pub(super) struct Parcel {
    state: Mutex<Contents>,
    complete: Condvar,
}

struct Contents {
    /// The leaves that are back.
    leaves: Vec<Option<Leaf>>,
    missing: usize,
    /// The error of the first leaf that failed, until it is taken.
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

    /// Waits until all leaves are back, and returns them.
    pub(super) fn wait(&self) -> Result<Vec<Leaf>> {
        let waited = self.complete.wait_while(self.lock(), |contents| contents.missing > 0);
        let mut contents = waited.expect("nobody panics holding a parcel");
        match contents.error.take() {
            Some(error) => Err(error),
            None => Ok(contents.leaves.drain(..).map(|leaf| leaf.expect("none is missing")).collect()),
        }
    }
}

/// The duty to return a leaf. It is dropped unkept only if the closure fails or panics; then the
/// waiter gets an error.
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
