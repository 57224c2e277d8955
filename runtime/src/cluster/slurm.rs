//! The resolver of Slurm, by its environment variables.

use super::{
    ClusterResolver, ClusterSpec, MAX_TASKS, SimpleClusterResolver,
    hostlist::{hostlist, tasks_per_node},
    inside, number, process_environment,
};
use crate::{Error, Result};
use std::ops::Range;

const CALL: &str = "SlurmClusterResolver";
const GPU: &str = "GPU";

/// Reads the variables that Slurm sets for each task of a step: the nodes, the number of tasks of
/// each node, and the number of this task.
///
/// Tasks are numbered like Slurm's (`SLURM_PROCID`): node by node, in the order of the list of
/// nodes. The tasks of one node have consecutive ports. Tasks are assigned to jobs in the order of
/// the jobs' names.
///
/// ```
/// use consonance::{ClusterResolver, SlurmClusterResolver};
/// let resolver = SlurmClusterResolver::builder().jobs([("worker", 3), ("chief", 1)]).build_from(|name| {
///     let value = match name {
///         "SLURM_PROCID" => "3",
///         "SLURM_STEP_NODELIST" => "n[2,10]",
///         "SLURM_STEP_TASKS_PER_NODE" => "2(x2)",
///         "CUDA_VISIBLE_DEVICES" => "0,1,2,3",
///         _ => return None,
///     };
///     Some(value.to_owned())
/// })?;
/// assert_eq!(
///     resolver.cluster_spec().to_string(),
///     r#"{"chief":["n2:8888"],"worker":["n2:8889","n10:8888","n10:8889"]}"#
/// );
/// assert_eq!((resolver.task_type(), resolver.task_id()), (Some("worker"), Some(2)));
/// assert_eq!(resolver.gpus(), 2..4);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmClusterResolver {
    resolved: SimpleClusterResolver,
    gpus: Range<usize>,
}

impl SlurmClusterResolver {
    /// Takes all values from Slurm's variables.
    ///
    /// # Errors
    /// As [`SlurmBuilder::build`].
    pub fn new() -> Result<SlurmClusterResolver> {
        SlurmClusterResolver::builder().build()
    }

    /// Returns a builder that can override Slurm's variables.
    pub fn builder() -> SlurmBuilder {
        SlurmBuilder {
            jobs: None,
            hosts: None,
            port_base: 8888,
            gpus_per_node: None,
            gpus_per_task: None,
            rpc_layer: Some("grpc".to_owned()),
        }
    }

    /// Returns the indices of this task's GPUs among the visible GPUs of its node. Tasks of a node
    /// share no GPU.
    pub fn gpus(&self) -> Range<usize> {
        self.gpus.clone()
    }
}

impl ClusterResolver for SlurmClusterResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        &self.resolved
    }
}

/// Builds a [`SlurmClusterResolver`].
#[derive(Clone, Debug)]
pub struct SlurmBuilder {
    jobs: Option<Vec<(String, usize)>>,
    hosts: Option<Vec<(String, usize)>>,
    port_base: u16,
    gpus_per_node: Option<usize>,
    gpus_per_task: Option<usize>,
    rpc_layer: Option<String>,
}

impl SlurmBuilder {
    /// Sets the jobs and their numbers of tasks. By default all tasks are workers.
    pub fn jobs<N: Into<String>>(mut self, jobs: impl IntoIterator<Item = (N, usize)>) -> SlurmBuilder {
        self.jobs = Some(jobs.into_iter().map(|(name, tasks)| (name.into(), tasks)).collect());
        self
    }

    /// Sets the hosts in the order of their tasks, and their numbers of tasks. The default is
    /// `SLURM_STEP_NODELIST` (else `SLURM_JOB_NODELIST`) and `SLURM_STEP_TASKS_PER_NODE` (else
    /// `SLURM_TASKS_PER_NODE`).
    pub fn tasks_per_node<N: Into<String>>(mut self, hosts: impl IntoIterator<Item = (N, usize)>) -> SlurmBuilder {
        self.hosts = Some(hosts.into_iter().map(|(name, tasks)| (name.into(), tasks)).collect());
        self
    }

    /// Sets the port of the first task of each host. The default is 8888.
    pub fn port_base(mut self, port: u16) -> SlurmBuilder {
        self.port_base = port;
        self
    }

