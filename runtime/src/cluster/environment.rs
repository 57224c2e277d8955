//! The world of a process, by the variables of the launcher that has started it: [`launched`],
//! which strategies and process groups use alike.
//!
//! A launcher may be started by another one, and passes on the variables of that one: the daemons
//! of Open MPI and of MPICH are a step of Slurm's, each with its own `SLURM_PROCID`. So Open MPI's
//! variables come before Slurm's, and those of PMI, which Slurm sets too, where the two differ.

use super::{
    ClusterResolver, ClusterSpec, MAX_TASKS, SimpleClusterResolver, SlurmClusterResolver, TfConfigClusterResolver,
    number, role::is_on_this_host, starter::starter,
};
#[cfg(target_os = "linux")]
use super::{process_environment, roster::Job};
use crate::{Error, Result};
#[cfg(target_os = "linux")]
use crate::{ProcessGroup, ProcessGroupBuilder, UniqueId};
use std::{collections::BTreeSet, sync::Arc};

/// The variable with the address at which the others find rank 0.
const CHIEF: &str = "CONSONANCE_CHIEF";

/// The variable by which a launcher or a user tells one job from another.
const JOB: &str = "CONSONANCE_JOB";

/// The world of a process.
pub(crate) struct Launched {
    /// The processes as the workers of a cluster.
    pub(crate) resolver: Arc<dyn ClusterResolver>,
    /// The means of the processes to meet, if it is not the addresses of that cluster.
    pub(crate) ranks: Option<Ranks>,
}

/// The place of a process in a world whose launcher tells no addresses.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "groups of processes need Linux"))]
pub(crate) struct Ranks {
    rank: usize,
    size: usize,
    /// A text that tells the job from others: of this host, or of the same chief.
    job: String,
    /// The address of rank 0. `None` if all processes are on this host.
    chief: Option<String>,
}

/// Reads the variables of the first launcher that has set some. Without any, and in a world of one,
/// the cluster has no jobs.
///
/// # Errors
/// [`Error::InvalidCall`] of `call` or of a resolver, if variables are missing or wrong.
pub(crate) fn launched(call: &'static str, environment: impl Fn(&str) -> Option<String>) -> Result<Launched> {
    let variables = Variables { call, read: &environment };
    if variables.has("TF_CONFIG") {
        return Ok(Launched::at(TfConfigClusterResolver::from_environment(environment)?));
    }
    let launchers = [Variables::torch, Variables::open_mpi, Variables::slurm, Variables::pmi, Variables::pmix];
    for launcher in launchers {
        if let Some(launched) = launcher(&variables)? {
            return Ok(launched);
        }
    }
    Ok(Launched::alone())
}

impl Launched {
    fn at(resolver: impl ClusterResolver + 'static) -> Launched {
        Launched { resolver: Arc::new(resolver), ranks: None }
    }

    fn alone() -> Launched {
        Launched::at(SimpleClusterResolver::new(ClusterSpec::new()))
    }

    /// Returns a world of these ranks. Their addresses are not known: port 0 stands for that.
    fn of(ranks: Ranks) -> Result<Launched> {
        let cluster = ClusterSpec::new().job("worker", (0..ranks.size).map(|rank| format!("rank{rank}:0")))?;
        let resolver = SimpleClusterResolver::new(cluster).with_task("worker", ranks.rank)?;
        Ok(Launched { resolver: Arc::new(resolver), ranks: Some(ranks) })
    }
}

