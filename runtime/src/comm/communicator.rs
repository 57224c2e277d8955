//! The raw layer: collectives on slices, for backends of frameworks and numeric code.

use crate::{
    CommunicationOptions, Device, Error, Implementation, Mailbox, Result,
    comm::{
        agreement::Agreement,
        call::Call,
        engine::{self, AbortHandle, Engine, Host, Lowered, Service},
        options::{self, Configuration},
        shared_memory::SharedMemory,
    },
    profile,
};
use consonance_kernels::{
    group::{Endpoint, KeepWaiting, Reason, plan::Topology},
    memory::{HostMemory, Memory, Space},
};
use consonance_spec::{DType, Element, Kind, Signature, World};
use std::{fmt, ops::Range, sync::Arc, time::Duration};

/// One rank of a group, with MPI's collectives on slices.
///
/// Every rank makes the same calls in the same order. If a rank differs, all ranks fail with an
/// error that names it. The result of a reduction has the same bits on every rank, for every size,
/// position and [`Implementation`].
///
/// Methods without a suffix work in place; `_into` reads one slice and writes another; `_v` takes a
/// count for each rank. Blocking calls on slices allocate only in the first call of a size. In
/// errors, "replica" means a rank.
///
/// A call with invalid arguments still takes part, so that all other ranks fail at once with an
/// error that names this one. It blocks like any call.
///
/// ```
/// use consonance::{Communicator, ReduceOp};
/// let ranks = Communicator::threads(3);
/// let sums = std::thread::scope(|scope| {
///     let threads: Vec<_> = ranks
///         .into_iter()
///         .map(|mut communicator| {
///             scope.spawn(move || {
///                 let mut data = [communicator.rank() as f32, 1.0];
///                 communicator.all_reduce(ReduceOp::Sum, &mut data).map(|()| data)
///             })
///         })
///         .collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(sums, [[3.0, 3.0]; 3]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct Communicator {
    pub(super) engine: Box<dyn Engine>,
    pub(super) configuration: Configuration,
    /// Whether calls are recorded for a profile.
    pub(super) profiled: bool,
    /// The timeout of groups that are split off.
    pub(super) part_timeout: Duration,
    /// The function that is asked while a call waits.
    pub(super) asks: Option<KeepWaiting>,
    /// The error of an earlier call, which the next call returns.
    pub(super) late: Option<Error>,
    /// Whether the error of an earlier call is told after the calls that follow.
    pub(super) defers: bool,
    /// Whether some ranks are on the host and others on GPUs.
    pub(crate) mixed: bool,
    /// The stream that orders calls on memory of a device.
    pub(super) order: Option<Box<super::on_devices::Order>>,
}

impl Communicator {
    /// Makes a new group of `size` threads of this process and returns its communicators in rank
    /// order. Move each to a thread of its own.
    ///
    /// A rank leaves the group when its communicator is dropped: a peer that waits for it gets
    /// [`Error::Left`]. If `size` is 0 the list is empty.
    ///
    /// # Panics
    /// If the environment variable `CONSONANCE_TUNING` names a file that is malformed or cannot be
    /// read.
    pub fn threads(size: usize) -> Vec<Communicator> {
        let devices: Vec<Device> = (0..size).map(Device::Cpu).collect();
        let engines = engine::local("threads", &devices, CommunicationOptions::new().configuration());
        engines.unwrap_or_else(|error| panic!("{error}")).into_iter().map(Communicator::from_engine).collect()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn in_processes(
        endpoint: Endpoint,
        configuration: Configuration,
        processes: Arc<dyn crate::comm::report::Processes>,
    ) -> Communicator {
        Communicator::over(Box::new(Host::new(endpoint, configuration, Some(processes))), configuration)
    }

    /// Makes a communicator over `engine`, with the default options.
    ///
    /// ```
    /// # use consonance::{Communicator, raw::Engine};
    /// fn over(engines: Vec<Box<dyn Engine>>) -> Vec<Communicator> {
    ///     engines.into_iter().map(Communicator::from_engine).collect()
    /// }
    /// ```
    pub fn from_engine(engine: Box<dyn Engine>) -> Communicator {
        Communicator::on(engine, CommunicationOptions::new().configuration())
    }

    /// [`from_engine`](Communicator::from_engine) with this configuration.
    pub(crate) fn on(engine: Box<dyn Engine>, configuration: Configuration) -> Communicator {
        let mut engine = match engine.service() {
            Service::Calls => engine,
            Service::Messages | Service::Letters => Box::new(Lowered::new(engine)),
        };
        engine.configure(&configuration);
        Communicator::over(engine, configuration)
    }

    fn over(engine: Box<dyn Engine>, configuration: Configuration) -> Communicator {
        let (part_timeout, profiled) = (configuration.timeout, profile::is_on());
        let (asks, late, defers, mixed, order) = (None, None, false, false, None);
        Communicator { engine, configuration, profiled, part_timeout, asks, late, defers, mixed, order }
    }

    /// Returns this rank, counted from 0.
    pub fn rank(&self) -> usize {
        self.world().rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.world().size()
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.engine.world()
    }

    /// Sets the timeout of a call: the limit on the total time for which it waits for its peers. It
    /// must be more than zero and at most a day. The default is 5 minutes.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for any other timeout.
    ///
    /// ```
    /// # use consonance::{Communicator, Error};
    /// use std::time::Duration;
    /// let mut ranks = Communicator::threads(2);
    /// // Rank 1 makes no call.
    /// ranks[0].set_timeout(Duration::from_millis(20))?;
    /// assert!(matches!(ranks[0].barrier(), Err(Error::Timeout { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        let timeout = options::check_timeout("Communicator::set_timeout", timeout)?;
        self.configure(Configuration { timeout, ..self.configuration });
        Ok(())
    }

