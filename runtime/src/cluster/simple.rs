//! The resolver whose values are all given by the caller.

use super::{ClusterResolver, ClusterSpec, url};
use crate::Result;
use std::collections::BTreeMap;

/// Returns the values that it was given. Every other resolver stores its findings in one of these.
///
/// ```
/// use consonance::{ClusterResolver, ClusterSpec, SimpleClusterResolver};
/// let cluster = ClusterSpec::new().job("worker", ["worker0.example.com:2222", "worker1.example.com:2222"])?;
/// let resolver = SimpleClusterResolver::new(cluster)
///     .with_task("worker", 0)?
///     .with_num_accelerators("GPU", 8)
///     .with_rpc_layer("grpc");
/// assert_eq!(resolver.task_type(), Some("worker"));
/// assert_eq!(resolver.num_accelerators()["GPU"], 8);
/// assert_eq!(resolver.master(Some("worker"), Some(1), None)?, "grpc://worker1.example.com:2222");
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleClusterResolver {
    pub(super) cluster: ClusterSpec,
    /// The job of this process and its index in the job.
    pub(super) task: Option<(String, usize)>,
    /// Empty if it is not set.
    pub(super) master: String,
    pub(super) rpc_layer: Option<String>,
    pub(super) accelerators: BTreeMap<String, usize>,
}

impl SimpleClusterResolver {
    /// Makes a resolver with a cluster and nothing else.
    pub fn new(cluster: ClusterSpec) -> SimpleClusterResolver {
        let accelerators = BTreeMap::new();
        SimpleClusterResolver { cluster, task: None, master: String::new(), rpc_layer: None, accelerators }
    }

    /// Sets the task of this process.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if the cluster has no such task. A cluster
    /// without jobs accepts any task, and an evaluator need not be in the cluster.
    pub fn with_task(self, task_type: &str, task_id: usize) -> Result<SimpleClusterResolver> {
        self.with_checked_task("SimpleClusterResolver::with_task", "task ", task_type, task_id)
    }

    /// Sets the address that [`master`](ClusterResolver::master) returns without a task.
    pub fn with_master(mut self, master: &str) -> SimpleClusterResolver {
        self.master = master.to_owned();
        self
    }

    /// Sets the protocol.
    pub fn with_rpc_layer(mut self, rpc_layer: &str) -> SimpleClusterResolver {
        self.rpc_layer = Some(rpc_layer.to_owned());
        self
    }

    /// Sets the number of accelerators of a type of each task.
    pub fn with_num_accelerators(mut self, accelerator: &str, count: usize) -> SimpleClusterResolver {
        self.accelerators.insert(accelerator.to_owned(), count);
        self
    }

    /// Checks and sets the task. Errors name the arguments `{task}type` and `{task}index` of
    /// `call`.
    pub(super) fn with_checked_task(
        mut self,
        call: &'static str,
        task: &str,
        task_type: &str,
        task_id: usize,
    ) -> Result<SimpleClusterResolver> {
        self.cluster.check_task(call, task, task_type, task_id)?;
        self.task = Some((task_type.to_owned(), task_id));
        Ok(self)
    }
}

impl ClusterResolver for SimpleClusterResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        self
    }

    /// Returns the address of the given task. Unless both its type and its id are given, returns
    /// the address that [`with_master`](SimpleClusterResolver::with_master) set.
    fn master(&self, task_type: Option<&str>, task_id: Option<usize>, rpc_layer: Option<&str>) -> Result<String> {
        let address = match (task_type, task_id) {
            (Some(job), Some(index)) => self.cluster.task_address(job, index)?,
            _ => &self.master,
        };
        Ok(url(address, rpc_layer.or(self.rpc_layer())))
    }
}
