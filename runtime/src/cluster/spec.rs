//! The jobs of a cluster and the addresses of their tasks.

use super::{MAX_TASKS, json::Json};
use crate::{Error, Result};
use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fmt,
    str::FromStr,
};

const CALL: &str = "ClusterSpec";

/// The jobs of a cluster, in the order in which they were added. Each has the addresses
/// (`host:port`) of its tasks by index. Indices may have gaps. No two tasks have the same address.
///
/// ```
/// use consonance::ClusterSpec;
/// let cluster = ClusterSpec::new()
///     .job("worker", ["host0:2222", "host1:2222"])?
///     .sparse_job("ps", [(2, "host2:2222")])?;
/// assert_eq!(cluster.jobs(), ["worker", "ps"]);
/// assert_eq!(cluster.task_address("worker", 1)?, "host1:2222");
/// assert_eq!(cluster.task_indices("ps")?, [2]);
/// assert_eq!(cluster.to_string(), r#"{"worker":["host0:2222","host1:2222"],"ps":{"2":"host2:2222"}}"#);
/// assert_eq!(cluster.to_string().parse::<ClusterSpec>()?, cluster);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    jobs: Vec<(String, BTreeMap<usize, String>)>,
}

impl ClusterSpec {
    /// Makes a cluster without jobs: the program runs alone.
    pub fn new() -> ClusterSpec {
        ClusterSpec::default()
    }

    /// Adds a job with tasks 0, 1, 2, … at these addresses.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the name is empty or belongs to another job, or if an address is
    /// not `host:port` or belongs to another task.
    pub fn job<A: Into<String>>(self, name: &str, addresses: impl IntoIterator<Item = A>) -> Result<ClusterSpec> {
        self.sparse_job(name, addresses.into_iter().enumerate())
    }

    /// Adds a job whose tasks have these indices and addresses.
    ///
    /// # Errors
    /// As [`job`](ClusterSpec::job), and if an index occurs twice, or is not below 2²⁰.
    pub fn sparse_job<A: Into<String>>(
        mut self,
        name: &str,
        tasks: impl IntoIterator<Item = (usize, A)>,
    ) -> Result<ClusterSpec> {
        self.push(name, tasks)?;
        self.unique()
    }

