//! Replicas in several processes, each with copies of every variable.

use crate::{
    ClusterResolver, CommunicationOptions, Communicator, Device, Error, Result, Strategy, TfConfigClusterResolver,
    cluster::Role,
    handle::{Builder, Workers},
};
#[cfg(target_os = "linux")]
use crate::{ProcessGroup, ProcessGroupBuilder, handle::context};
use std::{env, ops::Deref, sync::Arc};
#[cfg(target_os = "linux")]
use std::{sync::Mutex, time::Duration};

const CALL: &str = "MultiWorkerMirroredStrategy";

/// Replicas in several workers, which are processes, some in each. Every worker runs the same
/// program and makes the same calls in the same order; the bits are those of as many replicas in
/// one process.
///
/// The workers are the tasks `chief` and `worker` of the cluster, in this order, and replicas are
/// numbered worker by worker. How many replicas a worker has is its own affair. In each process:
///
/// * [`run`](Strategy::run) runs that worker's replicas, takes and gives their values; collectives
///   are of all replicas.
/// * [`reduce`](Strategy::reduce), [`gather`](Strategy::gather) and what else combines values of
///   replicas is a collective: every worker makes the call.
/// * So is the making of a [`Variable`](crate::Variable), which has the chief's initial value
///   everywhere.
/// * [`distribute_dataset`](Strategy::distribute_dataset) gives that worker's replicas their parts.
///
/// A cluster without tasks is one worker: it is as [`MirroredStrategy`](crate::MirroredStrategy)
/// is.
///
/// ```
/// use consonance::{MultiWorkerMirroredStrategy, ReduceOp, Tensor, TfConfigClusterResolver};
/// let alone = TfConfigClusterResolver::from_text("{}")?;
/// let strategy = MultiWorkerMirroredStrategy::builder(alone).replicas(2).build()?;
/// let totals = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, Tensor::from(1.0f32)))?;
/// assert_eq!(totals.values(), [Tensor::from(2.0f32), Tensor::from(2.0f32)]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiWorkerMirroredStrategy {
    strategy: Strategy,
    /// The processes that were met; none on communicators of the user's own, or where there is one
    /// worker.
    #[cfg(target_os = "linux")]
    processes: Option<Arc<Mutex<ProcessGroup>>>,
}

/// Two handles to the same strategy are equal.
impl PartialEq for MultiWorkerMirroredStrategy {
    fn eq(&self, other: &MultiWorkerMirroredStrategy) -> bool {
        self.strategy == other.strategy
    }
}

impl MultiWorkerMirroredStrategy {
    /// A strategy for the workers that `TF_CONFIG` tells of:
    /// [`from_environment`](Self::from_environment) as it is.
    ///
    /// # Errors
    /// Those of [`from_environment`](Self::from_environment) and
    /// [`build`](MultiWorkerBuilder::build).
    pub fn new() -> Result<MultiWorkerMirroredStrategy> {
        Self::from_environment()?.build()
    }

    /// A strategy for the workers that `TF_CONFIG` tells of, with as many replicas in this one as
    /// `CONSONANCE_REPLICAS` says, or one. This is what `consonance run` sets. Options may be
    /// added:
    ///
    /// ```
    /// use consonance::{CommunicationOptions, MultiWorkerMirroredStrategy};
    /// use std::time::Duration;
    /// let options = CommunicationOptions::new().timeout(Duration::from_secs(20))?;
    /// let strategy = MultiWorkerMirroredStrategy::from_environment()?.options(options).build()?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TfConfigClusterResolver::new`]; [`Error::InvalidCall`] for a
    /// `CONSONANCE_REPLICAS` that is no number.
    pub fn from_environment() -> Result<MultiWorkerBuilder> {
        let builder = Self::builder(TfConfigClusterResolver::new()?);
        match env::var_os("CONSONANCE_REPLICAS").map(|text| text.to_string_lossy().into_owned()) {
            None => Ok(builder),
            Some(text) => {
                let replicas = text.parse().ok().filter(|&replicas: &usize| replicas > 0);
                let wrong = || Error::invalid(CALL, "CONSONANCE_REPLICAS", "a number above 0", format!("{text:?}"));
                Ok(builder.replicas(replicas.ok_or_else(wrong)?))
            }
        }
    }

    /// A strategy for the workers of a cluster. It reads no `CONSONANCE_REPLICAS`, as
    /// [`from_environment`](Self::from_environment) does:
    /// [`replicas`](MultiWorkerBuilder::replicas) says how many there are in this one.
    pub fn builder(resolver: impl ClusterResolver + 'static) -> MultiWorkerBuilder {
        let options = CommunicationOptions::new();
        MultiWorkerBuilder {
            resolver: Arc::new(resolver),
            replicas: 1,
            options,
            pin_threads: false,
            #[cfg(target_os = "linux")]
            meeting: Box::new(Ok),
        }
    }

