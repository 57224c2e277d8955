//! Replicas in several processes, each with copies of every variable.

use crate::{
    ClusterResolver, CommunicationOptions, Communicator, Device, Error, Result, StaticShapes, Strategy,
    cluster::{
        Majority, Role,
        environment::{Launched, Ranks, launched},
        process_environment,
    },
    comm::engine::Engine,
    device,
    execution::{Builder, Common, Engines, MakeEngines, Workers, check_devices, context},
};
#[cfg(target_os = "linux")]
use crate::{ProcessGroup, ProcessGroupBuilder};
#[cfg(target_os = "linux")]
use std::sync::Mutex;
use std::{env, fmt, ops::Deref, sync::Arc, time::Duration};

const CALL: &str = "MultiWorkerMirroredStrategy";

/// Replicas in several workers. A worker is a process with one or more replicas. Every worker runs
/// the same program and makes the same calls in the same order. Results are bit for bit those of
/// the same number of replicas in one process.
///
/// The workers are the tasks `chief` and `worker` of the cluster, in this order. Replicas are
/// numbered worker by worker; workers may have different numbers of replicas. In each process:
///
/// * [`run`](Strategy::run) runs this worker's replicas, and its arguments and results are theirs.
///   Collectives span the replicas of all workers.
/// * [`reduce`](Strategy::reduce), [`gather`](Strategy::gather) and every other call that combines
///   values of replicas is a collective: every worker makes the call.
/// * Creating a [`Variable`](crate::Variable) is a collective too. The chief's initial value is
///   used on all workers.
/// * [`distribute_dataset`](Strategy::distribute_dataset) gives this worker's replicas their parts.
///
/// A cluster without tasks is one worker and behaves like
/// [`MirroredStrategy`](crate::MirroredStrategy).
///
/// ```
/// use consonance::{MultiWorkerMirroredStrategy, ReduceOp, Tensor, TfConfigClusterResolver};
/// let alone = TfConfigClusterResolver::from_text("{}")?;
/// let strategy = MultiWorkerMirroredStrategy::builder(alone).replicas(2).build()?;
/// let totals = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, Tensor::from(1.0f32)))?;
/// assert_eq!(totals.values(), [Tensor::from(2.0f32), Tensor::from(2.0f32)]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone)]
pub struct MultiWorkerMirroredStrategy {
    strategy: Strategy,
    /// The process group of the workers. `None` on communicators that the user passed, and with one
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
    /// Makes a strategy for the workers that a launcher has started:
    /// [`from_environment`](Self::from_environment) without further options.
    ///
    /// # Errors
    /// Those of [`from_environment`](Self::from_environment) and
    /// [`build`](MultiWorkerBuilder::build).
    pub fn new() -> Result<MultiWorkerMirroredStrategy> {
        Self::from_environment()?.build()
    }

    /// Starts a strategy for the workers that a launcher has started: those in `TF_CONFIG`, which
    /// `consonance run` sets, or else the ranks of `torchrun`, `srun`, `mpirun` or `mpiexec`, as
    /// [`ProcessGroup::from_env`](crate::ProcessGroup::from_env) reads them. Where the launcher
    /// tells no addresses, those in the strategy's cluster are `rank0:0`, `rank1:0`, …. Without a
    /// launcher there is one worker.
    ///
    /// The number of replicas of this worker is `CONSONANCE_REPLICAS`, one by default. Options may
    /// be added:
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
    /// [`Error::InvalidCall`] if a launcher has started several processes, and a variable that they
    /// need is missing or wrong; or for a `CONSONANCE_REPLICAS` that is not a number above 0.
    pub fn from_environment() -> Result<MultiWorkerBuilder> {
        let builder = Self::of(launched(CALL, process_environment)?);
        match env::var_os("CONSONANCE_REPLICAS").map(|text| text.to_string_lossy().into_owned()) {
            None => Ok(builder),
            Some(text) => {
                let replicas = text.parse().ok().filter(|&replicas: &usize| replicas > 0);
                let wrong = || Error::invalid(CALL, "CONSONANCE_REPLICAS", "a number above 0", format!("{text:?}"));
                Ok(builder.replicas(replicas.ok_or_else(wrong)?))
            }
        }
    }

