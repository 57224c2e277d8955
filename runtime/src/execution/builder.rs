//! The builder of strategies.

use super::{Common, Engines, Inner, Placement, StaticShapes, Strategy, Workers, common_settings::next_group};
use crate::{
    ClusterResolver, CommunicationOptions, Device, Error, Result, cluster::Role, comm::engine::Engine, device,
};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

/// Builds a strategy: the devices first, then settings that differ from the default, then
/// [`build`](Builder::build).
pub struct Builder<S> {
    name: &'static str,
    devices: Result<Vec<Device>>,
    placement: Result<Placement>,
    options: CommunicationOptions,
    common: Common,
    pin_threads: bool,
    static_shapes: Option<StaticShapes>,
    resolver: Option<Arc<dyn ClusterResolver>>,
    workers: Option<Arc<Workers>>,
    engines: Engines,
    wrap: fn(Strategy) -> S,
}

impl<S> Builder<S> {
    pub(crate) fn new<D>(
        name: &'static str,
        devices: impl IntoIterator<Item = D>,
        wrap: fn(Strategy) -> S,
    ) -> Builder<S>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        let devices = devices.into_iter().map(|wanted| device::resolve(name, wanted)).collect();
        let (options, common) = (CommunicationOptions::new(), Common::default());
        let (placement, resolver, workers, engines) = (Ok(Placement::PerDevice), None, None, Engines::LOCAL);
        Builder {
            name,
            devices,
            placement,
            options,
            common,
            pin_threads: false,
            static_shapes: None,
            resolver,
            workers,
            engines,
            wrap,
        }
    }

    /// Keeps variables on `device` only.
    pub(crate) fn central<D>(mut self, device: D) -> Self
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        self.placement = device::resolve(self.name, device).map(Placement::Central);
        self
    }

    /// Keeps variables on the first device only.
    pub(crate) fn on_first_device(mut self) -> Self {
        if let Ok([device, ..]) = self.devices.as_deref() {
            self.placement = Ok(Placement::Central(*device));
        }
        self
    }

    /// Sets the cluster, the settings that all workers have in common, the workers if there are
    /// several, and the engines of this one.
    pub(crate) fn cluster(
        mut self,
        resolver: Arc<dyn ClusterResolver>,
        common: Common,
        workers: Option<Workers>,
        engines: Engines,
    ) -> Self {
        (self.resolver, self.common) = (Some(resolver), common);
        (self.workers, self.engines) = (workers.map(Arc::new), engines);
        self
    }

    /// Sets the options of all collectives. A call can override them.
    pub fn options(mut self, options: CommunicationOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the number of grains: parts of a step that are contributions of their own, with a fixed
    /// place in the order of every sum. Replica `i` of `n` has block `i` of them: of 8 grains on 3
    /// replicas these are 3, 3 and 2. Results have the bits of as many replicas with one grain
    /// each, whatever the number of replicas. By default each replica is one grain. See the guide's
    /// page on [any number of replicas](crate::guide::grains).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1", "cpu:2"]).grains(8).build()?;
    /// let grains = strategy.run(|replica| Ok(replica.grains()))?;
    /// assert_eq!(grains.values(), [0..3, 3..6, 6..8]);
    /// assert!(MirroredStrategy::builder(["cpu:0", "cpu:1", "cpu:2"]).grains(2).build().is_err());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn grains(mut self, grains: usize) -> Self {
        self.common.grains = Some(grains);
        self
    }

    /// Sets the seed of [`ReplicaContext::seed`](crate::ReplicaContext::seed). By default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.common.seed = seed;
        self
    }

    /// Binds the thread of replica `i` to core `i`, modulo the cores that this process may use. By
    /// default the system places threads.
    pub fn pin_threads(mut self, pin: bool) -> Self {
        self.pin_threads = pin;
        self
    }

    /// Makes the strategy refuse what a TPU would refuse: see [`StaticShapes`]. `None` undoes that.
    ///
    /// [`CentralStorageStrategy`](crate::CentralStorageStrategy) refuses the option, unless the
    /// parameter device is its only device: a TPU keeps variables on each replica.
    ///
    /// ```
    /// use consonance::{CentralStorageStrategy, OneDeviceStrategy, StaticShapes};
    /// let strategy = OneDeviceStrategy::builder("cpu:0").static_shapes(StaticShapes::new()).build()?;
    /// assert!(strategy.static_shapes().is_some());
    /// let central = CentralStorageStrategy::builder(["cpu:0", "cpu:1"], "cpu:0").static_shapes(StaticShapes::new());
    /// assert!(central.build().is_err());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn static_shapes(mut self, shapes: impl Into<Option<StaticShapes>>) -> Self {
        self.static_shapes = shapes.into();
        self
    }

    /// Executes the replicas' collectives on custom engines. `make` takes the replicas' devices and
    /// the role of this process, and returns an engine for each replica, in rank order. It is
    /// called before the first run or cross-replica call, before one whose engines cannot go on
    /// from the last one, and for one beside another. By default replicas share memory.
    ///
    /// The engines execute the replicas' calls, and the cross-replica calls such as
    /// [`Strategy::reduce`], each on a thread of its own. A call beside a run, or in a merge
    /// function, is on a group of its own.
    ///
    /// ```
    /// # use consonance::{MirroredStrategy, Result, raw::Engine};
    /// fn on(make: fn(usize) -> Vec<Box<dyn Engine>>) -> Result<MirroredStrategy> {
    ///     let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]);
    ///     strategy.engines(move |devices, _role| Ok(make(devices.len()))).build()
    /// }
    /// ```
    pub fn engines(
        mut self,
        make: impl Fn(&[Device], &Role) -> Result<Vec<Box<dyn Engine>>> + Send + Sync + 'static,
    ) -> Self {
        self.engines.make = Some(Box::new(make));
        self
    }

    /// Makes the strategy.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for an empty list of devices, a device that does not exist, one that
    /// is listed twice, fewer grains than replicas, or static shapes with variables on a parameter
    /// device.
    pub fn build(self) -> Result<S> {
        let (devices, placement) = (check_devices(self.name, self.devices?)?, self.placement?);
        // Variables of a strategy with one device may be on that device only.
        let is_apart = matches!(placement, Placement::Central(device) if devices != [device]);
        if self.static_shapes.is_some() && is_apart {
            let expected = "a strategy with variables on each replica, as on a TPU";
            return Err(Error::invalid(self.name, "static_shapes", expected, "variables on a parameter device"));
        }
        let replicas = self.workers.as_ref().map_or(devices.len(), |workers| workers.num_replicas());
        self.common.check_grains(self.name, replicas)?;
        Ok((self.wrap)(Strategy(Arc::new(Inner {
            group: next_group(),
            name: self.name,
            devices,
            placement,
            options: self.options,
            common: self.common,
            pin_threads: self.pin_threads,
            static_shapes: self.static_shapes,
            resolver: self.resolver,
            workers: self.workers,
            engines: self.engines,
            idle: Mutex::default(),
            kept: Mutex::default(),
            threads: Mutex::default(),
        }))))
    }
}

/// Returns the devices of a strategy.
///
/// # Errors
/// [`Error::InvalidCall`] for an empty list, or a device that is listed twice.
pub(crate) fn check_devices(call: &'static str, devices: Vec<Device>) -> Result<Vec<Device>> {
    if devices.is_empty() {
        return Err(Error::invalid(call, "devices", "at least one device", "an empty list"));
    }
    match (1..devices.len()).find(|&place| devices[..place].contains(&devices[place])) {
        Some(twice) => Err(Error::invalid(call, "devices", "each device once", format!("{} twice", devices[twice]))),
        None => Ok(devices),
    }
}

impl Strategy {
    fn make_default() -> Strategy {
        Builder::new("DefaultStrategy", [Device::Cpu(0)], |strategy| strategy)
            .on_first_device()
            .build()
            .expect("one device that exists")
    }
}

/// The default strategy, in effect outside all others.
pub(super) static DEFAULT: LazyLock<Strategy> = LazyLock::new(Strategy::make_default);

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("devices", &self.devices)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
