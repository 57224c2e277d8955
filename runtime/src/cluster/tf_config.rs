//! The resolver of the environment variable `TF_CONFIG`.

use super::{ClusterResolver, ClusterSpec, SimpleClusterResolver, inside, json::Json, process_environment, url};
use crate::{Error, Result};
use std::fmt;

const CALL: &str = "TfConfigClusterResolver";
const VARIABLE: &str = "TF_CONFIG";

/// Reads `TF_CONFIG`: JSON with the `cluster`, this process's `task`, and optionally an `rpc_layer`
/// and a `session_master`. Other keys are ignored. The index of the task may be a number or its
/// text, as in TensorFlow.
///
/// ```
/// use consonance::{ClusterResolver, TfConfigClusterResolver};
/// let resolver = TfConfigClusterResolver::from_text(
///     r#"{
///         "cluster": {"chief": ["host0:2222"], "worker": {"0": "host1:2222", "2": "host3:2222"}},
///         "task": {"type": "worker", "index": 2}
///     }"#,
/// )?;
/// assert_eq!((resolver.task_type(), resolver.task_id()), (Some("worker"), Some(2)));
/// assert_eq!(resolver.cluster_spec().jobs(), ["chief", "worker"]);
/// assert_eq!(resolver.master(None, None, None)?, "host3:2222");
/// # Ok::<(), consonance::Error>(())
/// ```
///
/// Errors name the position of the fault:
///
/// ```
/// # use consonance::TfConfigClusterResolver;
/// let error = TfConfigClusterResolver::from_text(r#"{"cluster": {"worker": ["host0:2222", ""]}}"#).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"TfConfigClusterResolver: TF_CONFIG: cluster.worker[1]: expected host:port, found """#
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TfConfigClusterResolver {
    resolved: SimpleClusterResolver,
}

impl TfConfigClusterResolver {
    /// Reads this process's environment. If `TF_CONFIG` is not set or is empty, the cluster has no
    /// jobs.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if it is not JSON, if a key occurs twice, if there is a task and no
    /// cluster, or if a part of the task is missing or has the wrong type; also as
    /// [`ClusterSpec::job`], [`ClusterSpec::sparse_job`] and [`SimpleClusterResolver::with_task`].
    pub fn new() -> Result<TfConfigClusterResolver> {
        TfConfigClusterResolver::from_environment(process_environment)
    }

    /// Reads the environment that the function returns.
    ///
    /// # Errors
    /// As [`new`](TfConfigClusterResolver::new).
    ///
    /// ```
    /// use consonance::{ClusterResolver, TfConfigClusterResolver};
    /// let resolver = TfConfigClusterResolver::from_environment(|_name| None)?;
    /// assert!(resolver.cluster_spec().is_empty());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_environment(environment: impl Fn(&str) -> Option<String>) -> Result<TfConfigClusterResolver> {
        match environment(VARIABLE) {
            Some(text) if !text.is_empty() => TfConfigClusterResolver::from_text(&text),
            _ => Ok(TfConfigClusterResolver { resolved: SimpleClusterResolver::new(ClusterSpec::new()) }),
        }
    }

    /// Reads the text of a `TF_CONFIG`.
    ///
    /// # Errors
    /// As [`new`](TfConfigClusterResolver::new), and if the text is empty.
    pub fn from_text(text: &str) -> Result<TfConfigClusterResolver> {
        let config = Json::parse(CALL, VARIABLE, text)?;
        let invalid = |path: &str, expected: &str, found: &Json| {
            Err(Error::invalid(CALL, format!("{VARIABLE}{path}"), expected, found.to_string()))
        };
        if !matches!(config, Json::Object(_)) {
            return invalid("", "an object", &config);
        }
        let cluster = match config.get("cluster") {
            // A process that forgot this level would train alone, as would all others.
            None if config.get("task").is_some() || config.get("worker").is_some() => {
                return invalid(": cluster", "the jobs of the cluster", &config);
            }
            None => ClusterSpec::new(),
            Some(jobs @ Json::Object(_)) => {
                ClusterSpec::from_json(jobs).map_err(|error| inside(error, CALL, &format!("{VARIABLE}: cluster.")))?
            }
            Some(other) => return invalid(": cluster", "an object from job to tasks", other),
        };
        let mut resolved = SimpleClusterResolver::new(cluster);
        match config.get("task") {
            None => (),
            Some(task @ Json::Object(_)) => {
                let task_type = match task.get("type").unwrap_or(&Json::Null) {
                    Json::Text(text) => text,
                    other => return invalid(": task.type", "text (a job of the cluster)", other),
                };
                let index = task.get("index").unwrap_or(&Json::Null);
                let Some(task_id) = task_id(index) else {
                    return invalid(": task.index", "a whole number from 0", index);
                };
                resolved = resolved.with_checked_task(CALL, &format!("{VARIABLE}: task."), task_type, task_id)?;
            }
            Some(other) => return invalid(": task", "an object with a type and an index", other),
        }
        match config.get("rpc_layer") {
            None | Some(Json::Null) => (),
            Some(Json::Text(layer)) => resolved = resolved.with_rpc_layer(layer),
            Some(other) => return invalid(": rpc_layer", "text", other),
        }
        match config.get("session_master") {
            None | Some(Json::Null) => (),
            Some(Json::Text(master)) => resolved = resolved.with_master(master),
            Some(other) => return invalid(": session_master", "text", other),
        }
        Ok(TfConfigClusterResolver { resolved })
    }

    /// Sets the task of this process. Overrides `TF_CONFIG`.
    ///
    /// # Errors
    /// As [`SimpleClusterResolver::with_task`].
    pub fn with_task(self, task_type: &str, task_id: usize) -> Result<TfConfigClusterResolver> {
        let call = "TfConfigClusterResolver::with_task";
        Ok(TfConfigClusterResolver { resolved: self.resolved.with_checked_task(call, "task ", task_type, task_id)? })
    }

    /// Sets the protocol. Overrides `TF_CONFIG`.
    pub fn with_rpc_layer(self, rpc_layer: &str) -> TfConfigClusterResolver {
        TfConfigClusterResolver { resolved: self.resolved.with_rpc_layer(rpc_layer) }
    }
}