    /// Sets the number of GPUs of each node. The default is the number of devices in
    /// `CUDA_VISIBLE_DEVICES`; if that is not set, the value of `SLURM_GPUS_ON_NODE`, else 0.
    pub fn gpus_per_node(mut self, gpus: usize) -> SlurmBuilder {
        self.gpus_per_node = Some(gpus);
        self
    }

    /// Sets the number of GPUs of each task. The default divides the GPUs of a node evenly among
    /// the tasks of the node with the most tasks.
    pub fn gpus_per_task(mut self, gpus: usize) -> SlurmBuilder {
        self.gpus_per_task = Some(gpus);
        self
    }

    /// Sets the protocol. The default is `grpc`, as in TensorFlow.
    pub fn rpc_layer<'a>(mut self, rpc_layer: impl Into<Option<&'a str>>) -> SlurmBuilder {
        self.rpc_layer = rpc_layer.into().map(str::to_owned);
        self
    }

    /// Reads this process's environment.
    ///
    /// # Errors
    /// [`Error::InvalidCall`]
    /// * if a variable is missing or malformed;
    /// * if the lists of nodes and of their tasks differ in length;
    /// * if the number of tasks differs from `SLURM_STEP_NUM_TASKS` (if set) or from the jobs';
    /// * if `SLURM_PROCID` is not below the number of tasks;
    /// * if `SLURM_NODEID` or `SLURM_LOCALID` show that tasks were not placed node by node;
    /// * if the tasks of a node need more GPUs than it has;
    /// * or as [`ClusterSpec::job`].
    pub fn build(self) -> Result<SlurmClusterResolver> {
        self.build_from(process_environment)
    }

    /// Reads the environment that the function returns.
    ///
    /// # Errors
    /// As [`build`](SlurmBuilder::build).
    pub fn build_from(self, environment: impl Fn(&str) -> Option<String>) -> Result<SlurmClusterResolver> {
        let rank = number(CALL, "SLURM_PROCID", &one_of(&environment, ["SLURM_PROCID"])?.1)?;
        let hosts = match &self.hosts {
            Some(hosts) => hosts.clone(),
            None => hosts(&environment)?,
        };
        let places = places(&hosts)?;
        if let Some(text) = environment("SLURM_STEP_NUM_TASKS")
            && number(CALL, "SLURM_STEP_NUM_TASKS", &text)? != places.len()
        {
            let expected = format!("{}, as the nodes have", places.len());
            return Err(Error::invalid(CALL, "SLURM_STEP_NUM_TASKS", expected, text));
        }
        let Some(own) = places.get(rank) else {
            return Err(Error::invalid(CALL, "SLURM_PROCID", format!("less than {}", places.len()), rank.to_string()));
        };
        if self.hosts.is_none() {
            check_order(&environment, rank, own)?;
        }
        let gpus = self.gpus(&environment, &hosts)?;
        let (cluster, task) = self.divided(&places, rank)?;
        let mut resolved = SimpleClusterResolver::new(cluster).with_num_accelerators(GPU, gpus);
        resolved.task = task;
        resolved.rpc_layer = self.rpc_layer;
        Ok(SlurmClusterResolver { resolved, gpus: own.local * gpus..(own.local + 1) * gpus })
    }

    /// Divides the tasks among the jobs. Also returns the job and index of `rank`.
    fn divided(&self, places: &[TaskPlacement<'_>], rank: usize) -> Result<(ClusterSpec, Option<(String, usize)>)> {
        let mut jobs = self.jobs.clone().unwrap_or_else(|| vec![("worker".to_owned(), places.len())]);
        jobs.sort();
        let requested = total(&jobs);
        if requested != places.len() {
            let expected = format!("{} tasks in all", places.len());
            return Err(Error::invalid(CALL, "jobs", expected, requested.to_string()));
        }
        let (mut cluster, mut first, mut task) = (ClusterSpec::new(), 0, None);
        for (job, count) in jobs {
            let tasks = places[first..first + count].iter().enumerate();
            let addresses = tasks.map(|(index, place)| {
                let port = usize::from(self.port_base) + place.local;
                (index, format!("{}:{port}", place.host))
            });
            cluster.push(&job, addresses).map_err(|error| inside(error, CALL, ""))?;
            if (first..first + count).contains(&rank) {
                task = Some((job, rank - first));
            }
            first += count;
        }
        Ok((cluster.unique().map_err(|error| inside(error, CALL, ""))?, task))
    }

    /// Returns the number of GPUs of each task.
    fn gpus(&self, environment: &impl Fn(&str) -> Option<String>, hosts: &[(String, usize)]) -> Result<usize> {
        let available = match self.gpus_per_node {
            Some(gpus) => gpus,
            None => visible_gpus(environment)?,
        };
        let tasks = hosts.iter().map(|(_, tasks)| *tasks).max().unwrap_or(0).max(1);
        let most = available / tasks;
        let gpus = self.gpus_per_task.unwrap_or(most);
        if gpus > most {
            let expected = format!("at most {most}, for {tasks} tasks on a node with {available}");
            return Err(Error::invalid(CALL, "gpus_per_task", expected, gpus.to_string()));
        }
        Ok(gpus)
    }
}

