//! The queue of an overlap: leaves are collected in buckets, and a full bucket is all-reduced.

use crate::{
    Axes, CommunicationOptions, Communicator, Error, ReduceOp, Result,
    comm::{
        engine::AbortHandle,
        kept_thread::KeptThread,
        options::Configuration,
        promise::{Promise, Promised, Unheard, promise},
    },
    execution::CommLease,
    replica::{
        earlier_contributions::{Earlier, Run, all_reduce_last},
        nest_call::NestCall,
        verification::{has_nan, refuse_nan},
    },
    value::{
        contract::Contract,
        nest::{Leaf, Value},
    },
};
use consonance_kernels::group::Reason;
use consonance_spec::{DType, Kind, static_shapes::REDUCED_SHAPE};
use std::{
    iter, mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The buckets of one [`ReplicaContext::overlap`](crate::ReplicaContext::overlap).
pub(crate) struct Flow {
    /// The capacity of a bucket in bytes.
    limit: usize,
    configuration: Configuration,
    /// Whether replicas look for NaN before each bucket.
    verifies: bool,
    contract: Option<Contract>,
    /// The contributions of this replica, if each value is the last of several.
    run: Option<Run>,
    /// The buckets that are not full, at most one per operation and dtype, in the order of their
    /// last additions.
    open: Vec<Bucket>,
    /// The number of values that were passed.
    values: usize,
    /// The leaves of all of them.
    leaves: Vec<Arc<dyn Unheard>>,
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
    Thread(KeptThread, Option<Arc<Mutex<Communicator>>>),
    /// The replica, when it waits.
    Later(Vec<Task>),
}

impl Flow {
    pub(super) fn new(
        options: CommunicationOptions,
        contract: Option<Contract>,
        run: Option<Run>,
        communicator: &Communicator,
        thread: Option<KeptThread>,
    ) -> Flow {
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
            contract,
            run,
            open: Vec::new(),
            values: 0,
            leaves: Vec::new(),
            progress: Arc::default(),
            way: thread.map_or(Way::Later(Vec::new()), |thread| Way::Thread(thread, None)),
            aborter: communicator.abort_handle(),
        }
    }

    /// Puts the leaves into buckets, and sends full buckets. A leaf that fills a bucket gets its
    /// own. `earlier` has the contributions before those leaves, if there are any.
    pub(super) fn take(
        &mut self,
        op: ReduceOp,
        leaves: Vec<Leaf>,
        earlier: impl Iterator<Item = Earlier>,
        held: &mut CommLease,
    ) -> Passed {
        let mut passed = Passed { value: self.values, leaves: Vec::with_capacity(leaves.len()) };
        self.values += 1;
        for (leaf, earlier) in leaves.into_iter().zip(earlier.chain(iter::repeat_with(Earlier::default))) {
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
            let (promise, promised) = promise();
            self.leaves.push(promised.unheard());
            passed.leaves.push(promised);
            bucket.leaves.push(leaf);
            bucket.earlier.push(earlier);
            bucket.promises.push((passed.value, promise));
            if bucket.free == 0 {
                self.send(bucket, held);
            } else {
                self.open.push(bucket);
            }
        }
        passed
    }

    /// Queues a bucket for its all-reduce, after earlier buckets.
    fn send(&mut self, bucket: Bucket, held: &mut CommLease) {
        let Flow { configuration, verifies, .. } = *self;
        let (contract, run, progress) = (self.contract.clone(), self.run.clone(), self.progress.clone());
        let task = Task { bucket, configuration, verifies, contract, run, progress };
        match &mut self.way {
            Way::Thread(thread, lent) => {
                let lent = lent.get_or_insert_with(|| Arc::new(Mutex::new(held.give_up()))).clone();
                thread.run(move || task.carry_out(&mut lent.lock().unwrap_or_else(PoisonError::into_inner)));
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
        if let Way::Thread(thread, lent) = &mut self.way
            && let Some(lent) = lent.take()
        {
            let (promise, communicator) = promise();
            thread.run(move || {
                let lent = Arc::into_inner(lent).expect("the tasks before are done").into_inner();
                promise.keep(Ok(lent.unwrap_or_else(PoisonError::into_inner)));
            });
            held.put_back(communicator.take().expect("the thread gives back what was lent"));
        }
    }

    /// Returns the number of values that were passed so far.
    pub(super) fn handed_over(&self) -> usize {
        self.values
    }

    /// Returns the total time in the collectives of the finished buckets.
    pub(super) fn in_collectives(&self) -> Duration {
        self.progress.lock().expect(UNHARMED).in_collectives
    }

    /// Returns whether a NaN ended the queue, on all replicas.
    pub(super) fn found_nan(&self) -> bool {
        self.progress.lock().expect(UNHARMED).found_nan
    }

    /// Ensures that a wait for a value can end. If a bucket that is not full has a leaf of it,
    /// sends all buckets that are not full.
    pub(super) fn hasten(&mut self, value: usize, held: &mut CommLease) {
        if self.open.iter().any(|bucket| bucket.promises.iter().any(|&(of, _)| of == value)) {
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
        mem::take(&mut self.leaves).iter().find_map(|leaf| leaf.error())
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
    pub(super) fn into_thread(self) -> Option<KeptThread> {
        match self.way {
            Way::Thread(thread, _) => Some(thread),
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
    /// For each leaf the contributions before it.
    earlier: Vec<Earlier>,
    /// For each leaf the number of its value, and the promise of its result and of the room for
    /// contributions before it.
    promises: Vec<(usize, Promise<(Leaf, Earlier)>)>,
}

impl Bucket {
    fn new(op: ReduceOp, dtype: Option<DType>, limit: usize) -> Bucket {
        Bucket { op, dtype, free: limit, leaves: Vec::new(), earlier: Vec::new(), promises: Vec::new() }
    }
}

/// A bucket that was sent.
pub(crate) struct Task {
    bucket: Bucket,
    configuration: Configuration,
    verifies: bool,
    contract: Option<Contract>,
    run: Option<Run>,
    progress: Arc<Mutex<Progress>>,
}

impl Task {
    pub(crate) fn carry_out(self, communicator: &mut Communicator) {
        let Task { bucket, configuration, verifies, contract, run, progress } = self;
        let Bucket { op, mut leaves, mut earlier, promises, .. } = bucket;
        let ended = progress.lock().expect(UNHARMED).ended.clone();
        let start = Instant::now();
        let mut found_nan = false;
        let reduce = |communicator: &mut Communicator| {
            communicator.configure(configuration);
            if verifies {
                let own = leaves.iter().zip(&earlier).position(|(leaf, earlier)| earlier.has_nan() || has_nan(leaf));
                let refused = refuse_nan(CALL, communicator, Kind::AllReduce, &leaves, own);
                found_nan = matches!(refused, Err(Error::InvalidCall { .. }));
                refused?;
            }
            let mut call = NestCall::new(Kind::AllReduce, communicator, &leaves, Axes::default(), contract.clone());
            let reduced = match &run {
                None => call.all_reduce_leaves(op, &mut leaves, 0),
                Some(run) => {
                    let call = call.with_contributions(run.of, None);
                    all_reduce_last(CALL, run, call, &mut leaves, &mut earlier)
                }
            };
            match &contract {
                None => reduced,
                Some(contract) => reduced.map_err(|error| contract.by_rule(REDUCED_SHAPE, error)),
            }
        };
        let result = ended.map_or_else(|| communicator.complete(reduce), Err);
        let mut progress = progress.lock().expect(UNHARMED);
        progress.in_collectives += start.elapsed();
        progress.found_nan |= found_nan;
        if let Err(error) = &result {
            progress.ended = Some(error.clone());
        }
        drop(progress);
        for ((_, promise), kept) in promises.into_iter().zip(leaves.into_iter().zip(earlier)) {
            promise.keep(result.clone().map(|()| kept));
        }
    }
}

/// A value that was passed.
pub(super) struct Passed {
    /// Its number.
    pub(super) value: usize,
    leaves: Vec<Promised<(Leaf, Earlier)>>,
}

impl Passed {
    /// Waits until all leaves are back, and returns them with the room for contributions before
    /// them.
    pub(super) fn wait(&self) -> Result<Vec<(Leaf, Earlier)>> {
        // All are taken: the overlap returns an error that is left.
        let leaves: Vec<_> = self.leaves.iter().map(Promised::take).collect();
        leaves.into_iter().collect()
    }
}