    /// Sets the timeout of the next calls, which was checked, but not that of groups that are split
    /// off.
    pub(crate) fn limit(&mut self, timeout: Duration) {
        self.apply(Configuration { timeout, ..self.configuration });
    }

    /// Returns the timeout of a call.
    pub fn timeout(&self) -> Duration {
        self.configuration.timeout
    }

    /// Asks `ask` about every 100 ms while a call of this rank waits for its peers, also in groups
    /// that are [split](Communicator::split) from this one later. If it returns false, the group is
    /// aborted: for a program that a user may interrupt. A thread that waits for its turn in a
    /// [`Queue`](crate::Queue) asks, too. An engine outside this crate may not ask.
    ///
    /// ```
    /// # use consonance::{Communicator, Error};
    /// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// static IS_WANTED: AtomicBool = AtomicBool::new(true);
    /// let mut ranks = Communicator::threads(2);
    /// ranks[0].keep_waiting(Arc::new(|| IS_WANTED.load(Ordering::Relaxed)));
    /// IS_WANTED.store(false, Ordering::Relaxed);
    /// // Rank 1 makes no call.
    /// assert!(matches!(ranks[0].barrier(), Err(Error::Aborted { replica: 0, .. })));
    /// ```
    pub fn keep_waiting(&mut self, ask: KeepWaiting) {
        self.engine.keep_waiting(ask.clone());
        self.asks = Some(ask);
    }

    /// Sets the algorithm of all-reduces. If ranks set different ones, an all-reduce fails with a
    /// mismatch.
    pub fn set_implementation(&mut self, implementation: Implementation) {
        self.apply(Configuration { implementation, ..self.configuration });
    }

    pub(crate) fn configure(&mut self, configuration: Configuration) {
        self.part_timeout = configuration.timeout;
        self.apply(configuration);
    }

    fn apply(&mut self, configuration: Configuration) {
        if configuration != self.configuration {
            self.configuration = configuration;
            self.engine.configure(&configuration);
        }
    }

