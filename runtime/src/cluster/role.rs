//! The role of a process in its cluster, and the question whether all workers are on one host.

use super::ClusterResolver;
use crate::{Error, Result};
use std::{
    fs,
    net::{IpAddr, UdpSocket},
};

/// The role of a process in its cluster: which of the workers it is. A strategy's engines are
/// chosen by it, and by the devices of the replicas.
///
/// The workers are the `chief`, if there is one, then the tasks `worker` by index. Replicas are
/// numbered in this order.
#[derive(Clone, Debug)]
pub struct Role {
    workers: Vec<(String, String)>,
    worker: usize,
    /// The number of the cluster's parameter servers, which have no replicas.
    servers: usize,
}

impl Role {
    /// The role of a process that runs alone.
    pub(crate) const ALONE: Role = Role { workers: Vec::new(), worker: 0, servers: 0 };

    /// Returns the name of each worker's task, such as `worker[1]`, and its address. Empty for a
    /// program that runs alone.
    pub fn workers(&self) -> &[(String, String)] {
        &self.workers
    }

    /// Returns the position of this process among the workers; 0 for a program that runs alone.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Returns whether other processes have replicas, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.workers.len() > 1
    }

    /// Returns the role of this process. An evaluator is not part of the cluster that it evaluates,
    /// and runs alone.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is another task, or if the cluster has no task that
    /// trains.
    pub(crate) fn of(call: &'static str, resolver: &dyn ClusterResolver) -> Result<Role> {
        let cluster = resolver.cluster_spec();
        if cluster.is_empty() || resolver.task_type() == Some("evaluator") {
            return Ok(Role::ALONE);
        }
        let tasks = ["chief", "worker"].into_iter().filter_map(|job| Some((job, cluster.tasks(job)?)));
        let tasks: Vec<_> =
            tasks.flat_map(|(job, tasks)| tasks.iter().map(move |(&index, address)| (job, index, address))).collect();
        if tasks.is_empty() {
            let found = format!("jobs {}", cluster.jobs().join(", "));
            return Err(Error::invalid(call, "cluster", "a job chief or a job worker", found));
        }
        let (Some(job), Some(index)) = (resolver.task_type(), resolver.task_id()) else {
            let expected = "the type and index of this process, since the cluster has jobs";
            return Err(Error::invalid(call, "task", expected, "none"));
        };
        let worker = tasks.iter().position(|task| (task.0, task.1) == (job, index)).ok_or_else(|| {
            let expected = match job {
                "ps" => "a chief or a worker: a ps is for ParameterServerStrategy",
                _ => "a chief or a worker: no other task has replicas",
            };
            Error::invalid(call, "task", expected, format!("{job}[{index}]"))
        })?;
        let name = |(job, index, address): (&str, usize, &String)| (format!("{job}[{index}]"), address.clone());
        let servers = cluster.tasks("ps").map_or(0, |tasks| tasks.len());
        Ok(Role { workers: tasks.into_iter().map(name).collect(), worker, servers })
    }

    /// Returns what the first worker tells the user of parameter servers, which a program may have
    /// been written for. `None` if there are none.
    pub(crate) fn idle_servers(&self) -> Option<String> {
        let servers = match self.servers {
            0 => return None,
            1 => "the ps task of the cluster takes no part".to_owned(),
            count => format!("the {count} ps tasks of the cluster take no part"),
        };
        let why = "each worker has a copy of every variable; ParameterServerStrategy uses them";
        Some(format!("{servers}: {why}")).filter(|_| self.worker == 0)
    }
}

impl Role {
    /// Returns whether a worker is on another host than this process, by its address.
    pub(crate) fn spans_hosts(&self) -> bool {
        let own_name = host_name();
        self.workers.iter().any(|(_, address)| !is_here(host_of(address), own_name.as_deref()))
    }
}

/// Returns whether this is the name or an address of this host, as far as it can be known without a
/// network.
pub(super) fn is_on_this_host(host: &str) -> bool {
    is_here(host, host_name().as_deref())
}

/// Returns the host of `host:port`, without the brackets of an IPv6 address.
pub(super) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns whether `host` is this host, whose name is `own_name`: by its full name, its name up to
/// the first dot, or an address. Makes no network request.
fn is_here(host: &str, own_name: Option<&str>) -> bool {
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return is_own(address);
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    own_name.is_some_and(|own| {
        // Compare two full names in full.
        let is_short = !(host.contains('.') && own.contains('.'));
        host.eq_ignore_ascii_case(own) || is_short && short(host) == short(own)
    })
}