/// Parses a number, or the text of one.
fn task_id(json: &Json) -> Option<usize> {
    match json {
        Json::Integer(number) => usize::try_from(*number).ok(),
        Json::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

impl ClusterResolver for TfConfigClusterResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        &self.resolved
    }

    /// Returns the `session_master`, if there is one. Otherwise the result is empty if the cluster
    /// has no jobs, or only one job with only task 0. Otherwise returns the address of the given
    /// task; arguments that are `None` default to this process's task.
    fn master(&self, task_type: Option<&str>, task_id: Option<usize>, rpc_layer: Option<&str>) -> Result<String> {
        let SimpleClusterResolver { cluster, master, .. } = &self.resolved;
        if !master.is_empty() {
            return Ok(master.clone());
        }
        let alone = match cluster.jobs().as_slice() {
            [] => true,
            [job] => cluster.task_indices(job)? == [0],
            _ => false,
        };
        if alone {
            return Ok(String::new());
        }
        let call = "TfConfigClusterResolver::master";
        let missing = |argument| Error::invalid(call, argument, "one, for TF_CONFIG has no task", "none");
        let job = task_type.or(self.task_type()).ok_or_else(|| missing("task_type"))?;
        let index = task_id.or(self.task_id()).ok_or_else(|| missing("task_id"))?;
        Ok(url(cluster.task_address(job, index)?, rpc_layer.or(self.rpc_layer())))
    }
}

/// Prints a `TF_CONFIG` that parses to the same values.
///
/// ```
/// use consonance::TfConfigClusterResolver;
/// let text = r#"{"cluster":{"worker":["host0:2222","host1:2222"]},"task":{"type":"worker","index":0}}"#;
/// let resolver = TfConfigClusterResolver::from_text(text)?;
/// assert_eq!(resolver.to_string(), text);
/// let next = resolver.with_task("worker", 1)?;
/// assert!(next.to_string().ends_with(r#""task":{"type":"worker","index":1}}"#));
/// # Ok::<(), consonance::Error>(())
/// ```
impl fmt::Display for TfConfigClusterResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimpleClusterResolver { cluster, task, master, rpc_layer, .. } = &self.resolved;
        let text = |text: &str| Json::Text(text.to_owned()).text();
        write!(f, r#"{{"cluster":{cluster}"#)?;
        if let Some((task_type, task_id)) = task {
            write!(f, r#","task":{{"type":{},"index":{task_id}}}"#, text(task_type))?;
        }
        if let Some(rpc_layer) = rpc_layer {
            write!(f, r#","rpc_layer":{}"#, text(rpc_layer))?;
        }
        if !master.is_empty() {
            write!(f, r#","session_master":{}"#, text(master))?;
        }
        f.write_str("}")
    }
}