    /// Allocates `count` zero elements in memory that every rank of this group can read and write
    /// in place. Collectives of processes need not stage such data. For ranks that are threads, any
    /// memory is like this. For processes, allocations of 2 MiB and more use huge pages if the
    /// system (Linux 6.1 and later) has some; the allocation takes longer then (measured: PERF.md).
    ///
    /// The memory outlives the group, but collectives of another group stage it again. A child made
    /// by `fork` does not inherit it. A core dump omits the memory of processes.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no memory.
    ///
    /// ```
    /// use consonance::{Communicator, ReduceOp};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut gradients = alone.alloc::<f32>(1000)?;
    /// gradients.fill(0.5);
    /// alone.all_reduce(ReduceOp::Sum, &mut gradients)?;
    /// assert_eq!(gradients[999], 0.5);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn alloc<T: Element>(&self, count: usize) -> Result<SharedMemory<T>> {
        match self.engine.alloc(Space::Host, T::DTYPE, count)? {
            Memory::Host(memory) => Ok(SharedMemory::new(memory)),
            Memory::Device(memory) => {
                let expected = "memory of the host from it";
                Err(Error::invalid("Communicator::alloc", "engine", expected, format!("{memory:?}")))
            }
        }
    }

    /// Allocates `count` elements of unspecified values in `space`, for a result.
    pub(crate) fn room(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        match space {
            Space::Host => {
                Ok(HostMemory::try_unspecified(dtype, count).map_err(Error::no_memory(dtype, count))?.into())
            }
            Space::Cuda(_) => self.engine.alloc(space, dtype, count),
        }
    }

    /// Returns the inputs of protocol selection, for `consonance explain`: for the pair of this
    /// rank and `peer` once they have communicated, else for the group. `None` if the ranks do not
    /// share memory.
    #[doc(hidden)]
    pub fn topology(&self, peer: Option<usize>) -> Option<Topology> {
        self.engine.explain(peer).topology
    }

    /// Aborts the group without waiting: every rank that waits in it, or makes a later call in it,
    /// gets [`Error::Aborted`].
    pub fn abort(&self) {
        self.engine.abort_handle().abort(Reason::Failure);
    }

    /// Returns a handle that aborts this group from any thread and reports whether it was aborted.
    ///
    /// ```
    /// use consonance::{Communicator, Error, raw::Reason};
    /// let mut ranks = Communicator::threads(2);
    /// let handle = ranks[1].abort_handle();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || handle.abort(Reason::Failure));
    ///     // Rank 1 makes no call: without the other thread this would wait until its deadline.
    ///     assert!(matches!(ranks[0].barrier(), Err(Error::Aborted { replica: 1, .. })));
    /// });
    /// assert!(ranks[0].abort_handle().is_aborted());
    /// ```
    pub fn abort_handle(&self) -> AbortHandle {
        self.engine.abort_handle()
    }

    /// Returns the mailbox of this rank, for messages with tags between any two ranks. Each rank
    /// makes the call when it needs it; no rank waits. The mailbox works as long as the
    /// communicator exists, in one generation of the group: see [`abort`](Communicator::abort). All
    /// mailboxes of a communicator are the same.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier); [`Error::WrongContext`] if the
    /// [engine](crate::raw::Engine) has no mailbox.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut ranks = Communicator::threads(2);
    /// let [first, second] = [ranks[0].mailbox()?, ranks[1].mailbox()?];
    /// first.send([3u8].as_slice(), 1, 0, None)?;
    /// let mut data = [0u8];
    /// second.recv(data.as_mut_slice(), Some(0), 0, None)?;
    /// assert_eq!(data, [3]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn mailbox(&mut self) -> Result<Mailbox> {
        self.engine.mailbox()
    }

    /// After an abort, waits until all ranks are ready, then renews the group. Otherwise does
    /// nothing. For strategies, and for tests of engines.
    ///
    /// # Errors
    /// See [`Engine::renew`].
    #[doc(hidden)]
    pub fn renew(&mut self) -> Result<()> {
        if self.engine.abort_handle().is_aborted() {
            // The end has been told instead.
            self.late = None;
        }
        self.engine.renew()
    }

    /// Lets the next [`reform`](Self::reform) go on without a majority.
    pub(crate) fn waive_majority(&mut self) {
        self.engine.waive_majority();
    }

    /// After a loss, forms the group of the ranks that are left, in their order. Each of them makes
    /// this call. Repeat it if it returns a loss.
    ///
    /// # Errors
    /// See [`Engine::reform`].
    #[doc(hidden)]
    pub fn reform(&mut self) -> Result<()> {
        // The loss has been told instead.
        self.late = None;
        self.engine.reform()
    }

    /// Ends this rank's part in a run. Returns the communicator if it can
    /// [begin](Communicator::begin_run) another run.
    pub(crate) fn end_run(mut self) -> Option<Communicator> {
        self.engine.end_run().then_some(self)
    }

    /// Begins another run. `ranks` are all ranks of the group, and each has ended its last run.
    /// Returns false if the group cannot go on.
    pub(crate) fn begin_run(ranks: &mut [Communicator]) -> bool {
        ranks.iter_mut().all(|rank| rank.engine.begin_run())
    }

    /// Marks this rank idle or active: see [`Engine::set_idle`].
    pub(crate) fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.engine.set_idle(company, idle);
    }

    /// Splits the group like `MPI_Comm_split`: returns a communicator of the ranks with the same
    /// `color`, ordered by `key` and then by rank. `None` for a rank without a color. Every rank of
    /// this group makes the call.
    ///
    /// An [`abort`](Communicator::abort) of this group aborts the new one, too. Dropping a
    /// communicator of this group does not. In errors of the new group, "replica" means its rank
    /// there. The rank that aborted this group is named by its rank in this group, and
    /// [`Error::Aborted`] says so.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier).
    ///
    /// ```
    /// # use consonance::{Communicator, ReduceOp};
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(4) {
    ///         scope.spawn(move || {
    ///             let mut pair = rank.split(Some(rank.rank() as u32 / 2), 0).unwrap().expect("a color was given");
    ///             let mut sum = [rank.rank()].map(|rank| rank as u64);
    ///             pair.all_reduce(ReduceOp::Sum, &mut sum).unwrap();
    ///             assert_eq!(sum, if rank.rank() < 2 { [0 + 1] } else { [2 + 3] });
    ///         });
    ///     }
    /// });
    /// ```
    pub fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let signature = Signature { dtype: Some(DType::I64), ..Signature::new(Kind::Split) };
        let own = [color.map_or(-1, i64::from), key.into()];
        let mut all = vec![[0i64; 2]; self.size()];
        let recv = all.as_flattened_mut().into();
        let told = Call::AllGather { send: Some(own.as_slice().into()), recv, counts: None };
        self.step(told, &signature, &Agreement::NONE)?;
        let mut members: Vec<usize> = (0..self.size()).filter(|&rank| all[rank][0] == own[0]).collect();
        members.sort_by_key(|&rank| all[rank][1]);
        if color.is_none() {
            members.clear();
        }
        let part = self.engine.subgroup(&members);
        let engine = part.map_err(|failure| self.settle(failure, &signature, &Agreement::NONE))?;
        let Some(engine) = engine else { return self.hear(Ok(())).map(|()| None) };
        let mut part = Communicator::on(engine, Configuration { timeout: self.part_timeout, ..self.configuration });
        part.asks = self.asks.clone();
        part.mixed = self.mixed;
        // An error instead of the new group would end that for all its ranks.
        part.late = self.late.take().or_else(|| self.engine.late_error());
        Ok(Some(part))
    }

    pub(crate) fn call(&mut self, call: Call<'_>) -> Result<()> {
        self.execute(call, &Agreement::NONE)
    }

    /// Executes a call whose buffers carry their element type as a value. The ranks compare the
    /// call and `agreement` before any data moves. All methods with typed slices call this one.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for arguments that are invalid whatever the other ranks call;
    /// otherwise as [`barrier`](Communicator::barrier).
    ///
    /// ```
    /// use consonance::{Communicator, ReduceOp, raw::{Agreement, Call}};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut data = [1.5f32, 2.5];
    /// let call = Call::AllReduce { op: ReduceOp::Sum, send: None, recv: data.as_mut_slice().into() };
    /// alone.execute(call, &Agreement::NONE)?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn execute(&mut self, call: Call<'_>, agreement: &Agreement<'_>) -> Result<()> {
        let done = self.make(call, agreement);
        match done {
            // This rank's own fault comes first.
            Err(Error::InvalidCall { .. }) => done,
            done => self.hear(done),
        }
    }

    /// Makes several calls as one. If this rank hears only now of a mismatch in an earlier call,
    /// the error comes after all of them, since the other ranks make them all.
    ///
    /// # Errors
    /// That of an earlier call, or of `calls`.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// alone.as_one(|rank| rank.barrier().and_then(|()| rank.barrier()))?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn as_one(&mut self, calls: impl FnOnce(&mut Communicator) -> Result<()>) -> Result<()> {
        let before = std::mem::replace(&mut self.defers, true);
        let done = calls(self);
        self.defers = before;
        self.hear(done)
    }

    /// Executes a call. Its error may be preceded by one of an [earlier](Communicator::hear) call.
    #[inline]
    fn make(&mut self, call: Call<'_>, agreement: &Agreement<'_>) -> Result<()> {
        let mut signature = Signature::new(call.kind());
        let signed = match call.outside(|space| self.engine.reaches(space)) {
            None => self.check_on_device(&call).and_then(|()| call.sign(self.world(), &mut signature)),
            Some((argument, space)) => Err(self.out_of_reach(call.kind(), argument, space)),
        };
        if let Err(error) = signed {
            // A send or a receive is compared with its peer alone: no other rank waits for this
            // call.
            if !matches!(call, Call::Send { .. } | Call::Recv { .. }) {
                let _ = self.refuse(call.kind(), &error);
            }
            return Err(error);
        }
        agreement.sign(&mut signature);
        self.step(call, &signature, agreement)
    }

    #[cold]
    fn out_of_reach(&self, kind: Kind, argument: &str, space: Space) -> Error {
        let expected = "memory that this communicator's engine reaches";
        Error::invalid(kind.name(), argument, expected, format!("memory of {space}")).of_replica(self.rank())
    }

    /// Returns the error of an earlier call, if this rank was not told of it yet. The last call has
    /// been made all the same, so that the ranks stay in step; a mismatch in it is told next.
    #[inline]
    pub(super) fn hear(&mut self, done: Result<()>) -> Result<()> {
        if self.defers {
            return done;
        }
        // Taken only if it is there: an error is large to move.
        let late = if self.late.is_some() { self.late.take() } else { self.engine.late_error() };
        match late {
            Some(late) => self.report_late(late, done),
            None => done,
        }
    }

    /// Executes a barrier of a kind of the strategy's own.
    pub(crate) fn meet(&mut self, kind: Kind, agreement: &Agreement<'_>) -> Result<()> {
        let mut signature = crate::kind::signature(kind);
        agreement.sign(&mut signature);
        let done = self.step(Call::Barrier, &signature, agreement);
        self.hear(done)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.size())
    }
}
