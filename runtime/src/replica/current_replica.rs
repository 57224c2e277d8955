//! The replica that a thread runs, for code that has no reference to its context.

use crate::{Communicator, Error, ReplicaContext, Result, execution::context};
use std::{
    cell::{Cell, Ref, RefCell},
    fmt,
    rc::Rc,
};

thread_local! {
    static STACK: RefCell<Stack> = const { RefCell::new(Stack { places: Vec::new(), running: 0 }) };
}

/// The replicas that a thread runs: several, if a merge function runs a strategy.
struct Stack {
    /// Kept between runs, so that a run allocates nothing here.
    places: Vec<Rc<ContextSlot>>,
    /// The places in use, from the first.
    running: usize,
}

/// A place for the context of a replica that the thread runs.
#[derive(Default)]
struct ContextSlot {
    context: RefCell<Option<ReplicaContext<'static>>>,
    /// The functions that ran here.
    runs: Cell<u64>,
}

/// Returns a handle of the replica whose function this thread runs. Returns `None` elsewhere: on
/// other threads, in a merge function, outside [`run`](crate::Strategy::run).
///
/// ```
/// use consonance::{MirroredStrategy, ReduceOp, Result, current_replica};
/// // A function that is called from many places, and has no argument for the context.
/// fn mean_over_replicas(loss: f32) -> Result<f32> {
///     match current_replica() {
///         Some(replica) => replica.with(|context| context.all_reduce(ReduceOp::Mean, loss)),
///         None => Ok(loss),
///     }
/// }
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let means = strategy.run(|replica| mean_over_replicas(replica.replica_id_in_sync_group() as f32))?;
/// assert_eq!(means.values(), [0.5, 0.5]);
/// assert_eq!(mean_over_replicas(3.0)?, 3.0);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn current_replica() -> Option<ReplicaHandle> {
    context::replica()?;
    STACK.with_borrow(|stack| stack.places[..stack.running].last().map(ReplicaHandle::of))
}

/// A handle of a replica that may be kept anywhere on the replica's thread, and outlive its
/// function. [`current_replica`] returns it.
///
/// ```
/// use consonance::{MirroredStrategy, ReplicaHandle, current_replica};
/// use std::cell::RefCell;
/// thread_local!(static KEPT: RefCell<Option<ReplicaHandle>> = RefCell::default());
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// strategy.run(|_| Ok(KEPT.set(current_replica())))?;
/// // The first replica runs on this thread.
/// let replica = KEPT.take().expect("kept above");
/// assert_eq!((replica.replica_id(), replica.num_replicas()), (0, 2));
/// let error = replica.with(|context| context.barrier()).unwrap_err();
/// assert!(error.to_string().contains("the function of replica 0 has ended"));
/// # Ok::<(), consonance::Error>(())
/// ```
///
/// It is of one thread:
///
/// ```compile_fail,E0277
/// let replica = consonance::current_replica();
/// std::thread::spawn(move || drop(replica));
/// ```
#[derive(Clone)]
pub struct ReplicaHandle {
    place: Rc<ContextSlot>,
    /// The function of the replica, among those that ran at the place.
    run: u64,
    id: usize,
    replicas: usize,
}

impl ReplicaHandle {
    /// Returns the handle of the replica that runs at a place.
    fn of(place: &Rc<ContextSlot>) -> ReplicaHandle {
        let context = place.context();
        let (id, replicas) = (context.replica_id_in_sync_group(), context.num_replicas_in_sync());
        ReplicaHandle { place: place.clone(), run: place.runs.get(), id, replicas }
    }

    /// Returns the id of the replica, from 0 to [`num_replicas`](ReplicaHandle::num_replicas)
    /// (exclusive).
    pub fn replica_id(&self) -> usize {
        self.id
    }

    /// Returns the number of replicas in all processes.
    pub fn num_replicas(&self) -> usize {
        self.replicas
    }

    /// Calls `work` with the context of the replica.
    ///
    /// # Errors
    /// The error of `work`, unchanged. [`Error::WrongContext`] if the replica's function has ended:
    /// `work` does not run. In a merge function the calls of the context return that error.
    pub fn with<R>(&self, work: impl FnOnce(&ReplicaContext<'_>) -> Result<R>) -> Result<R> {
        match &*self.place.context.borrow() {
            Some(context) if self.place.runs.get() == self.run => work(context),
            _ => Err(Error::WrongContext {
                call: "ReplicaHandle::with",
                problem: format!("the function of replica {} has ended", self.id),
            }),
        }
    }
}

impl fmt::Debug for ReplicaHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaHandle(replica {} of {})", self.id, self.replicas)
    }
}

impl ContextSlot {
    fn context(&self) -> Ref<'_, ReplicaContext<'static>> {
        Ref::map(self.context.borrow(), |context| context.as_ref().expect("there while the function runs"))
    }
}

/// A replica whose function this thread runs. Its handles have no context any more when it is
/// dropped.
pub(crate) struct Running(Rc<ContextSlot>);

impl Running {
    pub(crate) fn new(context: ReplicaContext<'static>) -> Running {
        let place = STACK.with_borrow_mut(|stack| {
            if stack.running == stack.places.len() {
                stack.places.push(Rc::default());
            }
            stack.running += 1;
            stack.places[stack.running - 1].clone()
        });
        place.runs.set(place.runs.get() + 1);
        place.context.replace(Some(context));
        Running(place)
    }

    pub(crate) fn context(&self) -> Ref<'_, ReplicaContext<'static>> {
        self.0.context()
    }

    /// Ends the replica. Returns its communicator, if that was made for runs of this process only.
    pub(crate) fn end(self) -> Option<Communicator> {
        self.take().and_then(ReplicaContext::into_communicator)
    }

    /// Takes the context. Nobody borrows it: `with` ends within the function.
    fn take(&self) -> Option<ReplicaContext<'static>> {
        self.0.context.try_borrow_mut().ok().and_then(|mut context| context.take())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        STACK.with_borrow_mut(|stack| stack.running -= 1);
        drop(self.take());
    }
}