    /// Starts a strategy for the workers of a cluster. Unlike
    /// [`from_environment`](Self::from_environment) it does not read `CONSONANCE_REPLICAS`: set the
    /// number of replicas of this worker with [`replicas`](MultiWorkerBuilder::replicas).
    pub fn builder(resolver: impl ClusterResolver + 'static) -> MultiWorkerBuilder {
        Self::of(Launched { resolver: Arc::new(resolver), ranks: None })
    }

    fn of(Launched { resolver, ranks }: Launched) -> MultiWorkerBuilder {
        let (options, cluster) = (CommunicationOptions::new(), resolver.cluster_spec().to_string());
        MultiWorkerBuilder {
            resolver,
            ranks,
            replicas: 1,
            devices: None,
            options,
            common: Common { cluster, ..Common::default() },
            pin_threads: false,
            static_shapes: None,
            make: None,
            #[cfg(target_os = "linux")]
            meeting: Box::new(Ok),
        }
    }

    /// Continues with the remaining workers after a worker [was lost](Error::is_loss); each of them
    /// makes this call. Replicas get new ids, and their number changes. Variables keep the values
    /// that they have in this process. Distribute data sets again.
    ///
    /// If another worker is lost during this call, the call continues with those that are left
    /// then.
    ///
    /// A lost worker may be started again: it makes its strategy as at first. The others wait for
    /// it for at most `wait_for_replacements`, and no longer once the cluster is complete. The new
    /// process has none of the earlier variables: send it their values by a
    /// [broadcast](crate::ReplicaContext::broadcast), and create new variables on all workers.
    ///
    /// A network between hosts may break and seem to be a loss on both sides. Then the side goes on
    /// that has more than half of the processes not known to have ended, or half of them and the
    /// first.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a strategy that has not met other processes; [`Error::Meeting`]
    /// if a running worker does not join, or on a side of a broken network that may not go on.
    /// [`Error::Timeout`] or [`Error::Aborted`] if a worker joins and makes no call before the
    /// deadline of the call; this call may then be repeated. [`Error::WrongContext`] in a replica,
    /// in a merge function or in another strategy's scope.
    ///
    /// On several hosts replacements take UCX and a cluster with the addresses of all workers.
    /// Without these, and on [engines](MultiWorkerBuilder::engines) or
    /// [communicators](MultiWorkerBuilder::build_on) of your own, there are none:
    /// `wait_for_replacements` must be zero. Engines that cannot go on after a loss return
    /// [`Error::WrongContext`].
    pub fn reform(&self, wait_for_replacements: Duration) -> Result<()> {
        self.form_again("MultiWorkerMirroredStrategy::reform", wait_for_replacements, Majority::Needed)
    }

    /// Continues on a side of a broken network that [`reform`](Self::reform) refuses, because the
    /// other side may go on. Each worker of this side makes this call. Make it only if you know
    /// that the other side does not: else two groups train.
    ///
    /// # Errors
    /// As [`reform`](Self::reform).
    ///
    /// ```no_run
    /// # use consonance::{Error, MultiWorkerMirroredStrategy, Result};
    /// # use std::time::Duration;
    /// # fn go_on(strategy: &MultiWorkerMirroredStrategy, the_others_are_down: fn() -> bool) -> Result<()> {
    /// match strategy.reform(Duration::ZERO) {
    ///     Err(Error::Meeting { .. }) if the_others_are_down() => strategy.reform_without_majority(),
    ///     reformed => reformed,
    /// }
    /// # }
    /// ```
    pub fn reform_without_majority(&self) -> Result<()> {
        let call = "MultiWorkerMirroredStrategy::reform_without_majority";
        self.form_again(call, Duration::ZERO, Majority::Waived)
    }