/// The placement of a task: its node, and the number of the node's tasks before it.
struct TaskPlacement<'a> {
    node: usize,
    host: &'a str,
    local: usize,
}

/// Returns the placements of all tasks, in their order.
fn places(hosts: &[(String, usize)]) -> Result<Vec<TaskPlacement<'_>>> {
    let tasks = total(hosts);
    if tasks > MAX_TASKS {
        return Err(Error::invalid(CALL, "tasks_per_node", format!("at most {MAX_TASKS} in all"), tasks.to_string()));
    }
    let nodes = hosts.iter().enumerate();
    Ok(nodes
        .flat_map(|(node, (host, tasks))| (0..*tasks).map(move |local| TaskPlacement { node, host, local }))
        .collect())
}

/// Checks that Slurm has placed the tasks node by node.
fn check_order(environment: &impl Fn(&str) -> Option<String>, rank: usize, own: &TaskPlacement<'_>) -> Result<()> {
    for (name, ours) in [("SLURM_NODEID", own.node), ("SLURM_LOCALID", own.local)] {
        if let Some(text) = environment(name)
            && number(CALL, name, &text)? != ours
        {
            let expected = format!("{ours} for task {rank}, as after srun --distribution=block");
            return Err(Error::invalid(CALL, name, expected, text));
        }
    }
    Ok(())
}

/// Returns the nodes of Slurm's list, with the number of tasks of each.
fn hosts(environment: &impl Fn(&str) -> Option<String>) -> Result<Vec<(String, usize)>> {
    let (name, list) = one_of(environment, ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"])?;
    let hosts = hostlist(CALL, name, &list)?;
    let (name, list) = one_of(environment, ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"])?;
    let tasks = tasks_per_node(CALL, name, &list)?;
    if hosts.len() != tasks.len() {
        let expected = format!("the tasks of {} nodes", hosts.len());
        return Err(Error::invalid(CALL, name, expected, format!("of {} in {list:?}", tasks.len())));
    }
    Ok(hosts.into_iter().zip(tasks).collect())
}

fn total(tasks: &[(String, usize)]) -> usize {
    tasks.iter().fold(0, |total, (_, tasks)| total.saturating_add(*tasks))
}

/// Returns the first of these variables that is set, with its value.
fn one_of<const COUNT: usize>(
    environment: &impl Fn(&str) -> Option<String>,
    names: [&'static str; COUNT],
) -> Result<(&'static str, String)> {
    let set = names.iter().find_map(|&name| Some((name, environment(name)?)));
    set.ok_or_else(|| Error::invalid(CALL, names.join(" or "), "a variable that Slurm sets in a step", "none"))
}

/// Returns the number of GPUs that are visible to this task.
fn visible_gpus(environment: &impl Fn(&str) -> Option<String>) -> Result<usize> {
    match (environment("CUDA_VISIBLE_DEVICES"), environment("SLURM_GPUS_ON_NODE")) {
        // CUDA hides devices from the first negative number on.
        (Some(list), _) => {
            let devices = list.split(',').map(str::trim);
            Ok(devices.take_while(|device| !device.is_empty() && !device.starts_with('-')).count())
        }
        (None, Some(text)) => number(CALL, "SLURM_GPUS_ON_NODE", &text),
        (None, None) => Ok(0),
    }
}
