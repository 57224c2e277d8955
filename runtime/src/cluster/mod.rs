//! The processes of the cluster and the task of this process: the seam [`ClusterResolver`] and its
//! implementations.
//!
//! A resolver reads its environment once, when it is made, and checks it. After that it is a value
//! that does not change. Resolvers that read environment variables can also read them from a
//! function from names to values.

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
pub(crate) mod server_roles;
mod starter;
pub(crate) mod environment;
#[cfg(target_os = "linux")]
pub(crate) mod unique_id;
#[cfg(target_os = "linux")]
mod roster;
#[cfg(target_os = "linux")]
pub(crate) mod group_builder;
#[cfg(target_os = "linux")]
mod hosts;
mod links;
#[cfg(target_os = "linux")]
mod replacements;
#[cfg(target_os = "linux")]
pub(crate) mod process_group;
#[cfg(target_os = "linux")]
pub(crate) mod pair;

pub use hostlist::{expand_hostlist, expand_tasks_per_node};
pub use kubernetes::KubernetesClusterResolver;
pub use sagemaker::SageMakerClusterResolver;
pub use simple::SimpleClusterResolver;
pub use slurm::{SlurmBuilder, SlurmClusterResolver};
pub use spec::ClusterSpec;
pub use tf_config::TfConfigClusterResolver;
pub use union::UnionResolver;

pub use role::Role;

use crate::{Error, Result};
use std::{collections::BTreeMap, env, fmt};

/// The rule by which one side of a broken network goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Majority {
    Needed,
    /// A person has decided that the other side does not.
    Waived,
}

/// The limit on the number of tasks and on task indices. More are taken for a mistake: the largest
/// machines have about a tenth of it.
const MAX_TASKS: usize = 1 << 20;

/// Resolves the cluster of a program and the task of this process.
///
/// A custom resolver stores its findings in a [`SimpleClusterResolver`] and returns that from
/// [`resolved`](ClusterResolver::resolved). The other methods have defaults.
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
    /// Returns the findings of this resolver as plain values.
    fn resolved(&self) -> &SimpleClusterResolver;

    /// Returns all jobs with the addresses of their tasks. Empty for a program that runs alone.
    fn cluster_spec(&self) -> &ClusterSpec {
        &self.resolved().cluster
    }

    /// Returns the job of this process, if it is known.
    fn task_type(&self) -> Option<&str> {
        self.resolved().task.as_ref().map(|(task_type, _)| task_type.as_str())
    }

    /// Returns the index of this process in its job. It is known if
    /// [`task_type`](ClusterResolver::task_type) is.
    fn task_id(&self) -> Option<usize> {
        self.resolved().task.as_ref().map(|&(_, task_id)| task_id)
    }

    /// Returns whether this process is the chief, which does the work that is to be done once, such
    /// as writing a checkpoint. The chief is the task `chief` if the cluster has one, else the
    /// first worker. A program that runs alone is its own chief.
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

    /// Returns the protocol prefix of addresses in [`master`](ClusterResolver::master), if one is
    /// set.
    fn rpc_layer(&self) -> Option<&str> {
        self.resolved().rpc_layer.as_deref()
    }

    /// Returns the number of accelerators of a task by their type (`GPU`). Only types that the
    /// environment reports are listed.
    fn num_accelerators(&self) -> &BTreeMap<String, usize> {
        &self.resolved().accelerators
    }

    /// Returns the address of a task with its protocol: `grpc://host:port`. Arguments that are
    /// `None` default to this process's task and protocol. The result is empty if no task is known.
    /// Some resolvers have TensorFlow's exceptions from this rule; their docs list them.
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

/// Returns the address, with the protocol as a prefix if there is one.
fn url(address: &str, rpc_layer: Option<&str>) -> String {
    match rpc_layer {
        None | Some("") => address.to_owned(),
        Some(rpc_layer) => format!("{rpc_layer}://{address}"),
    }
}

/// Returns a variable of this process's environment. Bytes that are not Unicode become characters
/// that no name or number contains.
pub(crate) fn process_environment(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Parses the number in a variable.
fn number(call: &'static str, name: &str, text: &str) -> Result<usize> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| Error::invalid(call, name, "a whole number", format!("{text:?}")))
}

/// Converts the error of a nested call to one of `call`, and prefixes its argument.
fn inside(error: Error, call: &'static str, prefix: &str) -> Error {
    match error {
        Error::InvalidCall { argument, expected, found, .. } => {
            Error::invalid(call, format!("{prefix}{argument}"), expected, found)
        }
        error => error,
    }
}