    fn form_again(&self, call: &'static str, wait_for_replacements: Duration, majority: Majority) -> Result<()> {
        context::require_cross_replica(call, self)?;
        let Some(workers) = self.strategy.workers() else {
            return Err(Error::invalid(call, "strategy", "one that has met other processes", self.to_string()));
        };
        let (configuration, common) = (self.options().configuration(), self.common());
        let turn = workers.take_turn(call, configuration.timeout)?;
        if turn.is_within_another() {
            let problem = "called within a call of the strategy, as in a merge function, which goes on with the group";
            return Err(Error::WrongContext { call, problem: problem.to_owned() });
        }
        #[cfg(target_os = "linux")]
        if let Some(processes) = &self.processes {
            let mut group = processes.lock().expect("nobody panics holding the group");
            // Each worker can be lost once.
            let mut losses = workers.count();
            loop {
                group.form_again(call, wait_for_replacements, majority)?;
                match workers.meet_again(call, (group.communicators(), self.worker_devices()), group.place(), common) {
                    // The loss is in the group just formed: form another one.
                    Err(error) if error.is_loss() && losses > 0 => losses -= 1,
                    met => return met,
                }
            }
        }
        if !wait_for_replacements.is_zero() {
            let expected = "zero: the engines of this strategy take no replacements";
            return Err(Error::invalid(call, "wait_for_replacements", expected, format!("{wait_for_replacements:?}")));
        }
        workers.reform(call, configuration, (self.worker_devices(), common), majority)
    }
}

impl Deref for MultiWorkerMirroredStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.strategy
    }
}

/// Builds a [`MultiWorkerMirroredStrategy`]: first the cluster, then the options that differ from
/// the default.
#[must_use]
pub struct MultiWorkerBuilder {
    resolver: Arc<dyn ClusterResolver>,
    /// The means of the processes to meet, if it is not their addresses.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "groups of processes need Linux"))]
    ranks: Option<Ranks>,
    replicas: usize,
    /// The replicas' devices. By default these are the first CPU devices.
    devices: Option<Result<Vec<Device>>>,
    options: CommunicationOptions,
    common: Common,
    pin_threads: bool,
    static_shapes: Option<StaticShapes>,
    make: Option<MakeEngines>,
    #[cfg(target_os = "linux")]
    meeting: Box<dyn FnOnce(ProcessGroupBuilder) -> Result<ProcessGroupBuilder>>,
}

