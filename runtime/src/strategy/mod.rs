//! Strategies: where replicas run and where values live.

mod across;
mod central_storage;
mod dataset;
mod mirrored;
mod multi_worker;
mod one_device;
mod reduce;
mod run;
mod workers;

pub use central_storage::CentralStorageStrategy;
pub use mirrored::MirroredStrategy;
pub use multi_worker::{MultiWorkerBuilder, MultiWorkerMirroredStrategy};
pub use one_device::OneDeviceStrategy;
pub use reduce::Destinations;

pub(crate) use run::panic_message;
pub(crate) use workers::{Held, Workers};

use crate::{
    ClusterResolver, CommunicationOptions, Device, Error, Mirrored, PerReplica, Result, Tensor, Variable, VariableMut,
    carrier::Carrier, context, device,
};
use consonance_kernels::team::Team;
use consonance_spec::Kind;
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
};

/// A strategy: a fixed set of replicas, and how their values are combined. All strategies share these methods.
///
/// Cloning gives another handle to the same strategy; handles can be used from several threads at once. Each kind is made into one
/// by `into`:
///
/// ```
/// use consonance::{Error, MirroredStrategy, OneDeviceStrategy, Strategy};
/// fn strategy(replicas: usize) -> Result<Strategy, Error> {
///     Ok(match replicas {
///         1 => OneDeviceStrategy::new("cpu:0")?.into(),
///         _ => MirroredStrategy::new((0..replicas).map(|replica| format!("cpu:{replica}")))?.into(),
///     })
/// }
/// assert_eq!(strategy(3)?.num_replicas_in_sync(), 3);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Strategy(Arc<Inner>);

struct Inner {
    name: &'static str,
    /// One for each replica of this process.
    devices: Vec<Device>,
    /// Where variables live: once on each device, or once on the parameter device.
    parameter_device: Option<Device>,
    /// Whether variables have a copy for each device, in meaning if not in memory.
    mirrors: bool,
    options: CommunicationOptions,
    pin_threads: bool,
    /// Who is in the cluster that the strategy was made for, if it was made for one.
    resolver: Option<Arc<dyn ClusterResolver>>,
    /// Where other processes have replicas, too.
    workers: Option<Workers>,
    /// Threads of runs that have ended, for the next.
    idle: Mutex<Vec<Team>>,
    /// Threads of overlaps that have ended, for the next.
    carriers: Mutex<Vec<Carrier>>,
}

/// How a strategy is made: devices first, then what differs from the default, then [`build`](Builder::build).
pub struct Builder<S> {
    name: &'static str,
    devices: Result<Vec<Device>>,
    parameter_device: Result<Option<Device>>,
    mirrors: bool,
    options: CommunicationOptions,
    pin_threads: bool,
    resolver: Option<Arc<dyn ClusterResolver>>,
    workers: Option<Workers>,
    wrap: fn(Strategy) -> S,
}

impl<S> Builder<S> {
    fn new<D>(name: &'static str, devices: impl IntoIterator<Item = D>, wrap: fn(Strategy) -> S) -> Builder<S>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        let devices = devices.into_iter().map(|wanted| device::resolve(name, wanted)).collect();
        let options = CommunicationOptions::new();
        let (parameter_device, resolver, workers) = (Ok(None), None, None);
        Builder {
            name,
            devices,
            parameter_device,
            mirrors: false,
            options,
            pin_threads: false,
            resolver,
            workers,
            wrap,
        }
    }

    fn parameter_device<D>(mut self, parameter_device: D) -> Self
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        self.parameter_device = device::resolve(self.name, parameter_device).map(Some);
        self
    }

    fn mirrors(mut self) -> Self {
        self.mirrors = true;
        self
    }

    /// Options of all collectives, where a call does not override them.
    pub fn options(mut self, options: CommunicationOptions) -> Self {
        self.options = options;
        self
    }

    /// Binds the thread of replica `i` to core `i`, modulo the cores that this process may use. By default the system places
    /// threads.
    pub fn pin_threads(mut self, pin: bool) -> Self {
        self.pin_threads = pin;
        self
    }

    /// Makes the strategy.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for an empty list of devices, a device that does not exist, or one that is listed twice.
    pub fn build(self) -> Result<S> {
        let (devices, parameter_device) = (self.devices?, self.parameter_device?);
        if devices.is_empty() {
            return Err(Error::invalid(self.name, "devices", "at least one device", "an empty list"));
        }
        if let Some(twice) = (1..devices.len()).find(|&place| devices[..place].contains(&devices[place])) {
            return Err(Error::invalid(self.name, "devices", "each device once", format!("{} twice", devices[twice])));
        }
        Ok((self.wrap)(Strategy(Arc::new(Inner {
            name: self.name,
            devices,
            parameter_device,
            mirrors: self.mirrors,
            options: self.options,
            pin_threads: self.pin_threads,
            resolver: self.resolver,
            workers: self.workers,
            idle: Mutex::default(),
            carriers: Mutex::default(),
        }))))
    }
}