/// The variables of a process.
struct Variables<'e> {
    call: &'static str,
    read: &'e dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    /// Reads those of torch's launcher, which `consonance run --nodes` sets, too.
    fn torch(&self) -> Result<Option<Launched>> {
        let Some((rank, size)) = self.ranks("RANK", "WORLD_SIZE")? else { return Ok(None) };
        if size == 1 {
            return Ok(Some(Launched::alone()));
        }
        let needed = |name: &str, what: &str| {
            self.get(name).ok_or_else(|| self.invalid(name, format!("{what}, since RANK is set"), "nothing"))
        };
        let (local, chief) = (self.local("LOCAL_WORLD_SIZE", size)?, self.chief()?);
        let run = |names: &[&str]| names.iter().map(|name| self.get(name).unwrap_or_default()).collect::<Vec<_>>();
        if local == Some(size) || (local.is_none() && chief.is_none()) {
            let (address, port) = (needed("MASTER_ADDR", "an address")?, needed("MASTER_PORT", "a port")?);
            if local.is_none() && !is_on_this_host(&address) {
                let expected = "the number of ranks on this host, since MASTER_ADDR is another host's";
                return Err(self.invalid("LOCAL_WORLD_SIZE", expected, "nothing"));
            }
            let run = run(&["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", JOB]).join("\n");
            let job = format!("{address}\n{port}\n{run}");
            return Launched::of(Ranks { rank, size, job, chief: None }).map(Some);
        }
        let chief = match chief {
            Some(chief) => chief,
            None => {
                let (address, port) = (needed("MASTER_ADDR", "an address")?, needed("MASTER_PORT", "a port")?);
                let after = number(self.call, "MASTER_PORT", &port)?;
                if !(1..65535).contains(&after) {
                    let expected = format!("a port from 1 to 65534, since rank 0 is at the next one; or {CHIEF}");
                    return Err(self.invalid("MASTER_PORT", expected, port));
                }
                let bare = address.contains(':') && !address.starts_with('[');
                let host = if bare { format!("[{address}]") } else { address };
                self.checked("MASTER_ADDR", format!("{host}:{}", after + 1))?
            }
        };
        // The agents of several hosts count their restarts apart.
        let job = run(&["TORCHELASTIC_RUN_ID", JOB]).join("\n");
        Launched::of(Ranks { rank, size, job, chief: Some(chief) }).map(Some)
    }

    /// Reads those of Open MPI's `mpirun`.
    fn open_mpi(&self) -> Result<Option<Launched>> {
        let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"];
        // The server of a host has a port of its own there. The namespace alone is a short number
        // in Open MPI 4.
        let job = || Some(format!("{}\n{}", self.get("PMIX_NAMESPACE")?, self.get("PMIX_SERVER_URI2")?));
        self.mpi(names, self.get("PMIX_NAMESPACE").unwrap_or_default(), job, "mpirun -x CONSONANCE_CHIEF=host:port")
    }

    /// Reads those of a step of Slurm's. Its nodes and their tasks give the addresses.
    fn slurm(&self) -> Result<Option<Launched>> {
        let Some(rank) = self.number("SLURM_PROCID")? else { return Ok(None) };
        let step = ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"];
        let is_step = step.iter().any(|name| self.has(name));
        if let (Some(other), Some(size)) = (self.number("PMI_RANK")?, self.number("PMI_SIZE")?)
            && (!is_step || other != rank || self.number(step[0])?.is_some_and(|tasks| tasks != size))
        {
            return Ok(None);
        }
        if !is_step {
            // The batch script of a job is no task of a step.
            let tasks = self.number("SLURM_NTASKS")?.unwrap_or(1);
            let expected = "a variable of a step: start the program by `srun`, or set WORLD_SIZE=1 to run alone";
            let found = format!("nothing, in the batch script of a job with {tasks} tasks");
            return if tasks > 1 { Err(self.invalid(step[0], expected, found)) } else { Ok(None) };
        }
        let resolver = SlurmClusterResolver::builder().build_from(self.read)?;
        let tasks = resolver.cluster_spec().job_tasks("worker")?;
        let hosts: BTreeSet<&str> = tasks.iter().flatten().filter_map(|task| Some(task.rsplit_once(':')?.0)).collect();
        let ranks = match self.chief()? {
            Some(chief) if hosts.len() > 1 => {
                let job = [JOB, "SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| self.get(name).unwrap_or_default());
                Some(Ranks { rank, size: tasks.len(), job: job.join("\n"), chief: Some(chief) })
            }
            _ => None,
        };
        Ok(Some(Launched { resolver: Arc::new(resolver), ranks }))
    }

    /// Reads those of the process manager of MPICH and of Intel MPI.
    fn pmi(&self) -> Result<Option<Launched>> {
        // Intel MPI's has an id for each job.
        let job = self.get("I_MPI_HYDRA_UUID").unwrap_or_default();
        let names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"];
        self.mpi(names, job, || None, "mpiexec -genv CONSONANCE_CHIEF host:port")
    }

    /// Refuses what a launcher of PMIx sets for programs without MPI: the size is not in variables.
    fn pmix(&self) -> Result<Option<Launched>> {
        match self.get("PMIX_RANK").and(self.get("PMIX_NAMESPACE")) {
            None => Ok(None),
            Some(_) => {
                let expected = "the number of processes, and RANK, since PMIX_RANK is set, which has no size";
                Err(self.invalid("WORLD_SIZE", expected, "nothing"))
            }
        }
    }

    /// Reads the rank, the size and the number of ranks on this host that a launcher of MPI sets in
    /// the variables of these names. `job` tells the job from others of several hosts, `job_here`
    /// from others of this one, and `how` says how to pass on the address of rank 0.
    fn mpi(
        &self,
        [rank_name, size_name, local_name]: [&'static str; 3],
        job: String,
        job_here: impl Fn() -> Option<String>,
        how: &str,
    ) -> Result<Option<Launched>> {
        let Some((rank, size)) = self.ranks(rank_name, size_name)? else { return Ok(None) };
        if size == 1 {
            return Ok(Some(Launched::alone()));
        }
        let own = self.get(JOB).unwrap_or_default();
        let local = self.local(local_name, size)?;
        let chief = if local == Some(size) { None } else { self.chief()? };
        if let Some(chief) = chief {
            let ranks = Ranks { rank, size, job: format!("{job}\n{own}"), chief: Some(chief) };
            return Launched::of(ranks).map(Some);
        }
        if local != Some(size) {
            let why = match local {
                Some(local) => format!("{local} of the {size} processes are on this host"),
                None => format!("{local_name} does not tell that all {size} processes are on this host"),
            };
            let expected = format!("the address of rank 0, host:port, since {why}; `{how}` passes it to all");
            return Err(self.invalid(CHIEF, expected, "nothing"));
        }
        let starter = || starter(&[(rank_name, rank), (size_name, size)]);
        let given = || [&job, &own].into_iter().find(|text| !text.is_empty()).cloned();
        let Some(here) = job_here().or_else(starter).or_else(given) else {
            let expected = "a text that no other job of this host has, since nothing else tells this one from others";
            return Err(self.invalid(JOB, expected, "nothing"));
        };
        let ranks = Ranks { rank, size, job: format!("{here}\n{job}\n{own}"), chief: None };
        Launched::of(ranks).map(Some)
    }

    /// Reads a rank and a size. `None` if neither is set. A size of 1 needs no rank.
    fn ranks(&self, rank_name: &str, size_name: &str) -> Result<Option<(usize, usize)>> {
        let missing = |name: &str, other: &str| {
            let expected = format!("a number, since {other} is set");
            Err(self.invalid(name, expected, "nothing"))
        };
        let (rank, size) = match (self.number(rank_name)?, self.number(size_name)?) {
            (None, None) => return Ok(None),
            (None, Some(1)) => (0, 1),
            (None, Some(_)) => return missing(rank_name, size_name),
            (Some(_), None) => return missing(size_name, rank_name),
            (Some(rank), Some(size)) => (rank, size),
        };
        if size > MAX_TASKS {
            return Err(self.invalid(size_name, format!("at most {MAX_TASKS}"), size.to_string()));
        }
        if rank >= size {
            let expected = format!("a number below {size_name}, {size}");
            return Err(self.invalid(rank_name, expected, rank.to_string()));
        }
        Ok(Some((rank, size)))
    }

    /// Reads the number of ranks on this host.
    fn local(&self, name: &str, size: usize) -> Result<Option<usize>> {
        let local = self.number(name)?;
        match local.filter(|local| !(1..=size).contains(local)) {
            None => Ok(local),
            Some(local) => Err(self.invalid(name, format!("a number from 1 to {size}"), local.to_string())),
        }
    }

    /// Reads the address of rank 0.
    fn chief(&self) -> Result<Option<String>> {
        self.get(CHIEF).map(|address| self.checked(CHIEF, address)).transpose()
    }

    /// Checks an address that comes from the variable of this name.
    fn checked(&self, name: &str, address: String) -> Result<String> {
        let cluster = ClusterSpec::new().job("chief", [address.as_str()]);
        match cluster.is_ok() && !address.ends_with(":0") {
            true => Ok(address),
            false => Err(self.invalid(name, "the address of rank 0, host:port", format!("{address:?}"))),
        }
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        self.get(name).map(|text| number(self.call, name, &text)).transpose()
    }

    /// Returns a variable that is not empty.
    fn get(&self, name: &str) -> Option<String> {
        (self.read)(name).filter(|text| !text.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn invalid(&self, name: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::invalid(self.call, name, expected, found)
    }
}

#[cfg(target_os = "linux")]
impl Ranks {
    /// Returns a builder that joins these ranks.
    pub(crate) fn group(self) -> Result<ProcessGroupBuilder> {
        let Ranks { rank, size, job, chief } = self;
        Ok(ProcessGroupBuilder::of(match chief {
            Some(address) => Job::Chief { address, rank, size, job },
            None => Job::Id { id: Box::new(UniqueId::derived(&job)?), rank, size, is_private: false },
        }))
    }
}

#[cfg(target_os = "linux")]
impl ProcessGroup {
    /// Returns a builder that joins the processes that one launcher has started. It reads the
    /// variables of the first of these launchers that has set some:
    ///
    /// * `consonance run`, and all who set `TF_CONFIG`;
    /// * `torchrun` (torch's elastic launcher): `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
    ///   `MASTER_PORT`, which any launcher may set, and if they are there `LOCAL_WORLD_SIZE`,
    ///   `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT`;
    /// * Open MPI's `mpirun`: `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` and
    ///   `OMPI_COMM_WORLD_LOCAL_SIZE`;
    /// * Slurm's `srun`: `SLURM_PROCID`, and the nodes of the step and their tasks;
    /// * `mpiexec` of MPICH and of Intel MPI: `PMI_RANK`, `PMI_SIZE` and `MPI_LOCALNRANKS`.
    ///
    /// Without them, and in a world of one, the process is a group of its own.
    ///
    /// If all ranks are on this host, by the number of those on it, they listen on no port, and
    /// connect to no address. If they are on several, rank 0 listens at the address
    /// `CONSONANCE_CHIEF` (`host:port`), by default at `MASTER_ADDR` on the port after
    /// `MASTER_PORT`, and the others ask it where all are. Slurm's tasks need no chief: they listen
    /// at their nodes, from port 8888 on.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if variables are missing or wrong: the error names the variable.
    ///
    /// ```no_run
    /// # use consonance::ProcessGroup;
    /// let mut group = ProcessGroup::from_env()?.join()?;
    /// let communicator = group.communicators().remove(0);
    /// println!("rank {} of {}", communicator.rank(), communicator.size());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_env() -> Result<ProcessGroupBuilder> {
        ProcessGroup::from_environment(process_environment)
    }

    /// Does what [`from_env`](ProcessGroup::from_env) does, for the environment that the function
    /// returns.
    ///
    /// # Errors
    /// As [`from_env`](ProcessGroup::from_env).
    ///
    /// ```
    /// # use consonance::ProcessGroup;
    /// let alone = ProcessGroup::from_environment(|_name| None)?.join()?;
    /// assert_eq!(alone.size(), 1);
    /// let half = ProcessGroup::from_environment(|name| (name == "RANK").then(|| "0".to_owned()));
    /// let expected = "ProcessGroup::from_env: WORLD_SIZE: expected a number, since RANK is set, found nothing";
    /// assert_eq!(half.err().unwrap().to_string(), expected);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_environment(environment: impl Fn(&str) -> Option<String>) -> Result<ProcessGroupBuilder> {
        let Launched { resolver, ranks } = launched("ProcessGroup::from_env", environment)?;
        match ranks {
            Some(ranks) => ranks.group(),
            None => Ok(ProcessGroupBuilder::new(resolver)),
        }
    }
}
