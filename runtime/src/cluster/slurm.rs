//! The cluster as Slurm's variables have it.

use super::{
    ClusterResolver, ClusterSpec, MAX_TASKS, SimpleClusterResolver,
    hostlist::{hostlist, tasks_per_node},
    inside, number, process_environment,
};
use crate::{Error, Result};
use std::ops::Range;

const CALL: &str = "SlurmClusterResolver";
const GPU: &str = "GPU";

/// Reads what Slurm tells each task of a step: the nodes, how many tasks each of them has, and
/// which task this is.
///
/// Tasks are numbered as Slurm numbers them (`SLURM_PROCID`): node after node, in the order of the
/// list of nodes. Those of one node listen at consecutive ports. The tasks are divided among jobs
/// in the order of the jobs' names.
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
    /// Everything as Slurm's variables say.
    ///
    /// # Errors
    /// As [`SlurmBuilder::build`].
    pub fn new() -> Result<SlurmClusterResolver> {
        SlurmClusterResolver::builder().build()
    }

    /// To say something else than Slurm's variables.
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

    /// Which of its node's visible GPUs are this task's. Each task of a node has its own.
    pub fn gpus(&self) -> Range<usize> {
        self.gpus.clone()
    }
}

impl ClusterResolver for SlurmClusterResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        &self.resolved
    }
}

/// What a [`SlurmClusterResolver`] is told.
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
    /// The jobs, with how many tasks each has. By default all tasks are workers.
    pub fn jobs<N: Into<String>>(mut self, jobs: impl IntoIterator<Item = (N, usize)>) -> SlurmBuilder {
        self.jobs = Some(jobs.into_iter().map(|(name, tasks)| (name.into(), tasks)).collect());
        self
    }

    /// The hosts in the order of their tasks, with how many tasks each has. By default as
    /// `SLURM_STEP_NODELIST` and `SLURM_STEP_TASKS_PER_NODE` say, or where they are not set,
    /// `SLURM_JOB_NODELIST` and `SLURM_TASKS_PER_NODE`.
    pub fn tasks_per_node<N: Into<String>>(mut self, hosts: impl IntoIterator<Item = (N, usize)>) -> SlurmBuilder {
        self.hosts = Some(hosts.into_iter().map(|(name, tasks)| (name.into(), tasks)).collect());
        self
    }

    /// The port of the first task of each host. By default 8888.
    pub fn port_base(mut self, port: u16) -> SlurmBuilder {
        self.port_base = port;
        self
    }

    /// How many GPUs each node has. By default as many as `CUDA_VISIBLE_DEVICES` has, or where that
    /// is not set, as `SLURM_GPUS_ON_NODE` says, or none.
    pub fn gpus_per_node(mut self, gpus: usize) -> SlurmBuilder {
        self.gpus_per_node = Some(gpus);
        self
    }

    /// How many GPUs each task has. By default its even part of the node that has most tasks.
    pub fn gpus_per_task(mut self, gpus: usize) -> SlurmBuilder {
        self.gpus_per_task = Some(gpus);
        self
    }

    /// The protocol. By default `grpc`, as in TensorFlow.
    pub fn rpc_layer<'a>(mut self, rpc_layer: impl Into<Option<&'a str>>) -> SlurmBuilder {
        self.rpc_layer = rpc_layer.into().map(str::to_owned);
        self
    }

    /// Reads this process's environment.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if a variable is missing or malformed; if the lists of nodes and of
    /// their tasks differ in length; if the tasks are not as many as `SLURM_STEP_NUM_TASKS` (where
    /// that is set) or as the jobs have; if `SLURM_PROCID` is beyond them; if `SLURM_NODEID` or
    /// `SLURM_LOCALID` tell that tasks were not put node after node; if their GPUs are more than a
    /// node has; or as [`ClusterSpec::job`].
    pub fn build(self) -> Result<SlurmClusterResolver> {
        self.build_from(process_environment)
    }

    /// Reads another environment.
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

    /// The tasks as jobs, and which of them `rank` is.
    fn divided(&self, places: &[Place<'_>], rank: usize) -> Result<(ClusterSpec, Option<(String, usize)>)> {
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

    /// How many GPUs each task has.
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

/// Where a task is: on which node, with how many of the node's tasks before it.
struct Place<'a> {
    node: usize,
    host: &'a str,
    local: usize,
}

/// The places of all tasks, in their order.
fn places(hosts: &[(String, usize)]) -> Result<Vec<Place<'_>>> {
    let tasks = total(hosts);
    if tasks > MAX_TASKS {
        return Err(Error::invalid(CALL, "tasks_per_node", format!("at most {MAX_TASKS} in all"), tasks.to_string()));
    }
    let nodes = hosts.iter().enumerate();
    Ok(nodes.flat_map(|(node, (host, tasks))| (0..*tasks).map(move |local| Place { node, host, local })).collect())
}

/// Refuses tasks that Slurm was told to put otherwise than node after node.
fn check_order(environment: &impl Fn(&str) -> Option<String>, rank: usize, own: &Place<'_>) -> Result<()> {
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

/// The nodes of Slurm's list, with how many tasks each has.
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

/// The first of these variables that is set, with its value.
fn one_of<const COUNT: usize>(
    environment: &impl Fn(&str) -> Option<String>,
    names: [&'static str; COUNT],
) -> Result<(&'static str, String)> {
    let set = names.iter().find_map(|&name| Some((name, environment(name)?)));
    set.ok_or_else(|| Error::invalid(CALL, names.join(" or "), "a variable that Slurm sets in a step", "none"))
}

/// How many GPUs the environment lets this task see.
fn visible_gpus(environment: &impl Fn(&str) -> Option<String>) -> Result<usize> {
    match (environment("CUDA_VISIBLE_DEVICES"), environment("SLURM_GPUS_ON_NODE")) {
        // What follows a negative number is invisible.
        (Some(list), _) => {
            let devices = list.split(',').map(str::trim);
            Ok(devices.take_while(|device| !device.is_empty() && !device.starts_with('-')).count())
        }
        (None, Some(text)) => number(CALL, "SLURM_GPUS_ON_NODE", &text),
        (None, None) => Ok(0),
    }
}
