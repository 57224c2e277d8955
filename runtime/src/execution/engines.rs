//! The engines of a strategy's replicas: chosen here, by the devices of the replicas and by the
//! role of this process.

use crate::{
    Communicator, Device, Error, Result,
    cluster::Role,
    comm::{
        engine::{self, Engine},
        options::Configuration,
    },
    device,
};
use consonance_spec::World;

/// Takes the devices of this process's replicas and the role of the process, and makes an engine
/// for each replica.
pub(crate) type MakeEngines = Box<dyn Fn(&[Device], &Role) -> Result<Vec<Box<dyn Engine>>> + Send + Sync>;

/// The choice of the engines of a strategy's replicas in this process.
pub(crate) struct Engines {
    pub(crate) role: Role,
    /// Makes engines of a crate of the user's.
    pub(crate) make: Option<MakeEngines>,
}

impl Engines {
    /// The engines of replicas that are all in this process, by their devices.
    pub(crate) const LOCAL: Engines = Engines { role: Role::ALONE, make: None };

    /// Returns whether the replicas are threads of this process that share the host's memory.
    pub(crate) fn share_memory(&self) -> bool {
        self.make.is_none() && !self.role.is_shared()
    }

    /// Returns whether the workers are processes that form a group.
    pub(crate) fn are_of_processes(&self) -> bool {
        self.make.is_none() && self.role.is_shared()
    }

    /// Makes a communicator for each replica of this process, in rank order: on engines of the
    /// user's if there are some, else on those of the devices.
    ///
    /// # Errors
    /// Those of the engines; [`Error::InvalidCall`] if they are others than the replicas.
    pub(crate) fn communicators(
        &self,
        call: &'static str,
        devices: &[Device],
        configuration: Configuration,
    ) -> Result<Vec<Communicator>> {
        let engines = match &self.make {
            Some(make) => make(devices, &self.role)?,
            None => engine::local(call, devices, configuration)?,
        };
        let (replicas, worlds) = (devices.len(), engines.iter().map(|engine| engine.world()).collect::<Vec<_>>());
        // The replicas of other workers are not known yet.
        if self.role.is_shared() && engines.len() != replicas {
            let expected = format!("one for each of {replicas} replicas of this worker");
            return Err(Error::invalid(call, "engines", expected, engines.len().to_string()));
        }
        let all = (0..replicas).filter_map(|rank| World::new(rank, replicas));
        if !self.role.is_shared() && !worlds.iter().copied().eq(all) {
            let expected = format!("one for each of {replicas} replicas, in rank order");
            return Err(Error::invalid(call, "engines", expected, format!("{worlds:?}")));
        }
        let mut all: Vec<_> = engines.into_iter().map(|engine| Communicator::on(engine, configuration)).collect();
        all.iter_mut().for_each(|communicator| communicator.mixed = device::are_mixed(devices));
        Ok(all)
    }
}