    /// Returns the names of the jobs.
    pub fn jobs(&self) -> Vec<&str> {
        self.jobs.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Returns whether there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the number of tasks of a job.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such job.
    pub fn num_tasks(&self, job: &str) -> Result<usize> {
        Ok(self.known("ClusterSpec::num_tasks", job)?.len())
    }

    /// Returns the indices of a job's tasks in ascending order.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such job.
    pub fn task_indices(&self, job: &str) -> Result<Vec<usize>> {
        Ok(self.known("ClusterSpec::task_indices", job)?.keys().copied().collect())
    }

    /// Returns the address of a task.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such job, or no such task in it.
    ///
    /// ```
    /// use consonance::ClusterSpec;
    /// let cluster = ClusterSpec::new().job("worker", ["host0:2222"])?;
    /// let error = cluster.task_address("worker", 1).unwrap_err();
    /// assert_eq!(error.to_string(), "ClusterSpec::task_address: index: expected a task of \"worker\" (0), found 1");
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn task_address(&self, job: &str, index: usize) -> Result<&str> {
        let tasks = self.known("ClusterSpec::task_address", job)?;
        tasks
            .get(&index)
            .map(String::as_str)
            .ok_or_else(|| no_task("ClusterSpec::task_address", "index", job, tasks, index))
    }

    /// Returns the addresses of a job's tasks by index, with `None` for an index without a task.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is no such job.
    pub fn job_tasks(&self, job: &str) -> Result<Vec<Option<&str>>> {
        let tasks = self.known("ClusterSpec::job_tasks", job)?;
        let end = tasks.last_key_value().map_or(0, |(last, _)| last + 1);
        Ok((0..end).map(|index| tasks.get(&index).map(String::as_str)).collect())
    }

    /// Returns all jobs by name, each with its tasks' addresses by index.
    pub fn as_dict(&self) -> BTreeMap<&str, &BTreeMap<usize, String>> {
        self.jobs.iter().map(|(name, tasks)| (name.as_str(), tasks)).collect()
    }

    /// Converts JSON, for [`FromStr`].
    pub(super) fn from_json(json: &Json) -> Result<ClusterSpec> {
        let Json::Object(jobs) = json else {
            return Err(Error::invalid(CALL, "cluster", "an object from job to tasks", json.to_string()));
        };
        let mut cluster = ClusterSpec::new();
        for (name, tasks) in jobs {
            let text = |index: &dyn fmt::Display, address: &Json| match address {
                Json::Text(address) => Ok(address.clone()),
                other => Err(Error::invalid(CALL, format!("{name}[{index}]"), "text (host:port)", other.to_string())),
            };
            let tasks: Vec<(usize, String)> = match tasks {
                Json::List(list) => {
                    let tasks = list.iter().enumerate();
                    tasks.map(|(index, address)| Ok((index, text(&index, address)?))).collect::<Result<_>>()?
                }
                Json::Object(object) => {
                    let tasks = object.iter();
                    tasks.map(|(key, address)| Ok((index(name, key)?, text(key, address)?))).collect::<Result<_>>()?
                }
                other => {
                    let expected = "a list of addresses, or an object from task index to address";
                    return Err(Error::invalid(CALL, name.as_str(), expected, other.to_string()));
                }
            };
            cluster.push(name, tasks)?;
        }
        cluster.unique()
    }

    /// Adds a job without checking that its addresses are unique: see
    /// [`unique`](ClusterSpec::unique).
    pub(super) fn push<A: Into<String>>(
        &mut self,
        name: &str,
        tasks: impl IntoIterator<Item = (usize, A)>,
    ) -> Result<()> {
        if name.is_empty() {
            return Err(Error::invalid(CALL, "job", "a name", "an empty one"));
        }
        if self.tasks(name).is_some() {
            return Err(Error::invalid(CALL, name, "each job once", "it twice"));
        }
        let mut job = BTreeMap::new();
        for (index, address) in tasks {
            let (address, task) = (address.into(), || format!("{name}[{index}]"));
            if index >= MAX_TASKS {
                return Err(Error::invalid(CALL, task(), format!("an index below {MAX_TASKS}"), index.to_string()));
            }
            if !is_address(&address) {
                return Err(Error::invalid(CALL, task(), "host:port", format!("{address:?}")));
            }
            match job.entry(index) {
                Entry::Vacant(place) => place.insert(address),
                Entry::Occupied(_) => return Err(Error::invalid(CALL, task(), "each task index once", "it twice")),
            };
        }
        self.jobs.push((name.to_owned(), job));
        Ok(())
    }

    /// Checks that all addresses differ, and returns the cluster: two processes cannot listen at
    /// one address.
    pub(super) fn unique(self) -> Result<ClusterSpec> {
        let mut owners = HashMap::new();
        for (name, tasks) in &self.jobs {
            for (index, address) in tasks {
                if let Some((other, its)) = owners.insert(address, (name, index)) {
                    let found = format!("{address:?}, which is {other}[{its}]'s");
                    return Err(Error::invalid(CALL, format!("{name}[{index}]"), "an address of its own", found));
                }
            }
        }
        Ok(self)
    }

    /// Checks that a process may be this task. An evaluator need not be in the cluster that it
    /// evaluates. A cluster without jobs is a program that runs alone, so any task is accepted.
    pub(super) fn check_task(&self, call: &'static str, task: &str, job: &str, index: usize) -> Result<()> {
        match self.tasks(job) {
            Some(tasks) if tasks.contains_key(&index) => Ok(()),
            Some(tasks) => Err(no_task(call, &format!("{task}index"), job, tasks, index)),
            None if self.is_empty() || job == "evaluator" => Ok(()),
            None => Err(self.no_job(call, &format!("{task}type"), job)),
        }
    }

    pub(super) fn tasks(&self, job: &str) -> Option<&BTreeMap<usize, String>> {
        self.jobs.iter().find(|(name, _)| name == job).map(|(_, tasks)| tasks)
    }

    fn known(&self, call: &'static str, job: &str) -> Result<&BTreeMap<usize, String>> {
        self.tasks(job).ok_or_else(|| self.no_job(call, "job", job))
    }

    fn no_job(&self, call: &'static str, argument: &str, job: &str) -> Error {
        let expected = match self.jobs().as_slice() {
            [] => "nothing, for the cluster has no jobs".to_owned(),
            jobs => format!("a job of the cluster ({})", jobs.join(", ")),
        };
        Error::invalid(call, argument, expected, format!("{job:?}"))
    }
}

fn no_task(call: &'static str, argument: &str, job: &str, tasks: &BTreeMap<usize, String>, index: usize) -> Error {
    let has = match (tasks.first_key_value(), tasks.last_key_value()) {
        (Some((first, _)), Some((last, _))) if first == last => first.to_string(),
        (Some((first, _)), Some((last, _))) if last - first + 1 == tasks.len() => format!("{first} to {last}"),
        (Some((first, _)), Some((last, _))) => format!("{} from {first} to {last}", tasks.len()),
        _ => "there are none".to_owned(),
    };
    Error::invalid(call, argument, format!("a task of {job:?} ({has})"), index.to_string())
}

/// Parses the index of a task from the key of an object.
fn index(job: &str, key: &str) -> Result<usize> {
    let digits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
    let index = if digits { key.parse().ok() } else { None };
    index.ok_or_else(|| Error::invalid(CALL, format!("{job}[{key}]"), "a task index from 0", format!("{key:?}")))
}

/// Returns whether this is `host:port`. The host is a name, an IPv4 address or a bracketed IPv6
/// address.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok()),
        None => is_host(host),
    };
    is_host && is_port
}