impl Strategy {
    /// The strategy outside all strategies: one replica on the calling thread.
    pub fn default_strategy() -> Strategy {
        context::DEFAULT.clone()
    }

    pub(crate) fn make_default() -> Strategy {
        Builder::new("the default strategy", [Device::Cpu(0)], |strategy| strategy)
            .build()
            .expect("one device that exists")
    }

    /// The number of replicas, those of all processes.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.workers().map_or(self.0.devices.len(), Workers::num_replicas)
    }

    /// The replicas of this process: all, unless the strategy has several workers.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// assert_eq!(MirroredStrategy::new(["cpu:0", "cpu:1"])?.local_replicas(), 0..2);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn local_replicas(&self) -> Range<usize> {
        self.workers().map_or(0..self.0.devices.len(), Workers::local)
    }

    /// Whether this process has replica 0: of several workers the one that speaks for all, otherwise the only one.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// if strategy.is_chief() {
    ///     println!("training on {} replicas", strategy.num_replicas_in_sync());
    /// }
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn is_chief(&self) -> bool {
        self.local_replicas().start == 0
    }

    /// The device of each replica of this process.
    pub fn worker_devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// Where variables live.
    pub fn parameter_devices(&self) -> &[Device] {
        self.0.parameter_device.as_ref().map_or(&self.0.devices, std::slice::from_ref)
    }

    /// The options that the strategy was made with.
    pub fn options(&self) -> CommunicationOptions {
        self.0.options
    }

    /// Who is in the cluster that the strategy was made for; none, where it is for this process alone.
    pub fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.0.resolver.as_deref()
    }

    /// Runs `body` with this strategy as the [current one](crate::current_strategy) of this thread, in the cross-replica
    /// context. The same scope may be entered again inside.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, or in another strategy's scope.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, current_strategy, in_cross_replica_context};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let inside = strategy.scope(|| (current_strategy() == *strategy, in_cross_replica_context()))?;
    /// assert_eq!(inside, (true, true));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn scope<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        context::require_cross_replica("Strategy::scope", self)?;
        Ok(context::within(self, None, body))
    }

    /// Calls `value_fn` once for each replica of this process.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, or in another strategy's scope.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let array = [3.0, 2.0, 1.0];
    /// let values = strategy.distribute_values_from_function(|context| array[context.replica_id_in_sync_group])?;
    /// assert_eq!(strategy.local_results(&values), [3.0, 2.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_values_from_function<T>(&self, value_fn: impl FnMut(ValueContext) -> T) -> Result<PerReplica<T>> {
        context::require_cross_replica("Strategy::distribute_values_from_function", self)?;
        let num_replicas_in_sync = self.num_replicas_in_sync();
        let contexts = self
            .local_replicas()
            .map(|replica_id_in_sync_group| ValueContext { replica_id_in_sync_group, num_replicas_in_sync });
        Ok(PerReplica::new(contexts.map(value_fn).collect()))
    }

    /// The values of this process's replicas, in replica order; of a value that is one for all replicas, that value.
    pub fn local_results<V: LocalResults>(&self, value: &V) -> Vec<V::Value> {
        value.local_results()
    }

    /// `value`, the same on all devices.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// assert_eq!(strategy.local_results(&strategy.mirror("x")), ["x", "x"]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn mirror<T>(&self, value: T) -> Mirrored<T> {
        Mirrored::new(value, self.0.devices.clone())
    }

    /// Creates a [`Variable`] as this strategy places it; `initial_value` is called once. See [`Variable::builder`] for one that
    /// is synchronised or aggregated in another way.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, or in another strategy's scope.
    pub fn variable(&self, initial_value: impl FnOnce() -> Tensor) -> Result<Variable> {
        let call = "Strategy::variable";
        self.or_refuse(Kind::NewVariable, context::require_cross_replica(call, self))?;
        Variable::builder(initial_value).build_in(call, self.clone())
    }

    /// Calls `update` with each copy of `variable`, to write it in place, and gives what it returns for each. There is one copy
    /// for each memory, thus one in a process, or a component for each replica, in their order, if the variable is synchronised
    /// on reading: see [`Variable`].
    ///
    /// The arguments of an update are what the closure captures, so they are the same for every copy. The components of a
    /// variable that is synchronised on reading may come to differ, as the closure says. An update that fails or panics leaves
    /// what it has written.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, in another strategy's scope or in an update of the same variable;
    /// [`Error::InvalidCall`] for a variable of another strategy; [`Error::Timeout`] if an update on another thread does not
    /// end; the first error of `update`.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let weights = strategy.variable(|| Tensor::from([1.0f32, 2.0]))?;
    /// strategy.update(&weights, |copy| {
    ///     copy.as_mut_slice::<f32>()?.iter_mut().for_each(|weight| *weight *= 0.5);
    ///     Ok(())
    /// })?;
    /// assert_eq!(weights.read()?, Tensor::from([0.5f32, 1.0]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn update<R>(
        &self,
        variable: &Variable,
        update: impl FnMut(&mut VariableMut<'_>) -> Result<R>,
    ) -> Result<Vec<R>> {
        let call = "Strategy::update";
        context::require_cross_replica(call, self)?;
        if variable.strategy() != self {
            return Err(Error::invalid(
                call,
                "variable",
                format!("one of this strategy, {self}"),
                format!("one of another, {}", variable.strategy()),
            ));
        }
        variable.update_copies(call, update)
    }

    /// Whether variables have a copy for each device.
    pub(crate) fn has_mirrored_variables(&self) -> bool {
        self.0.mirrors
    }

    /// A thread for each replica of this process: those of an earlier run, or new ones.
    fn team(&self) -> Result<Team> {
        self.team_of(self.local_replicas().len())
    }

    /// So many threads, of an earlier call or new ones, the first of them the replicas'; a fork has none of those kept before it.
    fn team_of(&self, threads: usize) -> Result<Team> {
        let mut idle = self.0.idle.lock().expect("nobody panics holding the list");
        idle.retain(|team| !team.forked());
        if let Some(place) = idle.iter().position(|team| team.size() == threads) {
            return Ok(idle.swap_remove(place));
        }
        drop(idle);
        let first = self.local_replicas().start;
        let pinned = |thread: usize| self.0.pin_threads.then_some((first + thread) % device::cores());
        let places: Vec<_> = (0..threads).map(pinned).collect();
        Team::new("replica", &places)
            .map_err(|source| Error::System { what: format!("start the threads of {self}"), source })
    }

    /// A thread for the buckets of an overlap, if it is to have one: that of an earlier overlap, or a new one.
    pub(crate) fn carrier(&self, options: CommunicationOptions) -> Option<Carrier> {
        // A pinned replica's would be on the same core.
        let spare = || !self.0.pin_threads && device::cores() > self.num_replicas_in_sync();
        if !options.has_carriers().unwrap_or_else(spare) {
            return None;
        }
        let mut idle = self.0.carriers.lock().expect("nobody panics holding the list");
        idle.retain(|carrier| !carrier.forked());
        // Without a thread the replica does it itself.
        idle.pop().or_else(Carrier::start)
    }

    pub(crate) fn give_carrier_back(&self, carrier: Carrier) {
        self.0.carriers.lock().expect("nobody panics holding the list").push(carrier);
    }

    fn give_back(&self, team: Team) {
        self.0.idle.lock().expect("nobody panics holding the list").push(team);
    }
}

