//! Who is in the cluster, and which of them this process is: the seam [`ClusterResolver`] and its
//! implementations.
//!
//! A resolver reads its surroundings once, when it is made, and checks all that it read; afterwards
//! it is a value that says the same always. Every resolver but [`UnionResolver`] can be given an
//! environment other than the process's, as a function from names to values.

mod spec;
mod simple;
mod tf_config;
mod union;
mod slurm;
mod hostlist;
mod kubernetes;
mod sagemaker;
mod json;
mod role;
#[cfg(target_os = "linux")]
pub(crate) mod process_group;

pub use hostlist::{expand_hostlist, expand_tasks_per_node};
pub use kubernetes::KubernetesClusterResolver;
pub use sagemaker::SageMakerClusterResolver;
pub use simple::SimpleClusterResolver;
pub use slurm::{SlurmBuilder, SlurmClusterResolver};
pub use spec::ClusterSpec;
pub use tf_config::TfConfigClusterResolver;
pub use union::UnionResolver;

pub(crate) use role::{Role, check_on_this_host};

use crate::{Error, Result};
use std::{collections::BTreeMap, env, fmt};

/// More tasks than this, or a task index beyond it, are a mistake in a number: the largest machines
/// have a tenth of it.
const MAX_TASKS: usize = 1 << 20;

/// What a program wants to know of its cluster.
///
/// A resolver of your own finds out what there is to know, makes a [`SimpleClusterResolver`] of it,
/// and returns that from [`resolved`](ClusterResolver::resolved); the other methods follow.
///
/// ```
/// use consonance::{ClusterResolver, ClusterSpec, SimpleClusterResolver};
///
/// #[derive(Debug)]
/// struct Fixed(SimpleClusterResolver);
///
/// impl ClusterResolver for Fixed {
///     fn resolved(&self) -> &SimpleClusterResolver {
///         &self.0
///     }
/// }
///
/// let cluster = ClusterSpec::new().job("worker", ["host0:2222", "host1:2222"])?;
/// let resolver = Fixed(SimpleClusterResolver::new(cluster).with_task("worker", 1)?);
/// assert_eq!((resolver.task_type(), resolver.task_id()), (Some("worker"), Some(1)));
/// assert_eq!(resolver.cluster_spec().num_tasks("worker")?, 2);
/// assert_eq!(resolver.master(None, None, Some("grpc"))?, "grpc://host1:2222");
/// # Ok::<(), consonance::Error>(())
/// ```
pub trait ClusterResolver: fmt::Debug + Send + Sync {
    /// What this resolver found, as plain values.
    fn resolved(&self) -> &SimpleClusterResolver;

    /// All jobs with the addresses of their tasks; empty for a program that runs by itself.
    fn cluster_spec(&self) -> &ClusterSpec {
        &self.resolved().cluster
    }

    /// The job that this process belongs to, where that is known.
    fn task_type(&self) -> Option<&str> {
        self.resolved().task.as_ref().map(|(task_type, _)| task_type.as_str())
    }

    /// The index of this process in its job. It is known if
    /// [`task_type`](ClusterResolver::task_type) is.
    fn task_id(&self) -> Option<usize> {
        self.resolved().task.as_ref().map(|&(_, task_id)| task_id)
    }

    /// Whether this process is the one that does what is to be done once: writes a checkpoint, or a
    /// report. It is the `chief` of a cluster that has one, else its first worker; a program that
    /// runs by itself is its own chief.
    ///
    /// ```
    /// use consonance::{ClusterResolver, TfConfigClusterResolver};
    /// let text = |index| format!(r#"{{"cluster": {{"worker": ["a:1", "b:1"]}}, "task": {{"type": "worker", "index": {index}}}}}"#);
    /// assert!(TfConfigClusterResolver::from_text(&text(0))?.is_chief());
    /// assert!(!TfConfigClusterResolver::from_text(&text(1))?.is_chief());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    fn is_chief(&self) -> bool {
        let cluster = self.cluster_spec();
        let (chief, tasks) = match cluster.tasks("chief") {
            Some(tasks) => ("chief", Some(tasks)),
            None => ("worker", cluster.tasks("worker")),
        };
        match (self.task_type(), self.task_id()) {
            (Some(job), Some(index)) if !cluster.is_empty() => {
                job == chief && tasks.and_then(|tasks| tasks.keys().next()) == Some(&index)
            }
            _ => true,
        }
    }

    /// The protocol that addresses begin with in [`master`](ClusterResolver::master), where one is
    /// set.
    fn rpc_layer(&self) -> Option<&str> {
        self.resolved().rpc_layer.as_deref()
    }

    /// How many accelerators a task has, by their type (`GPU`), as far as the surroundings tell.
    fn num_accelerators(&self) -> &BTreeMap<String, usize> {
        &self.resolved().accelerators
    }

    /// The address of a task with its protocol: `grpc://host:port`. What is not given is this
    /// process's own; without a task it is empty. Some resolvers have TensorFlow's exceptions from
    /// that, which they name.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the cluster has no such task.
    fn master(&self, task_type: Option<&str>, task_id: Option<usize>, rpc_layer: Option<&str>) -> Result<String> {
        match (task_type.or(self.task_type()), task_id.or(self.task_id())) {
            (Some(job), Some(index)) => {
                Ok(url(self.cluster_spec().task_address(job, index)?, rpc_layer.or(self.rpc_layer())))
            }
            _ => Ok(String::new()),
        }
    }
}

/// The address after its protocol, if it has one.
fn url(address: &str, rpc_layer: Option<&str>) -> String {
    match rpc_layer {
        None | Some("") => address.to_owned(),
        Some(rpc_layer) => format!("{rpc_layer}://{address}"),
    }
}

/// A variable of this process's environment. What is not Unicode becomes characters that no name or
/// number has.
fn process_environment(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The number in a variable.
fn number(call: &'static str, name: &str, text: &str) -> Result<usize> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| Error::invalid(call, name, "a whole number", format!("{text:?}")))
}

/// The error as `call`'s, whose argument contains what was wrong.
fn inside(error: Error, call: &'static str, prefix: &str) -> Error {
    match error {
        Error::InvalidCall { argument, expected, found, .. } => {
            Error::invalid(call, format!("{prefix}{argument}"), expected, found)
        }
        error => error,
    }
}
