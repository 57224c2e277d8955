//! What a strategy is made of: its replicas and devices, its group of workers, the threads and
//! communicators that it keeps, and where a thread is among strategies.

mod builder;
pub(crate) mod context;
mod lease;
mod turns;
mod worker_group;

pub use builder::Builder;
pub(crate) use lease::CommLease;
pub(crate) use worker_group::{CallGuard, Workers};

use crate::{
    ClusterResolver, CommunicationOptions, Communicator, Device, Error, Result,
    comm::{engine::Engine, options::Configuration, overlap_thread::CommThread},
    device,
};
use consonance_kernels::os::thread_pool::Team;
use consonance_spec::World;
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
};

/// A strategy: a fixed set of replicas, and how their values are combined. All strategies share
/// these methods.
///
/// Cloning gives another handle to the same strategy; handles can be used from several threads at
/// once. Each kind is made into one by `into`:
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

/// Where a strategy keeps its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// A copy on each device, in meaning if not in memory.
    PerDevice,
    /// One copy, on this device.
    Central(Device),
}

/// Makes an engine for each of so many replicas.
type Engines = Box<dyn Fn(usize) -> Result<Vec<Box<dyn Engine>>> + Send + Sync>;

struct Inner {
    name: &'static str,
    /// One for each replica of this process.
    devices: Vec<Device>,
    placement: Placement,
    options: CommunicationOptions,
    pin_threads: bool,
    /// Who is in the cluster that the strategy was made for, if it was made for one.
    resolver: Option<Arc<dyn ClusterResolver>>,
    /// Where other processes have replicas, too.
    workers: Option<Arc<Workers>>,
    /// How a group is made for the replicas of this process; none for ranks that share memory.
    engines: Option<Engines>,
    /// Threads of runs that have ended, for the next.
    idle: Mutex<Vec<Team>>,
    /// The communicators of the last run that has ended, where there are no other workers, for the
    /// next.
    kept: Mutex<Option<Vec<Communicator>>>,
    /// Threads of overlaps that have ended, for the next.
    carriers: Mutex<Vec<CommThread>>,
}

impl Strategy {
    /// The workers, where there are several.
    pub(crate) fn workers(&self) -> Option<&Arc<Workers>> {
        self.0.workers.as_ref()
    }

    /// The number of replicas, those of all processes.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.workers().map_or(self.0.devices.len(), |workers| workers.num_replicas())
    }

    /// The replicas of this process: all, unless the strategy has several workers.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// assert_eq!(MirroredStrategy::new(["cpu:0", "cpu:1"])?.local_replicas(), 0..2);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn local_replicas(&self) -> Range<usize> {
        self.workers().map_or(0..self.0.devices.len(), |workers| workers.local())
    }

    /// Whether this process has replica 0: of several workers the one that speaks for all,
    /// otherwise the only one.
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
        match &self.0.placement {
            Placement::PerDevice => &self.0.devices,
            Placement::Central(device) => std::slice::from_ref(device),
        }
    }

    /// The options that the strategy was made with.
    pub fn options(&self) -> CommunicationOptions {
        self.0.options
    }

    /// Who is in the cluster that the strategy was made for; none, where it is for this process
    /// alone.
    pub fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.0.resolver.as_deref()
    }

    /// Whether each replica's thread is bound to a core.
    pub(crate) fn pins_threads(&self) -> bool {
        self.0.pin_threads
    }

    /// Whether variables have a copy for each device.
    pub(crate) fn has_mirrored_variables(&self) -> bool {
        self.0.placement == Placement::PerDevice
    }

    /// A thread for each replica of this process: those of an earlier run, or new ones.
    fn team(&self) -> Result<Team> {
        self.team_of(self.local_replicas().len())
    }

    /// So many threads, of an earlier call or new ones, the first of them the replicas'; a fork has
    /// none of those kept before it.
    pub(crate) fn team_of(&self, threads: usize) -> Result<Team> {
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

    /// The communicators of a run of this process alone: those of an earlier run that has ended, or
    /// new ones.
    pub(crate) fn group(&self, configuration: Configuration) -> Result<Vec<Communicator>> {
        let kept = self.0.kept.lock().expect("nobody panics holding what is kept").take();
        if let Some(mut kept) = kept
            && Communicator::begin_run(&mut kept)
        {
            kept.iter_mut().for_each(|communicator| communicator.configure(configuration));
            return Ok(kept);
        }
        let replicas = self.0.devices.len();
        let Some(engines) = &self.0.engines else { return Ok(Communicator::group(replicas, configuration)) };
        let engines = engines(replicas)?;
        let worlds: Vec<World> = engines.iter().map(|engine| engine.world()).collect();
        if !worlds.iter().copied().eq((0..replicas).filter_map(|rank| World::new(rank, replicas))) {
            let expected = format!("one for each of {replicas} replicas, in rank order");
            return Err(Error::invalid(self.0.name, "engines", expected, format!("{worlds:?}")));
        }
        Ok(engines.into_iter().map(|engine| Communicator::on(engine, configuration)).collect())
    }

    /// Keeps the communicators of a run for the next one. (Of two runs at a time those of one are
    /// kept.)
    pub(crate) fn keep(&self, communicators: Vec<Communicator>) {
        *self.0.kept.lock().expect("nobody panics holding what is kept") = Some(communicators);
    }

    /// A thread for the buckets of an overlap, if it is to have one: that of an earlier overlap, or
    /// a new one.
    pub(crate) fn carrier(&self, options: CommunicationOptions) -> Option<CommThread> {
        // A pinned replica's would be on the same core.
        let spare = || !self.0.pin_threads && device::cores() > self.num_replicas_in_sync();
        if !options.has_carriers().unwrap_or_else(spare) {
            return None;
        }
        let mut idle = self.0.carriers.lock().expect("nobody panics holding the list");
        idle.retain(|carrier| !carrier.forked());
        // Without a thread the replica does it itself.
        idle.pop().or_else(CommThread::start)
    }

    pub(crate) fn give_carrier_back(&self, carrier: CommThread) {
        self.0.carriers.lock().expect("nobody panics holding the list").push(carrier);
    }

    pub(crate) fn give_back(&self, team: Team) {
        self.0.idle.lock().expect("nobody panics holding the list").push(team);
    }

    /// How many teams are kept.
    #[cfg(test)]
    pub(crate) fn kept_teams(&self) -> usize {
        self.0.idle.lock().expect("nobody panics holding the list").len()
    }
}

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