    /// After a worker [was lost](Error::is_loss), goes on with those that are left; each of them
    /// makes this call. The replicas are numbered anew, and their number is another one. Variables
    /// keep the values that they have in this process; data sets are to be distributed anew.
    ///
    /// If another worker is lost meanwhile, this goes on with those that are left then.
    ///
    /// A worker that was lost may be started again: it makes its strategy as at first. For
    /// `wait_for_replacements` the others wait for it, but not longer than until the cluster is
    /// complete. It has no variables of before: values reach it by a
    /// [broadcast](crate::ReplicaContext::broadcast), and new variables are made by all.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a strategy that has not met other processes; [`Error::Meeting`]
    /// if a worker that runs does not come, [`Error::Timeout`] or [`Error::Aborted`] if one comes
    /// and makes no call until the deadline of one, which may be repeated; [`Error::WrongContext`]
    /// in a replica, in a merge function or in another strategy's scope.
    #[cfg(target_os = "linux")]
    pub fn reform(&self, wait_for_replacements: Duration) -> Result<()> {
        let call = "MultiWorkerMirroredStrategy::reform";
        context::require_cross_replica(call, self)?;
        let (Some(processes), Some(workers)) = (&self.processes, self.strategy.workers()) else {
            return Err(Error::invalid(call, "strategy", "one that has met other processes", self.to_string()));
        };
        let turn = workers.take_turn(call, self.options().configuration().timeout)?;
        if turn.is_within_another() {
            let problem = "called within a call of the strategy, as in a merge function, which goes on with the group";
            return Err(Error::WrongContext { call, problem: problem.to_owned() });
        }
        let mut group = processes.lock().expect("nobody panics holding the group");
        let cluster = self.cluster_resolver().map_or_else(String::new, |resolver| resolver.cluster_spec().to_string());
        // Each worker can be lost once. Whom more losses are told of, a peer writes where it must
        // not.
        let mut losses = workers.count();
        loop {
            group.reform(wait_for_replacements)?;
            match workers.meet_again(call, group.communicators(), group.place(), &cluster) {
                // In the group that was just formed: so with another one, once for each worker that
                // is lost.
                Err(error) if error.is_loss() && losses > 0 => losses -= 1,
                met => return met,
            }
        }
    }
}

impl Deref for MultiWorkerMirroredStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.strategy
    }
}

/// How a [`MultiWorkerMirroredStrategy`] is made: the cluster first, then what differs from the
/// default.
#[must_use]
pub struct MultiWorkerBuilder {
    resolver: Arc<dyn ClusterResolver>,
    replicas: usize,
    options: CommunicationOptions,
    pin_threads: bool,
    #[cfg(target_os = "linux")]
    meeting: Box<dyn FnOnce(ProcessGroupBuilder) -> Result<ProcessGroupBuilder>>,
}

impl MultiWorkerBuilder {
    /// So many replicas in this worker, on `cpu:0`, `cpu:1`, … By default one, or from
    /// [`from_environment`](MultiWorkerMirroredStrategy::from_environment) as many as
    /// `CONSONANCE_REPLICAS` says.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Options of all collectives, where a call does not override them.
    pub fn options(mut self, options: CommunicationOptions) -> Self {
        self.options = options;
        self
    }

    /// Binds the thread of replica `i` to core `i`, modulo the cores that this process may use,
    /// where `i` counts the replicas of all workers. By default the system places threads.
    pub fn pin_threads(mut self, pin: bool) -> Self {
        self.pin_threads = pin;
        self
    }

    /// How the processes of the workers meet: for how long they wait for each other, how much
    /// memory they share. A number of replicas that is set there is that of this worker's strategy;
    /// [options](MultiWorkerBuilder::options) of collectives are set here alone. A cluster of one
    /// worker meets nobody.
    ///
    /// ```
    /// use consonance::{MultiWorkerMirroredStrategy, TfConfigClusterResolver};
    /// use std::time::Duration;
    /// let strategy = MultiWorkerMirroredStrategy::builder(TfConfigClusterResolver::from_text("{}")?)
    ///     .meeting(|group| group.staging_bytes(4 << 20).timeout(Duration::from_secs(30)))
    ///     .build()?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    #[cfg(target_os = "linux")]
    pub fn meeting(mut self, set: impl FnOnce(ProcessGroupBuilder) -> Result<ProcessGroupBuilder> + 'static) -> Self {
        self.meeting = Box::new(set);
        self
    }