macro_rules! strategy_from {
    ($($kind:ident)*) => {
        $(
            /// The same strategy, as one of any kind.
            impl From<$kind> for Strategy {
                fn from(strategy: $kind) -> Strategy {
                    Strategy::clone(&strategy)
                }
            }
        )*
    };
}

strategy_from! { MirroredStrategy MultiWorkerMirroredStrategy CentralStorageStrategy OneDeviceStrategy }

/// Two handles to the same strategy are equal.
impl PartialEq for Strategy {
    fn eq(&self, other: &Strategy) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// `MirroredStrategy(cpu:0, cpu:1)`, `MultiWorkerMirroredStrategy(worker 1 of 2: cpu:0, cpu:1)`
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<String> = self.0.devices.iter().map(Device::to_string).collect();
        let worker = self.workers().map(|workers| format!("worker {} of {}: ", workers.worker(), workers.count()));
        write!(f, "{}({}{})", self.0.name, worker.unwrap_or_default(), devices.join(", "))
    }
}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What a function that makes a replica's value knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueContext {
    /// The replica, from 0, among those of all processes.
    pub replica_id_in_sync_group: usize,
    /// The number of replicas of all processes.
    pub num_replicas_in_sync: usize,
}

/// What [`Strategy::local_results`] takes.
pub trait LocalResults {
    /// One replica's value.
    type Value;

    /// The values of this process's replicas.
    fn local_results(&self) -> Vec<Self::Value>;
}

impl<T: Clone> LocalResults for PerReplica<T> {
    type Value = T;

    fn local_results(&self) -> Vec<T> {
        self.values().to_vec()
    }
}

/// The value on each of its devices.
impl<T: Clone> LocalResults for Mirrored<T> {
    type Value = T;

    fn local_results(&self) -> Vec<T> {
        vec![self.value().clone(); self.devices().len()]
    }
}

/// The tensor itself.
impl LocalResults for Tensor {
    type Value = Tensor;

    fn local_results(&self) -> Vec<Tensor> {
        vec![self.clone()]
    }
}
