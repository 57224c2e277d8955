//! A replica's communicator while it is in use.

use super::Workers;
use crate::Communicator;
use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// A lease on a replica's communicator. When it is dropped, a communicator with a home returns
/// there; one without a home leaves its group.
pub(crate) struct CommLease {
    /// The workers that keep the communicator, and the replica's position in this worker.
    home: Option<(Arc<Workers>, usize)>,
    /// `None` while it is lent.
    communicator: Option<Communicator>,
}

impl CommLease {
    /// Leases a communicator of these workers, for the replica at position `place` in this worker.
    pub(super) fn of_workers(workers: Arc<Workers>, place: usize, communicator: Option<Communicator>) -> CommLease {
        CommLease { home: Some((workers, place)), communicator }
    }

    /// Leases a communicator of one run, without a home.
    pub(crate) fn of_run(communicator: Communicator) -> CommLease {
        CommLease { home: None, communicator: Some(communicator) }
    }

    /// Returns the communicator, if it has no home.
    pub(crate) fn into_own(mut self) -> Option<Communicator> {
        if self.home.is_none() { self.communicator.take() } else { None }
    }

    /// Moves the communicator out for another thread of this process, which makes this replica's
    /// calls until it is [put back](CommLease::put_back).
    pub(crate) fn give_up(&mut self) -> Communicator {
        self.communicator.take().expect("nobody uses what is lent")
    }

    /// Puts the communicator back after [`give_up`](CommLease::give_up).
    pub(crate) fn put_back(&mut self, communicator: Communicator) {
        self.communicator = Some(communicator);
    }

    /// Sends the communicator home for a merge function, if it has a home.
    pub(crate) fn lend(&mut self) {
        if let Some((workers, place)) = &self.home
            && let Some(communicator) = self.communicator.take()
        {
            workers.put_home(*place, communicator);
        }
    }

    /// Takes the communicator from home again.
    pub(crate) fn take_back(&mut self) {
        if let Some((workers, place)) = &self.home
            && self.communicator.is_none()
        {
            self.communicator = Some(workers.take(*place));
        }
    }
}

impl Deref for CommLease {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        self.communicator.as_ref().expect("nobody uses what is lent")
    }
}

impl DerefMut for CommLease {
    fn deref_mut(&mut self) -> &mut Communicator {
        self.communicator.as_mut().expect("nobody uses what is lent")
    }
}

impl Drop for CommLease {
    fn drop(&mut self) {
        if let Some((workers, place)) = &self.home
            && let Some(mut communicator) = self.communicator.take()
        {
            // This replica makes no more calls in the run. A replica of this process that waits for
            // it fails instead of timing out.
            communicator.set_idle(workers.local(), true);
            workers.put_home(*place, communicator);
        }
    }
}
