//! Settings that all workers of a strategy have in common.

use super::Strategy;
use crate::{Error, Result};
use consonance_kernels::digest::{digest, mix};
use std::sync::Mutex;

/// The settings that the workers compare when they meet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    /// The number of grains, if that is not the number of replicas.
    pub(crate) grains: Option<usize>,
    pub(crate) seed: u64,
    /// The cluster in words; empty if the strategy was made for this process only.
    pub(crate) cluster: String,
}

impl Common {
    /// Checks that there is a grain for each of so many replicas.
    pub(crate) fn check_grains(&self, call: &'static str, replicas: usize) -> Result<()> {
        match self.grains {
            Some(grains) if grains < replicas => {
                let expected = format!("at least one for each of {replicas} replicas");
                Err(Error::invalid(call, "grains", expected, grains.to_string()))
            }
            Some(0) => Err(Error::invalid(call, "grains", "at least one", "0")),
            _ => Ok(()),
        }
    }

    /// Returns 64 bits that differ if the settings differ.
    pub(super) fn digest(&self) -> u64 {
        let grains = mix(self.grains.is_some().into(), self.grains.unwrap_or(0) as u64);
        mix(mix(digest(&self.cluster), grains), self.seed)
    }

    /// Returns each setting with its value, for errors.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let grains = self.grains.map_or_else(|| "none".to_owned(), |grains| grains.to_string());
        let lines = [("cluster", self.cluster.clone()), ("grains", grains), ("seed", self.seed.to_string())];
        lines.map(|(setting, value)| (setting.to_owned(), value)).to_vec()
    }
}

/// Returns a number that no other group of this process has.
pub(super) fn next_group() -> u64 {
    static GROUPS: Mutex<u64> = Mutex::new(0);
    let mut groups = GROUPS.lock().expect("nobody panics counting groups");
    *groups += 1;
    *groups
}

impl Strategy {
    /// Returns the number of this strategy's group in this process. A reform gives it another one.
    pub(crate) fn group_number(&self) -> u64 {
        self.workers().map_or(self.0.group, |workers| workers.group())
    }

    /// Returns the number of grains, the parts of a step that are contributions of their own: that
    /// of [`Builder::grains`](crate::Builder::grains), or the number of replicas. See the guide's
    /// page on [any number of replicas](crate::guide::grains).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// assert_eq!(MirroredStrategy::new(["cpu:0", "cpu:1"])?.grains(), 2);
    /// assert_eq!(MirroredStrategy::builder(["cpu:0", "cpu:1"]).grains(8).build()?.grains(), 8);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn grains(&self) -> usize {
        self.common().grains.unwrap_or_else(|| self.num_replicas_in_sync())
    }

    /// Returns whether the number of grains is set.
    pub(crate) fn has_grains(&self) -> bool {
        self.common().grains.is_some()
    }
}
