//! The parts of a strategy: its replicas and devices, its group of workers, the threads and
//! communicators that it keeps, and the context of the running thread.

mod builder;
mod claims;
mod common_settings;
pub(crate) mod context;
mod engines;
mod lease;
pub(crate) mod random;
mod static_shapes;
mod turns;
mod worker_group;

pub use builder::Builder;
pub(crate) use builder::check_devices;
pub(crate) use common_settings::Common;
pub(crate) use engines::{Engines, MakeEngines};
pub(crate) use lease::CommLease;
pub use static_shapes::{Compilations, StaticShapes};
pub(crate) use worker_group::{CallGuard, Workers};

use crate::{
    ClusterResolver, CommunicationOptions, Communicator, Device, Error, Result,
    comm::{kept_thread::KeptThread, options::Configuration},
    device,
};
use consonance_kernels::{memory::Space, os::thread_pool::Team};
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
};

/// A strategy: a fixed set of replicas and the way in which their values are combined. All kinds of
/// strategies share these methods.
///
/// A clone is another handle to the same strategy. Several threads can use handles at once. `into`
/// converts each kind of strategy:
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

/// The placement of a strategy's variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// A copy on each device. Devices with a common memory share one copy.
    PerDevice,
    /// One copy, on this device.
    Central(Device),
}

struct Inner {
    name: &'static str,
    /// The number of its group in this process, without other workers.
    group: u64,
    /// One for each replica of this process.
    devices: Vec<Device>,
    placement: Placement,
    options: CommunicationOptions,
    common: Common,
    pin_threads: bool,
    static_shapes: Option<StaticShapes>,
    /// The resolver of the cluster that the strategy was made for, if any.
    resolver: Option<Arc<dyn ClusterResolver>>,
    /// The workers, if other processes have replicas, too.
    workers: Option<Arc<Workers>>,
    engines: Engines,
    /// Thread teams of finished runs, for reuse.
    idle: Mutex<Vec<Team>>,
    /// The groups of finished runs and calls, for reuse; only without other workers.
    kept: Mutex<Vec<Vec<Communicator>>>,
    /// Threads of finished overlaps, for reuse.
    threads: Mutex<Vec<KeptThread>>,
}

impl Strategy {
    /// Returns the workers, if there are several.
    pub(crate) fn workers(&self) -> Option<&Arc<Workers>> {
        self.0.workers.as_ref()
    }

