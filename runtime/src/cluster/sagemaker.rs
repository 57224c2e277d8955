//! The resolver of SageMaker, by its environment variables or its file.

use super::{ClusterResolver, ClusterSpec, SimpleClusterResolver, inside, json::Json, number, process_environment};
use crate::{Error, Result};
use std::fs;

const CALL: &str = "SageMakerClusterResolver";
const HOSTS: &str = "SM_HOSTS";
const CURRENT_HOST: &str = "SM_CURRENT_HOST";
const GPUS: &str = "SM_NUM_GPUS";

/// SageMaker's file with the same values as the variables. Containers without its training toolkit
/// have only the file.
const FILE: &str = "/opt/ml/input/config/resourceconfig.json";

/// Resolves the hosts of a SageMaker training job. All are workers, sorted by the numbers in their
/// names (`algo-2` before `algo-10`); the order of the list does not matter.
///
/// ```
/// use consonance::{ClusterResolver, cluster::SageMakerClusterResolver};
/// let resolver = SageMakerClusterResolver::from_environment(2223, |name| {
///     let value = match name {
///         "SM_HOSTS" => r#"["algo-10", "algo-1", "algo-2"]"#,
///         "SM_CURRENT_HOST" => "algo-2",
///         "SM_NUM_GPUS" => "8",
///         _ => return None,
///     };
///     Some(value.to_owned())
/// })?;
/// assert_eq!(resolver.cluster_spec().to_string(), r#"{"worker":["algo-1:2223","algo-2:2223","algo-10:2223"]}"#);
/// assert_eq!((resolver.task_id(), resolver.num_accelerators()["GPU"]), (Some(1), 8));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SageMakerClusterResolver {
    resolved: SimpleClusterResolver,
}

impl SageMakerClusterResolver {
    /// Reads `SM_HOSTS`, `SM_CURRENT_HOST` and `SM_NUM_GPUS` of this process's environment. If
    /// `SM_HOSTS` is not set, reads `/opt/ml/input/config/resourceconfig.json` instead. `port` is
    /// the port of each worker (2223 in TensorFlow).
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if a variable is missing or malformed, or if the current host is not
    /// among the hosts; also as [`ClusterSpec::job`]. [`Error::System`] if the file cannot be read.
    pub fn new(port: u16) -> Result<SageMakerClusterResolver> {
        if process_environment(HOSTS).is_some() {
            return SageMakerClusterResolver::from_environment(port, process_environment);
        }
        let text = fs::read_to_string(FILE)
            .map_err(|source| Error::system(format!("{CALL}: {HOSTS} is not set; reading {FILE}"), source))?;
        SageMakerClusterResolver::from_resource_config(port, &text)
    }

    /// Reads the environment that the function returns, and no file.
    ///
    /// # Errors
    /// As [`new`](SageMakerClusterResolver::new).
    pub fn from_environment(
        port: u16,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<SageMakerClusterResolver> {
        let set = |name| {
            environment(name).ok_or_else(|| Error::invalid(CALL, name, "a variable that SageMaker sets", "none"))
        };
        let hosts = Json::parse(CALL, HOSTS, &set(HOSTS)?)?;
        let mut resolver = resolver(port, HOSTS, &hosts, CURRENT_HOST, &Json::Text(set(CURRENT_HOST)?))?;
        if let Some(gpus) = environment(GPUS) {
            resolver.resolved = resolver.resolved.with_num_accelerators("GPU", number(CALL, GPUS, &gpus)?);
        }
        Ok(resolver)
    }

    /// Parses the text of a `resourceconfig.json`.
    ///
    /// # Errors
    /// As [`new`](SageMakerClusterResolver::new).
    ///
    /// ```
    /// use consonance::{ClusterResolver, cluster::SageMakerClusterResolver};
    /// let text = r#"{"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"}"#;
    /// let resolver = SageMakerClusterResolver::from_resource_config(2223, text)?;
    /// assert_eq!(resolver.master(None, None, None)?, "algo-1:2223");
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_resource_config(port: u16, text: &str) -> Result<SageMakerClusterResolver> {
        let config = Json::parse(CALL, "resourceconfig.json", text)?;
        let part = |key| config.get(key).unwrap_or(&Json::Null);
        resolver(
            port,
            "resourceconfig.json: hosts",
            part("hosts"),
            "resourceconfig.json: current_host",
            part("current_host"),
        )
    }
}

/// Makes the resolver of these hosts. `list` and `own` are the argument names in errors.
fn resolver(port: u16, list: &str, hosts: &Json, own: &str, current: &Json) -> Result<SageMakerClusterResolver> {
    let invalid = |argument, expected, found: &Json| Err(Error::invalid(CALL, argument, expected, found.to_string()));
    let Json::List(entries) = hosts else {
        return invalid(list, "a list of hosts", hosts);
    };
    let mut hosts = Vec::new();
    for host in entries {
        match host {
            Json::Text(host) => hosts.push(host.as_str()),
            other => return invalid(list, "a list of text", other),
        }
    }
    hosts.sort_by_cached_key(|host| {
        let digits = host.len() - host.trim_end_matches(|character: char| character.is_ascii_digit()).len();
        let (name, digits) = host.split_at(host.len() - digits);
        // A number that does not fit a `u64` sorts last, as text.
        (name, digits.parse().unwrap_or(u64::MAX), digits)
    });
    let index = hosts.iter().position(|host| matches!(current, Json::Text(current) if current == host));
    let Some(index) = index else {
        return invalid(own, "one of the hosts", current);
    };
    let addresses = hosts.iter().map(|host| format!("{host}:{port}"));
    let cluster =
        ClusterSpec::new().job("worker", addresses).map_err(|error| inside(error, CALL, &format!("{list}: ")))?;
    let resolved = SimpleClusterResolver::new(cluster).with_checked_task(CALL, "task ", "worker", index)?;
    Ok(SageMakerClusterResolver { resolved })
}

impl ClusterResolver for SageMakerClusterResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        &self.resolved
    }
}

#[cfg(test)]
mod tests {
    use super::SageMakerClusterResolver;

    #[test]
    fn malformed_surroundings_are_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"hosts": "algo-1", "current_host": "algo-1"}"#,
            r#"{"hosts": ["algo-1", 2], "current_host": "algo-1"}"#,
            r#"{"hosts": ["algo-1"], "current_host": "algo-2"}"#,
            r#"{"hosts": ["algo-1"], "current_host": 1}"#,
            r#"{"hosts": ["algo-1", "algo-1"], "current_host": "algo-1"}"#,
            r#"{"hosts": ["algo 1"], "current_host": "algo 1"}"#,
        ] {
            assert!(SageMakerClusterResolver::from_resource_config(2223, text).is_err(), "{text}");
        }
    }
}
