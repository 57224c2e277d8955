//! The settings of a group of processes.

use super::roster::{Job, Locality};
use crate::{ClusterResolver, CommunicationOptions, Result, comm::options};
use consonance_kernels::{shm::Shape, wire::Wire};
use std::{fmt, sync::Arc, time::Duration};

/// Builds a [`ProcessGroup`](crate::ProcessGroup): the cluster first, then settings that differ
/// from the default, then [`join`](Self::join).
#[must_use]
pub struct ProcessGroupBuilder {
    pub(super) job: Job,
    pub(super) replicas: usize,
    pub(super) options: CommunicationOptions,
    pub(super) timeout: Duration,
    pub(super) staging_bytes: usize,
    pub(super) reads_directly: Option<bool>,
    pub(super) locality: Locality,
    pub(super) wires: Option<Arc<dyn Fn() -> Wire + Send + Sync>>,
    pub(super) on_wait: Arc<dyn Fn(&str) + Send + Sync>,
}

impl ProcessGroupBuilder {
    pub(crate) fn new(resolver: Arc<dyn ClusterResolver>) -> ProcessGroupBuilder {
        ProcessGroupBuilder::of(Job::Cluster(resolver))
    }

    pub(super) fn of(job: Job) -> ProcessGroupBuilder {
        ProcessGroupBuilder {
            job,
            replicas: 1,
            options: CommunicationOptions::new(),
            timeout: options::DEFAULT_TIMEOUT,
            staging_bytes: Shape::STAGING_BYTES,
            reads_directly: None,
            locality: Locality::Memory,
            wires: None,
            on_wait: Arc::new(|text| eprintln!("consonance: {text}")),
        }
    }

    /// Sets the number of ranks in this process, each for a thread of its own. The default is 1.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets the options of all collectives. Communicators use the timeout of a call and the
    /// implementation of all-reduces.
    pub fn options(mut self, options: CommunicationOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets how long this process waits for the others to form a group: more than zero and at most
    /// a day. The default is 5 minutes.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) for any other timeout.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self> {
        self.timeout = options::check_timeout("ProcessGroup::timeout", timeout)?;
        Ok(self)
    }

    /// Sets the limit on a rank's staging memory in each group, in bytes: a multiple of 2 KiB.
    /// The default is 1 MiB. Larger data passes through it in windows. The memory is allocated when
    /// it is needed.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Sets whether ranks read large data directly from their peers' memory (`process_vm_readv`).
    /// The group tests whether the system allows it. If a process disables it, or cannot do it, all
    /// ranks stage their data in shared memory. By default it is enabled if there is a core for
    /// each rank; with fewer cores it is slower. Results do not depend on it.
    pub fn reads_directly(mut self, reads_directly: bool) -> Self {
        self.reads_directly = Some(reads_directly);
        self
    }

    /// Sets whether the processes meet at their addresses and send all data over a network, also
    /// those of one host. By default these share memory, alone or among processes of other hosts.
    /// Results do not depend on it. All processes must set the same. A group
    /// [by an id](crate::ProcessGroup::with_id) of one host takes no notice of it. If
    /// `CONSONANCE_WIRE` is set to `ucx` or `mpi`, other groups of one host do the same.
    ///
    /// ```
    /// use consonance::{ProcessGroup, TfConfigClusterResolver};
    /// let group = ProcessGroup::builder(TfConfigClusterResolver::new()?).over_wire(true).join()?;
    /// assert_eq!(group.size(), 1, "a program that runs alone needs no network");
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn over_wire(mut self, over_wire: bool) -> Self {
        self.locality = if over_wire { Locality::Wire } else { Locality::Memory };
        self
    }

    /// Sets the function that reports, in words, the processes that this one waits for. It is
    /// called after 2 seconds, and then every 10 seconds. The default prints to standard error.
    pub fn on_wait(mut self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_wait = Arc::new(tell);
        self
    }
}

impl fmt::Debug for ProcessGroupBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroupBuilder")
            .field("replicas", &self.replicas)
            .field("options", &self.options)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