    /// Returns the number of replicas in all processes.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.workers().map_or(self.0.devices.len(), |workers| workers.num_replicas())
    }

    /// Returns the replicas of this process: all, unless the strategy has several workers.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// assert_eq!(MirroredStrategy::new(["cpu:0", "cpu:1"])?.local_replicas(), 0..2);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn local_replicas(&self) -> Range<usize> {
        self.workers().map_or(0..self.0.devices.len(), |workers| workers.local())
    }

    /// Returns whether this process has replica 0. With several workers this is the chief, which
    /// acts for all; a single process always has it.
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

    /// Returns the device of each replica of this process.
    pub fn worker_devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// Returns the devices that hold variables.
    pub fn parameter_devices(&self) -> &[Device] {
        match &self.0.placement {
            Placement::PerDevice => &self.0.devices,
            Placement::Central(device) => std::slice::from_ref(device),
        }
    }

    /// Returns the memories that hold variables, each once, the host's first.
    pub(crate) fn parameter_spaces(&self) -> Vec<Space> {
        let mut spaces: Vec<Space> = self.parameter_devices().iter().map(|device| device.space()).collect();
        spaces.sort_unstable();
        spaces.dedup();
        spaces
    }

    /// Returns the options that the strategy was made with.
    pub fn options(&self) -> CommunicationOptions {
        self.0.options
    }

    /// Returns the resolver of the cluster that the strategy was made for. `None` if it was made
    /// for this process only.
    pub fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.0.resolver.as_deref()
    }

    /// Returns the settings that all workers have in common.
    pub(crate) fn common(&self) -> &Common {
        &self.0.common
    }

    /// Returns whether each replica's thread is pinned to a core.
    pub(crate) fn pins_threads(&self) -> bool {
        self.0.pin_threads
    }

    /// Returns whether variables have a copy for each device.
    pub(crate) fn has_mirrored_variables(&self) -> bool {
        match self.0.placement {
            Placement::PerDevice => true,
            Placement::Central(_) => false,
        }
    }

    /// Returns a thread for each replica of this process: the team of an earlier run, or a new one.
    fn team(&self) -> Result<Team> {
        self.team_of(self.local_replicas().len())
    }

    /// Returns a team of `threads` threads, kept from an earlier call or new. The first threads are
    /// those of the replicas. Teams that were started before a `fork` are discarded in the child.
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
        Team::new("replica", &places).map_err(|source| Error::system(format!("start the threads of {self}"), source))
    }

    /// Returns the communicators of a run or call of this process only: those of an earlier one, or
    /// new ones.
    pub(crate) fn group(&self, configuration: Configuration) -> Result<Vec<Communicator>> {
        let kept = self.0.kept.lock().expect("nobody panics holding what is kept").pop();
        if let Some(mut kept) = kept
            && Communicator::begin_run(&mut kept)
        {
            kept.iter_mut().for_each(|communicator| communicator.configure(configuration));
            return Ok(kept);
        }
        self.0.engines.communicators(self.0.name, &self.0.devices, configuration)
    }

    /// Keeps the communicators of a run or call for the next one.
    pub(crate) fn keep(&self, communicators: Vec<Communicator>) {
        self.0.kept.lock().expect("nobody panics holding what is kept").push(communicators);
    }

    /// Returns whether the replicas are threads of this process that share the host's memory.
    pub(crate) fn shares_memory(&self) -> bool {
        self.workers().is_none()
            && self.0.engines.share_memory()
            && self.0.devices.iter().all(|device| device.gpu().is_none())
    }

    /// Runs `work(i)` for each `i` below `threads`, each on its own thread. A single one runs on
    /// this thread.
    pub(crate) fn on_threads(&self, threads: usize, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
        if threads == 1 {
            work(0);
            return Ok(());
        }
        let mut team = self.team_of(threads)?;
        team.run(work);
        self.give_back(team);
        Ok(())
    }

    /// Returns a thread for the buckets of an overlap, kept or new. `None` if the options or the
    /// number of cores exclude one, or the system cannot start one.
    pub(crate) fn take_thread(&self, options: CommunicationOptions) -> Option<KeptThread> {
        // The thread of a pinned replica would inherit its core.
        let spare = || !self.0.pin_threads && device::cores() > self.num_replicas_in_sync();
        if !options.has_background_threads().unwrap_or_else(spare) {
            return None;
        }
        let mut idle = self.0.threads.lock().expect("nobody panics holding the list");
        idle.retain(|thread| !thread.forked());
        // Without a thread the replica all-reduces the buckets itself.
        idle.pop().or_else(|| KeptThread::start("buckets").ok())
    }

    pub(crate) fn keep_thread(&self, thread: KeptThread) {
        self.0.threads.lock().expect("nobody panics holding the list").push(thread);
    }

    pub(crate) fn give_back(&self, team: Team) {
        self.0.idle.lock().expect("nobody panics holding the list").push(team);
    }

    /// Returns the number of teams that are kept.
    #[cfg(test)]
    pub(crate) fn kept_teams(&self) -> usize {
        self.0.idle.lock().expect("nobody panics holding the list").len()
    }
}

/// Handles to the same strategy are equal.
impl PartialEq for Strategy {
    fn eq(&self, other: &Strategy) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Prints `MirroredStrategy(cpu:0, cpu:1)` or `MultiWorkerMirroredStrategy(worker 1 of 2: cpu:0,
/// cpu:1)`.
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
