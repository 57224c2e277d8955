//! The raw layer: collectives on slices, for backends of frameworks and numeric code.

use crate::{
    CommunicationOptions, Error, Implementation, Result,
    comm::{
        agreement::Agreement,
        call::Call,
        engine::{AbortHandle, Engine, Host, Lowered, Service},
        options::{self, Configuration},
        shared_memory::SharedMemory,
    },
};
use consonance_kernels::{
    group::{Endpoint, Reason, plan::Topology},
    memory::Space,
};
use consonance_spec::{DType, Element, Kind, Signature, World};
use std::{any::Any, ops::Range, sync::Arc, time::Duration};

/// One rank of a group, with MPI's collectives on slices.
///
/// Every rank makes the same calls in the same order; a rank that does not is named in the error of
/// all. The result of a reduction has the same bits on every rank, for every size, position and
/// [`Implementation`].
///
/// Names without a suffix work in place; `_into` reads one slice and writes another; `_v` takes a
/// count for each rank. Blocking calls on slices allocate nothing after the first of their size. In
/// errors, a replica is a rank.
///
/// A call that cannot be right is made all the same, so that the others are told at once: it waits
/// for them as any call does.
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
}

impl Communicator {
    /// The communicators of a new group of `size` threads of this process, in rank order: give each
    /// to a thread of its own.
    ///
    /// A rank that is dropped has left the group: who waits for it gets
    /// [`Error::Left`]. A group of 0 is empty.
    pub fn threads(size: usize) -> Vec<Communicator> {
        Communicator::group(size, CommunicationOptions::new().configuration())
    }

    /// [`threads`](Communicator::threads) whose calls are carried out so.
    pub(crate) fn group(size: usize, configuration: Configuration) -> Vec<Communicator> {
        let on_seat = |endpoint| Box::new(Host::new(endpoint, configuration, None));
        let seats = Endpoint::group(size, configuration.timeout).into_iter();
        seats.map(|endpoint| Communicator { engine: on_seat(endpoint), configuration }).collect()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn in_processes(
        endpoint: Endpoint,
        configuration: Configuration,
        processes: Arc<dyn crate::comm::engine::Processes>,
    ) -> Communicator {
        Communicator { engine: Box::new(Host::new(endpoint, configuration, Some(processes))), configuration }
    }

    /// A rank of a group that `engine` carries calls of, which has the default options.
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

    /// [`from_engine`](Communicator::from_engine) whose calls are carried out so.
    pub(crate) fn on(engine: Box<dyn Engine>, configuration: Configuration) -> Communicator {
        let mut engine = match engine.service() {
            Service::Calls => engine,
            Service::Messages => Box::new(Lowered::new(engine)),
        };
        engine.configure(&configuration);
        Communicator { engine, configuration }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.world().rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.world().size()
    }

    /// This rank and the number of ranks.
    pub fn world(&self) -> World {
        self.engine.world()
    }

    /// Sets how long a call waits for its peers, in all: more than zero and at most a day. By
    /// default 5 minutes.
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

    /// Sets how an all-reduce is done: the same on every rank, or a call fails as a mismatch.
    pub fn set_implementation(&mut self, implementation: Implementation) {
        self.configure(Configuration { implementation, ..self.configuration });
    }

    pub(crate) fn configure(&mut self, configuration: Configuration) {
        if configuration != self.configuration {
            self.configuration = configuration;
            self.engine.configure(&configuration);
        }
    }

    /// `count` elements, all zero, in memory that every rank of this group can read and write in
    /// place: with such data collectives of processes copy nothing that they need not. Of threads,
    /// any memory is so. Of processes it is made of huge pages from 2 MiB on, where the system
    /// (Linux 6.1 and later) has some, which takes about as long as to fill it once.
    ///
    /// It stays when the group has ended, but the data of another group's collectives are copied
    /// again. A process made by `fork` has none of it, and a core dump leaves that of processes
    /// out.
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory for them.
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
        Ok(SharedMemory::new(self.engine.alloc(T::DTYPE, count)?))
    }

    /// What the way of this group's data depends on, or of what goes to and from `peer`, once
    /// something has; none where ranks do not share memory. For `consonance explain`.
    #[doc(hidden)]
    pub fn topology(&self, peer: Option<usize>) -> Option<Topology> {
        let host = (&*self.engine as &dyn Any).downcast_ref::<Host>();
        host.map(|host| host.topology(peer))
    }

