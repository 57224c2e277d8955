//! The roles of processes in a cluster with parameter servers.

use super::{
    ClusterResolver,
    role::{host_of, is_on_this_host},
    roster::chosen_wire,
};
use crate::{Error, Result};
use consonance_kernels::wire::Kind;
use std::fmt;

/// The tasks of a cluster with parameter servers, and which of them this process is.
#[derive(Clone, Debug)]
pub(crate) struct ServerRoles {
    chief: RoleTask,
    workers: Vec<RoleTask>,
    servers: Vec<RoleTask>,
    own: Place,
    /// The names of the tasks on other hosts.
    far: Vec<String>,
}

/// A task: its name, such as `ps[1]`, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleTask {
    pub(crate) name: String,
    pub(crate) address: String,
}

/// The place of a process among the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The chief.
    Chief,
    /// The worker at this position, by index.
    Worker(usize),
    /// The server at this position, by index.
    Server(usize),
}

impl ServerRoles {
    /// Returns the roles that a resolver knows.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the cluster has no `chief`, `worker` or `ps`, or several chiefs;
    /// if this process is none of them; or for a wire that cannot reach tasks on other hosts.
    pub(crate) fn of(call: &'static str, resolver: &dyn ClusterResolver) -> Result<ServerRoles> {
        let cluster = resolver.cluster_spec();
        let tasks = |job: &'static str| -> Vec<(usize, RoleTask)> {
            let task = |(&index, address): (&usize, &String)| {
                (index, RoleTask { name: format!("{job}[{index}]"), address: address.clone() })
            };
            cluster.tasks(job).into_iter().flatten().map(task).collect()
        };
        let [chiefs, workers, servers] = ["chief", "worker", "ps"].map(tasks);
        let refused = |argument, expected: &str, found: String| Err(Error::invalid(call, argument, expected, found));
        if chiefs.len() != 1 || workers.is_empty() || servers.is_empty() {
            let expected = "one chief, and workers and ps";
            let counted = |job: &&str| format!("{job} ({})", cluster.num_tasks(job).unwrap_or(0));
            let jobs: Vec<String> = cluster.jobs().iter().map(counted).collect();
            let found = if jobs.is_empty() { "no jobs".to_owned() } else { format!("jobs {}", jobs.join(", ")) };
            return refused("cluster", expected, found);
        }
        let (Some(job), Some(index)) = (resolver.task_type(), resolver.task_id()) else {
            return refused(
                "task",
                "the type and index of this process, since the cluster has jobs",
                "none".to_owned(),
            );
        };
        let position = |tasks: &[(usize, RoleTask)]| tasks.iter().position(|&(found, _)| found == index);
        let own = match job {
            "chief" => position(&chiefs).map(|_| Place::Chief),
            "worker" => position(&workers).map(Place::Worker),
            "ps" => position(&servers).map(Place::Server),
            _ => None,
        };
        let Some(own) = own else {
            return refused("task", "a chief, a worker or a ps of the cluster", format!("{job}[{index}]"));
        };
        let chosen = chosen_wire()?;
        let all = chiefs.iter().chain(&workers).chain(&servers).map(|(_, task)| task);
        let is_far = |task: &&RoleTask| chosen == Some(Kind::Ucx) || !is_on_this_host(host_of(&task.address));
        let far: Vec<String> = all.filter(is_far).map(|task| task.name.clone()).collect();
        if chosen == Some(Kind::Mpi) && !far.is_empty() {
            let expected = "ucx for tasks on other hosts: processes of MPI do not come and go";
            return Err(Error::invalid(call, "CONSONANCE_WIRE", expected, "mpi"));
        }
        let only = |tasks: Vec<(usize, RoleTask)>| tasks.into_iter().map(|(_, task)| task).collect::<Vec<_>>();
        Ok(ServerRoles { chief: only(chiefs).remove(0), workers: only(workers), servers: only(servers), own, far })
    }

    /// Returns the place of this process.
    pub(crate) fn own(&self) -> Place {
        self.own
    }

    /// Returns the workers by index. There is one, at least.
    pub(crate) fn workers(&self) -> &[RoleTask] {
        &self.workers
    }

    /// Returns the servers by index. There is one, at least.
    pub(crate) fn servers(&self) -> &[RoleTask] {
        &self.servers
    }

    /// Returns the task at a place.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn task(&self, place: Place) -> &RoleTask {
        match place {
            Place::Chief => &self.chief,
            Place::Worker(worker) => &self.workers[worker],
            Place::Server(server) => &self.servers[server],
        }
    }

    /// Returns whether the task at a place is on another host than this process, by its address, or
    /// is to be met as if it were.
    pub(crate) fn is_far(&self, place: Place) -> bool {
        self.far.contains(&self.task(place).name)
    }

    /// Returns whether a process comes to this one from another host: one calls the other.
    pub(crate) fn is_called(&self) -> bool {
        let mut workers = (0..self.workers.len()).map(Place::Worker);
        match self.own {
            Place::Chief => workers.chain((0..self.servers.len()).map(Place::Server)).any(|place| self.is_far(place)),
            Place::Server(_) => workers.any(|place| self.is_far(place)),
            Place::Worker(_) => false,
        }
    }

    /// Returns a text that tells the job from others: all tasks with their addresses.
    pub(crate) fn job(&self) -> String {
        let tasks = [&self.chief].into_iter().chain(&self.workers).chain(&self.servers);
        tasks.map(RoleTask::described).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Chief => f.write_str("chief"),
            Place::Worker(worker) => write!(f, "worker {worker}"),
            Place::Server(server) => write!(f, "ps {server}"),
        }
    }
}

