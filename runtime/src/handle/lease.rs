//! A replica's communicator while it is in use.

use super::Workers;
use crate::Communicator;
use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// A replica's communicator in use. One that has a home goes there when this is dropped; another
/// one leaves its group.
pub(crate) struct CommLease {
    /// The workers that it belongs to, and the replica's place among those of this one.
    home: Option<(Arc<Workers>, usize)>,
    /// None while it is lent.
    communicator: Option<Communicator>,
}

impl CommLease {
    /// A communicator of these workers: of the replica at `place` among those of this one.
    pub(super) fn of_workers(workers: Arc<Workers>, place: usize, communicator: Option<Communicator>) -> CommLease {
        CommLease { home: Some((workers, place)), communicator }
    }

    /// A communicator of one run.
    pub(crate) fn of_run(communicator: Communicator) -> CommLease {
        CommLease { home: None, communicator: Some(communicator) }
    }

    /// The communicator, if it has no home.
    pub(crate) fn into_own(mut self) -> Option<Communicator> {
        if self.home.is_none() { self.communicator.take() } else { None }
    }

    /// Gives it up to another thread of this process, which makes this replica's calls until it is
    /// [put back](CommLease::put_back).
    pub(crate) fn give_up(&mut self) -> Communicator {
        self.communicator.take().expect("nobody uses what is lent")
    }

    /// Puts back what was given up.
    pub(crate) fn put_back(&mut self, communicator: Communicator) {
        self.communicator = Some(communicator);
    }

    /// Lends it to a merge function, if it has a home.
    pub(crate) fn lend(&mut self) {
        if let Some((workers, place)) = &self.home
            && let Some(communicator) = self.communicator.take()
        {
            workers.put_home(*place, communicator);
        }
    }

    /// Takes it back.
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
            // This replica makes no more calls in the run: who waits for it in this process is told
            // so.
            communicator.set_idle(workers.local(), true);
            workers.put_home(*place, communicator);
        }
    }
}