    /// Ends the group: every rank that waits in it, or calls anything in it later, gets
    /// [`Error::Aborted`]. Waits for nobody.
    pub fn abort(&self) {
        self.engine.abort_handle().abort(Reason::Failure);
    }

    /// What ends this group from any thread, and tells whether it was ended.
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

    /// After an abort, waits until all ranks are ready to go on, and goes on; otherwise does
    /// nothing.
    pub(crate) fn renew(&mut self) -> Result<()> {
        self.engine.renew()
    }

    /// Ends this rank's part in a run. Gives the communicator if it may
    /// [begin](Communicator::begin_run) another one.
    pub(crate) fn end_run(mut self) -> Option<Communicator> {
        self.engine.end_run().then_some(self)
    }

    /// Begins another run of a group of which these are all ranks, each of which has ended the last
    /// one. False if it does not go on.
    pub(crate) fn begin_run(ranks: &mut [Communicator]) -> bool {
        ranks.iter_mut().all(|rank| rank.engine.begin_run())
    }

    /// Says whether this rank is idle: see [`Engine::set_idle`].
    pub(crate) fn set_idle(&mut self, company: Range<usize>, idle: bool) {
        self.engine.set_idle(company, idle);
    }

    /// The communicator of the ranks that give the same `color`, ordered by `key` and then by rank;
    /// none for no color. Every rank of this group calls it. An [`abort`](Communicator::abort) of
    /// this group ends the new one, too; a communicator of this group that is dropped does not. In
    /// errors a replica is a rank of the new group; but who ended this one is named by its rank
    /// here, and [`Error::Aborted`] says so.
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
        self.carry_out(told, &signature, &Agreement::NONE)?;
        let mut members: Vec<usize> = (0..self.size()).filter(|&rank| all[rank][0] == own[0]).collect();
        members.sort_by_key(|&rank| all[rank][1]);
        if color.is_none() {
            members.clear();
        }
        let part = self.engine.subgroup(&members);
        let engine = part.map_err(|failure| self.settle(failure, &signature, &Agreement::NONE))?;
        Ok(engine.map(|engine| Communicator::on(engine, self.configuration)))
    }

    pub(crate) fn call(&mut self, call: Call<'_>) -> Result<()> {
        self.execute(call, &Agreement::NONE)
    }

    /// Makes a call whose element types are values, on which the ranks agree as on any other, and
    /// on `agreement` beyond it. All methods with typed slices are this one.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for what cannot be right whatever the
    /// other ranks call; otherwise as [`barrier`](Communicator::barrier).
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
        let mut signature = Signature::new(call.kind());
        let signed = match call.outside(|space| self.engine.reaches(space)) {
            None => call.sign(self.world(), &mut signature),
            Some((argument, space)) => Err(self.out_of_reach(call.kind(), argument, space)),
        };
        if let Err(error) = signed {
            // The two of a send and a receive are a group of their own: no other rank waits for
            // this call.
            if !matches!(call, Call::Send { .. } | Call::Recv { .. }) {
                let _ = self.refuse(call.kind(), &error);
            }
            return Err(error);
        }
        agreement.sign(&mut signature);
        self.carry_out(call, &signature, agreement)
    }

    #[cold]
    fn out_of_reach(&self, kind: Kind, argument: &str, space: Space) -> Error {
        let expected = "memory that this communicator's engine reaches";
        Error::invalid(kind.name(), argument, expected, format!("memory of {space}")).of_replica(self.rank())
    }

    fn carry_out(&mut self, call: Call<'_>, signature: &Signature, agreement: &Agreement<'_>) -> Result<()> {
        let done = self.engine.execute(call, signature, agreement.name(signature));
        done.map_err(|failure| self.settle(failure, signature, agreement))
    }

    /// A call in which ranks only meet, of a strategy's own kind.
    pub(crate) fn meet(&mut self, kind: Kind, agreement: &Agreement<'_>) -> Result<()> {
        let mut signature = Signature::new(kind);
        agreement.sign(&mut signature);
        self.carry_out(Call::Barrier, &signature, agreement)
    }
}