    /// Makes the strategy. If the cluster has several workers, this waits for the processes of all
    /// of them, which may start in any order: see [`ProcessGroup`](crate::ProcessGroup).
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is no worker of the cluster, if it has no replicas or
    /// more than there are devices, or if a worker is on another host; [`Error::Meeting`] if
    /// workers are missing at the deadline, which are named.
    pub fn build(self) -> Result<MultiWorkerMirroredStrategy> {
        let role = Role::of(CALL, &*self.resolver)?;
        let replicas = self.replicas;
        if role.workers.len() <= 1 {
            return self.build_with(replicas, None);
        }
        self.meet()
    }

    #[cfg(target_os = "linux")]
    fn meet(mut self) -> Result<MultiWorkerMirroredStrategy> {
        let set = std::mem::replace(&mut self.meeting, Box::new(Ok));
        let group = set(ProcessGroupBuilder::new(self.resolver.clone()).replicas(self.replicas))?;
        let mut group = group.options(self.options).join()?;
        let communicators = group.communicators();
        let replicas = communicators.len();
        let cluster = self.resolver.cluster_spec().to_string();
        let workers = Workers::meet(CALL, communicators, group.place(), &cluster)?;
        let strategy = self.build_with(replicas, Some(workers))?;
        Ok(MultiWorkerMirroredStrategy { processes: Some(Arc::new(Mutex::new(group))), ..strategy })
    }

    #[cfg(not(target_os = "linux"))]
    fn meet(self) -> Result<MultiWorkerMirroredStrategy> {
        let expected = "one worker, or communicators for build_on: processes share memory on Linux only";
        Err(Error::invalid(CALL, "cluster", expected, "several workers"))
    }

    /// Makes the strategy on communicators of your own, a rank for each replica of all workers, on
    /// whatever engine they are: for each replica of this worker its communicator, in rank order.
    /// All workers make this call, with the same cluster; they tell each other how many replicas
    /// each has, so that [`replicas`](MultiWorkerBuilder::replicas) says nothing here.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is no worker of the cluster, and if the communicators
    /// are not those of ranks that follow each other, or not of all workers in their order, or if
    /// two processes say that they are the same worker; otherwise as [`Communicator::barrier`],
    /// with the timeout that the communicators have.
    ///
    /// Two threads that play two workers:
    ///
    /// ```
    /// use consonance::{
    ///     ClusterSpec, Communicator, MultiWorkerMirroredStrategy, ReduceOp, Result, SimpleClusterResolver, Tensor,
    /// };
    /// fn work(index: usize, communicator: Communicator) -> Result<()> {
    ///     let cluster = ClusterSpec::new().job("worker", ["localhost:2222", "localhost:2223"])?;
    ///     let resolver = SimpleClusterResolver::new(cluster).with_task("worker", index)?;
    ///     let strategy = MultiWorkerMirroredStrategy::builder(resolver).build_on(vec![communicator])?;
    ///     assert_eq!((strategy.num_replicas_in_sync(), strategy.local_replicas()), (2, index..index + 1));
    ///
    ///     let ids = strategy.run(|replica| Ok(Tensor::from(replica.replica_id_in_sync_group() as i32)))?;
    ///     assert_eq!(strategy.local_results(&ids), [Tensor::from(index as i32)]);
    ///     assert_eq!(strategy.reduce(ReduceOp::Sum, &ids, None)?, Tensor::from(1));
    ///     Ok(())
    /// }
    /// std::thread::scope(|scope| {
    ///     let workers: Vec<_> = Communicator::threads(2)
    ///         .into_iter()
    ///         .enumerate()
    ///         .map(|(index, communicator)| scope.spawn(move || work(index, communicator)))
    ///         .collect();
    ///     workers.into_iter().try_for_each(|worker| worker.join().unwrap())
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn build_on(self, communicators: Vec<Communicator>) -> Result<MultiWorkerMirroredStrategy> {
        let role = Role::of(CALL, &*self.resolver)?;
        let replicas = communicators.len();
        let cluster = self.resolver.cluster_spec().to_string();
        let place = (role.worker, role.workers.len().max(1));
        let workers = Workers::meet(CALL, communicators, place, &cluster)?;
        // Where there is one worker nobody else is to be asked.
        self.build_with(replicas, Some(workers).filter(|workers| workers.count() > 1))
    }

    fn build_with(self, replicas: usize, workers: Option<Workers>) -> Result<MultiWorkerMirroredStrategy> {
        let devices = (0..replicas).map(Device::Cpu);
        let wrap = |strategy| MultiWorkerMirroredStrategy {
            strategy,
            #[cfg(target_os = "linux")]
            processes: None,
        };
        let builder = Builder::new(CALL, devices, wrap).mirrors();
        let builder = builder.options(self.options).pin_threads(self.pin_threads);
        builder.cluster(self.resolver, workers).build()
    }
}