/// Returns whether this is the name of a host or an IPv4 address.
pub(super) fn is_host(text: &str) -> bool {
    let named = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    named && (1..=MAX_HOST).contains(&text.len())
}

/// The limit on the characters of a host's name, as in the DNS.
pub(super) const MAX_HOST: usize = 253;

/// Parses TensorFlow's JSON: an object from job to a list of addresses, or to an object from task
/// index to address.
///
/// ```
/// use consonance::ClusterSpec;
/// let cluster: ClusterSpec = r#"{"worker": {"0": "a:1", "2": "c:1"}}"#.parse()?;
/// assert_eq!(cluster.job_tasks("worker")?, [Some("a:1"), None, Some("c:1")]);
/// let error = r#"{"worker": ["a:1", "b"]}"#.parse::<ClusterSpec>().unwrap_err();
/// assert_eq!(error.to_string(), r#"ClusterSpec: worker[1]: expected host:port, found "b""#);
/// # Ok::<(), consonance::Error>(())
/// ```
impl FromStr for ClusterSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<ClusterSpec> {
        ClusterSpec::from_json(&Json::parse(CALL, "cluster", text)?)
    }
}

/// Prints JSON that parses to the same cluster.
impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = self.jobs.iter().map(|(name, tasks)| {
            let addresses = tasks.iter().map(|(index, address)| (index.to_string(), Json::Text(address.clone())));
            let tasks = if is_dense(tasks) {
                Json::List(addresses.map(|(_, address)| address).collect())
            } else {
                Json::Object(addresses.collect())
            };
            (name.clone(), tasks)
        });
        f.write_str(&Json::Object(jobs.collect()).text())
    }
}

/// Returns whether the indices have no gaps.
pub(super) fn is_dense(tasks: &BTreeMap<usize, String>) -> bool {
    tasks.last_key_value().is_none_or(|(&last, _)| last + 1 == tasks.len())
}