impl RoleTask {
    /// Returns the name with the address, as errors have it: `ps[1] (localhost:4712)`.
    pub(crate) fn described(&self) -> String {
        format!("{} ({})", self.name, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        SimpleClusterResolver,
        fields::{found, refusal},
    };

    const CLUSTER: &str = r#"{"ps": ["localhost:3", "localhost:4"], "worker": {"1": "localhost:1", "4": "127.0.0.1:2"},
        "evaluator": ["host:1"], "chief": ["localhost:9"]}"#;

    fn roles(cluster: &str, task: Option<(&str, usize)>) -> Result<ServerRoles> {
        let resolver = SimpleClusterResolver::new(cluster.parse()?);
        let resolver = match task {
            Some((job, index)) => resolver.with_task(job, index)?,
            None => resolver,
        };
        ServerRoles::of("call", &resolver)
    }

    #[test]
    fn each_task_knows_its_place_and_the_others() {
        let places = [
            (("chief", 0), Place::Chief, "chief[0] (localhost:9)"),
            (("worker", 1), Place::Worker(0), "worker[1] (localhost:1)"),
            (("worker", 4), Place::Worker(1), "worker[4] (127.0.0.1:2)"),
            (("ps", 0), Place::Server(0), "ps[0] (localhost:3)"),
            (("ps", 1), Place::Server(1), "ps[1] (localhost:4)"),
        ];
        let job: Vec<&str> = places.iter().map(|(_, _, described)| *described).collect();
        for (task, place, described) in places {
            let roles = roles(CLUSTER, Some(task)).unwrap();
            assert_eq!((roles.own(), roles.task(place).described().as_str()), (place, described));
            assert_eq!(roles.job(), job.join("\n"));
            assert_eq!(roles.task(Place::Chief).name, "chief[0]");
            assert_eq!((roles.workers().len(), roles.servers().len()), (2, 2));
            assert_eq!(roles.servers()[1], RoleTask { name: "ps[1]".to_owned(), address: "localhost:4".to_owned() });
        }
    }

    #[test]
    fn jobs_with_other_servers_have_other_texts() {
        let other = CLUSTER.replace("localhost:4", "localhost:5");
        let job = |cluster| roles(cluster, Some(("chief", 0))).unwrap().job();
        assert_ne!(job(&other), job(CLUSTER));
    }

    #[test]
    fn a_cluster_without_a_role_is_refused_with_its_jobs() {
        for (cluster, jobs) in [
            ("{}", "no jobs"),
            (r#"{"chief": ["localhost:1"], "worker": ["localhost:2"]}"#, "jobs chief (1), worker (1)"),
            (r#"{"chief": ["localhost:1"], "ps": ["localhost:2", "localhost:3"]}"#, "jobs chief (1), ps (2)"),
            (r#"{"worker": ["localhost:1"], "ps": ["localhost:2"]}"#, "jobs worker (1), ps (1)"),
            (
                r#"{"chief": ["localhost:1", "localhost:4"], "worker": ["localhost:2"], "ps": ["localhost:3"]}"#,
                "jobs chief (2), worker (1), ps (1)",
            ),
        ] {
            let error = roles(cluster, None).unwrap_err();
            assert_eq!((refusal(&error), found(&error)), (("call", "cluster", None), jobs), "{cluster}");
        }
    }

    #[test]
    fn a_task_on_another_host_is_far() {
        // An address reserved for documentation: this host does not have it.
        for (here, far) in [("localhost:9", "chief"), ("localhost:1", "worker 0"), ("localhost:4", "ps 1")] {
            let roles = roles(&CLUSTER.replace(here, "192.0.2.1:5"), Some(("worker", 4))).unwrap();
            for place in [Place::Chief, Place::Worker(0), Place::Worker(1), Place::Server(0), Place::Server(1)] {
                assert_eq!(roles.is_far(place), place.to_string() == far, "{place}");
            }
        }
    }

    #[test]
    fn a_process_without_a_role_is_refused() {
        let error = roles(CLUSTER, Some(("evaluator", 0))).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("call", "task", None), "evaluator[0]"));
        let error = roles(CLUSTER, None).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("call", "task", None), "none"));
    }
}