/// Returns whether this host has the address: a socket can be bound only to an own address.
fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && (address.is_loopback() || UdpSocket::bind((address, 0)).is_ok())
}

/// Returns the name of this host, if the system has it in a file or a variable.
pub(super) fn host_name() -> Option<String> {
    let name =
        fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| super::process_environment("HOSTNAME"))?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ClusterSpec, SimpleClusterResolver,
        fields::{found, refusal},
    };

    fn role(cluster: &str, task: Option<(&str, usize)>) -> Result<Role> {
        let resolver = SimpleClusterResolver::new(cluster.parse()?);
        let resolver = match task {
            Some((job, index)) => resolver.with_task(job, index)?,
            None => resolver,
        };
        Role::of("call", &resolver)
    }

    #[test]
    fn the_chief_comes_before_the_workers() {
        let cluster = r#"{"ps": ["p:1"], "worker": {"1": "a:1", "4": "b:1"}, "chief": ["c:1"], "evaluator": ["e:1"]}"#;
        for (task, worker) in [(("chief", 0), 0), (("worker", 1), 1), (("worker", 4), 2)] {
            let role = role(cluster, Some(task)).unwrap();
            assert_eq!(role.worker, worker);
            let workers: Vec<_> = role.workers.iter().map(|(task, address)| format!("{task} {address}")).collect();
            assert_eq!(workers, ["chief[0] c:1", "worker[1] a:1", "worker[4] b:1"]);
        }
        let outside = role(cluster, Some(("evaluator", 0))).unwrap();
        assert!(outside.workers.is_empty());
        assert!(role("{}", None).unwrap().workers.is_empty());
    }

    #[test]
    fn the_first_worker_tells_of_parameter_servers() {
        let told = |cluster, task| role(cluster, Some(task)).unwrap().idle_servers();
        let cluster = r#"{"ps": ["p:1", "p:2"], "worker": ["a:1", "a:2"], "evaluator": ["e:1"]}"#;
        let said = told(cluster, ("worker", 0)).unwrap();
        assert_eq!(
            said,
            "the 2 ps tasks of the cluster take no part: each worker has a copy of every variable; \
             ParameterServerStrategy uses them"
        );
        assert_eq!(told(cluster, ("worker", 1)), None);
        assert_eq!(told(cluster, ("evaluator", 0)), None);
        assert_eq!(told(r#"{"worker": ["a:1"]}"#, ("worker", 0)), None);
        let said = told(r#"{"worker": {"3": "a:1"}, "ps": ["p:1"]}"#, ("worker", 3)).unwrap();
        assert!(said.starts_with("the ps task of the cluster takes no part: "), "{said}");
    }

    #[test]
    fn a_task_without_replicas_is_refused() {
        let refused = |cluster, task, argument: &str, value: &str| {
            let error = role(cluster, task).err().unwrap();
            assert_eq!((refusal(&error), found(&error)), (("call", argument, None), value));
        };
        let cluster = r#"{"worker": ["a:1"], "ps": ["p:1"]}"#;
        refused(cluster, Some(("ps", 0)), "task", "ps[0]");
        refused(r#"{"worker": ["a:1"], "judge": ["j:1"]}"#, Some(("judge", 0)), "task", "judge[0]");
        refused(cluster, None, "task", "none");
        refused(r#"{"ps": ["p:1"]}"#, Some(("ps", 0)), "cluster", "jobs ps");
    }

    #[test]
    fn this_host_is_known_by_its_names_and_addresses() {
        for here in ["localhost", "LOCALHOST", "127.0.0.1", "127.3.2.1", "::1", "node7", "Node7.example.com"] {
            assert!(is_here(here, Some("node7.example.com")), "{here}");
        }
        assert!(is_here("node7.example.com", Some("node7")));
        // Addresses reserved for documentation, and other names: this host has none of them.
        for elsewhere in ["192.0.2.1", "2001:db8::1", "node8", "node7.example.org", "0.0.0.0"] {
            assert!(!is_here(elsewhere, Some("node7.example.com")), "{elsewhere}");
        }
        assert_eq!((host_of("[::1]:22"), host_of("node7:22")), ("::1", "node7"));
    }

    #[test]
    fn a_worker_on_another_host_is_seen_by_its_address() {
        let spans = |workers: [&str; 2]| {
            let cluster = ClusterSpec::new().job("worker", workers).unwrap();
            let resolver = SimpleClusterResolver::new(cluster).with_task("worker", 0).unwrap();
            Role::of("call", &resolver).unwrap().spans_hosts()
        };
        assert!(spans(["localhost:1", "192.0.2.1:1"]));
        assert!(!spans(["localhost:1", "127.0.0.1:1"]));
    }
}