impl MultiWorkerBuilder {
    /// Returns the resolver of the workers' cluster. The cluster has no jobs if the program runs
    /// alone.
    ///
    /// ```
    /// use consonance::{MultiWorkerMirroredStrategy, TfConfigClusterResolver};
    /// let alone = MultiWorkerMirroredStrategy::builder(TfConfigClusterResolver::from_text("{}")?);
    /// assert!(alone.cluster_resolver().cluster_spec().is_empty());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn cluster_resolver(&self) -> &dyn ClusterResolver {
        &*self.resolver
    }

    /// Sets the number of replicas of this worker, on `cpu:0`, `cpu:1`, … The default is one, or
    /// with [`from_environment`](MultiWorkerMirroredStrategy::from_environment)
    /// `CONSONANCE_REPLICAS`.
    pub fn replicas(mut self, replicas: usize) -> Self {
        (self.replicas, self.devices) = (replicas, None);
        self
    }

    /// Sets the devices of this worker's replicas, one each, as
    /// [`MirroredStrategy::new`](crate::MirroredStrategy::new) takes them, GPUs too. This sets the
    /// number of replicas.
    ///
    /// ```
    /// use consonance::{Device, MultiWorkerMirroredStrategy, TfConfigClusterResolver};
    /// let alone = TfConfigClusterResolver::from_text("{}")?;
    /// let strategy = MultiWorkerMirroredStrategy::builder(alone).devices(["cpu:2", "cpu:3"]).build()?;
    /// assert_eq!(strategy.worker_devices(), [Device::Cpu(2), Device::Cpu(3)]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn devices<D>(mut self, devices: impl IntoIterator<Item = D>) -> Self
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        let devices: Result<Vec<Device>> = devices.into_iter().map(|wanted| device::resolve(CALL, wanted)).collect();
        self.devices = Some(devices.and_then(|devices| check_devices(CALL, devices)));
        self
    }

    /// Sets the options of all collectives that do not override them.
    pub fn options(mut self, options: CommunicationOptions) -> Self {
        self.options = options;
        self
    }

    /// Does [`Builder::grains`](crate::Builder::grains): parts of a step with a fixed place in the
    /// order of every sum, so that results do not depend on the number of replicas. All workers set
    /// the same number, at least that of all replicas.
    /// [`reform`](MultiWorkerMirroredStrategy::reform) deals the grains anew.
    pub fn grains(mut self, grains: usize) -> Self {
        self.common.grains = Some(grains);
        self
    }

    /// Sets the [seed](crate::ReplicaContext::seed), the same on all workers. By default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.common.seed = seed;
        self
    }

    /// Binds the thread of replica `i` to core `i`, modulo the cores that this process may use,
    /// where `i` counts the replicas of all workers. By default the system places threads.
    pub fn pin_threads(mut self, pin: bool) -> Self {
        self.pin_threads = pin;
        self
    }

    /// Makes the strategy refuse what a TPU would refuse: see [`StaticShapes`]. A worker with
    /// another option differs from the others in its first collective on tensors.
    pub fn static_shapes(mut self, shapes: impl Into<Option<StaticShapes>>) -> Self {
        self.static_shapes = shapes.into();
        self
    }

    /// Executes the replicas' collectives on custom engines. `make` takes the devices of this
    /// worker's replicas and the role of this process, which has the addresses of all workers, and
    /// returns an engine for each replica, in rank order. The replicas of all workers are the
    /// ranks, so all workers make engines of one group. The workers exchange their numbers of
    /// replicas over them; they share no memory, and may be on several hosts. The strategy goes on
    /// after a failed run if the engines can be [renewed](crate::raw::Engine::renew), or those of
    /// messages have a [next generation](crate::raw::Engine::next_generation). With one worker this
    /// is [`Builder::engines`](crate::Builder::engines). By default replicas share memory.
    ///
    /// ```
    /// # use consonance::{MultiWorkerMirroredStrategy, Result, raw::{Engine, Role}};
    /// fn on(connect: fn(usize, &Role) -> Result<Vec<Box<dyn Engine>>>) -> Result<MultiWorkerMirroredStrategy> {
    ///     let strategy = MultiWorkerMirroredStrategy::from_environment()?;
    ///     strategy.engines(move |devices, role| connect(devices.len(), role)).build()
    /// }
    /// ```
    pub fn engines(
        mut self,
        make: impl Fn(&[Device], &Role) -> Result<Vec<Box<dyn Engine>>> + Send + Sync + 'static,
    ) -> Self {
        self.make = Some(Box::new(make));
        self
    }

    /// Configures how the processes of the workers form a group: how long they wait for each other,
    /// how much memory they share. A number of replicas set there overrides that of this builder.
    /// The [options](MultiWorkerBuilder::options) of collectives set there have no effect: set them
    /// on this builder. A cluster of one worker forms no group, so this has no effect.
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

    /// Makes the strategy. If the cluster has several workers, waits for the processes of all of
    /// them; they may start in any order, on one host or on several. See
    /// [`ProcessGroup`](crate::ProcessGroup). The replacement of a lost worker comes again if
    /// another one is lost meanwhile. Tasks `ps` take no part: the first worker says so on stderr.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is no worker of the cluster, if it has no replicas or
    /// more than there are devices; [`Error::Meeting`] with the
    /// missing workers if some are missing at the deadline.
    pub fn build(mut self) -> Result<MultiWorkerMirroredStrategy> {
        let role = Role::of(CALL, &*self.resolver)?;
        role.idle_servers().iter().for_each(|sentence| eprintln!("consonance: {CALL}: {sentence}"));
        // Wrong devices are refused before the other workers are met.
        let devices = self.devices.clone().unwrap_or_else(|| Ok((0..self.replicas).map(Device::Cpu).collect()))?;
        let engines = Engines { role, make: self.make.take() };
        if !engines.role.is_shared() {
            return self.build_with(devices, None, engines);
        }
        if engines.are_of_processes() {
            devices.iter().filter_map(|device| device.gpu()).try_for_each(|gpu| device::open(CALL, gpu).map(drop))?;
            return self.meet(devices.len(), engines);
        }
        let communicators = engines.communicators(CALL, &devices, self.options.configuration())?;
        self.build_over(communicators, engines)
    }

    #[cfg(target_os = "linux")]
    fn meet(mut self, replicas: usize, engines: Engines) -> Result<MultiWorkerMirroredStrategy> {
        let set = std::mem::replace(&mut self.meeting, Box::new(Ok));
        let group = match self.ranks.take() {
            Some(ranks) => ranks.group()?,
            None => ProcessGroupBuilder::new(self.resolver.clone()),
        };
        let group = set(group.replicas(replicas))?;
        let meet = |communicators: Vec<Communicator>, place| {
            let devices = self.devices_of(communicators.len())?;
            Workers::meet(CALL, (communicators, &devices), place, &self.common)
        };
        let (group, workers) = group.options(self.options).join_and(meet)?;
        let devices = self.devices_of(group.ranks().len())?;
        let strategy = self.build_with(devices, Some(workers), engines)?;
        Ok(MultiWorkerMirroredStrategy { processes: Some(Arc::new(Mutex::new(group))), ..strategy })
    }

    #[cfg(not(target_os = "linux"))]
    fn meet(self, _replicas: usize, _engines: Engines) -> Result<MultiWorkerMirroredStrategy> {
        let expected = "one worker, or communicators for build_on: processes share memory on Linux only";
        Err(Error::invalid(CALL, "cluster", expected, "several workers"))
    }

    /// Makes the strategy on your own communicators, on any engine. Each replica of all workers is
    /// a rank; pass the communicators of this worker's replicas in rank order. All workers make
    /// this call with the same cluster. They exchange their numbers of replicas, so
    /// [`replicas`](MultiWorkerBuilder::replicas) has no effect here.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is no worker of the cluster, if the ranks of the
    /// communicators are not consecutive or not in the order of the workers, or if two processes
    /// claim to be the same worker; otherwise as [`Communicator::barrier`], with the timeout of the
    /// communicators.
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
        let engines = Engines { role: Role::of(CALL, &*self.resolver)?, make: None };
        self.build_over(communicators, engines)
    }

    fn build_over(self, communicators: Vec<Communicator>, engines: Engines) -> Result<MultiWorkerMirroredStrategy> {
        let devices = self.devices_of(communicators.len())?;
        let place = (engines.role.worker(), engines.role.workers().len().max(1));
        let workers = Workers::meet(CALL, (communicators, &devices), place, &self.common)?;
        self.build_with(devices, Some(workers), engines)
    }

    fn devices_of(&self, replicas: usize) -> Result<Vec<Device>> {
        let devices = self.devices.clone().unwrap_or_else(|| Ok((0..replicas).map(Device::Cpu).collect()))?;
        if devices.len() != replicas {
            let expected = format!("{replicas} devices, one for each replica of this worker");
            return Err(Error::invalid(CALL, "devices", expected, format!("{} devices", devices.len())));
        }
        Ok(devices)
    }

    fn build_with(
        self,
        devices: Vec<Device>,
        workers: Option<Workers>,
        engines: Engines,
    ) -> Result<MultiWorkerMirroredStrategy> {
        let wrap = |strategy| MultiWorkerMirroredStrategy {
            strategy,
            #[cfg(target_os = "linux")]
            processes: None,
        };
        let builder = Builder::new(CALL, devices, wrap).options(self.options).pin_threads(self.pin_threads);
        builder.static_shapes(self.static_shapes).cluster(self.resolver, self.common, workers, engines).build()
    }
}

impl fmt::Debug for MultiWorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiWorkerBuilder")
            .field("resolver", &self.resolver)
            .field("replicas", &self.replicas)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
