//! The processes of a launch, by their roles.

use super::Launch;
use std::{fmt, num::NonZeroUsize};

/// A process of a launch. It is written as its role: `worker 3`, `chief`, `ps 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its index among all processes of the launch, and of those of other hosts.
    pub index: usize,
    /// Its role.
    pub role: Role,
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The worker with this index.
    Worker(usize),
    /// The chief, which has the workers compute. The launch ends with it.
    Chief,
    /// The parameter server with this index.
    Server(usize),
}

impl Launch {
    /// Returns the process with this index. A launch with parameter servers begins with the chief,
    /// and ends with the servers.
    pub(super) fn task(&self, index: usize) -> Task {
        let role = match (self.servers, index) {
            (None, worker) => Role::Worker(worker),
            (Some(_), 0) => Role::Chief,
            (Some(_), _) if index <= self.workers_of_all() => Role::Worker(index - 1),
            (Some(_), _) => Role::Server(index - 1 - self.workers_of_all()),
        };
        Task { index, role }
    }

    /// Returns the number of workers of this launch, on all hosts.
    pub(super) fn workers_of_all(&self) -> usize {
        self.workers.get().saturating_mul(self.hosts.map_or(1, NonZeroUsize::get))
    }

    /// Returns the host of each process of this launch, and of those of other hosts.
    pub(super) fn hosts_of_tasks(&self) -> Vec<usize> {
        let host = |index| match self.task(index).role {
            Role::Chief => 0,
            Role::Worker(worker) => worker / self.workers,
            Role::Server(server) => server % self.hosts.map_or(1, NonZeroUsize::get),
        };
        (0..self.world()).map(host).collect()
    }
}

impl Task {
    /// Returns a worker of a launch without other roles.
    #[cfg(test)]
    pub(super) fn worker(index: usize) -> Task {
        Task { index, role: Role::Worker(index) }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Worker(worker) => write!(f, "worker {worker}"),
            Role::Chief => f.write_str("chief"),
            Role::Server(server) => write!(f, "ps {server}"),
        }
    }
}

/// Returns `worker 3`, `workers 0, 3`, or `chief, ps 1`.
pub(super) fn names(tasks: &[Task]) -> String {
    let workers: Option<Vec<String>> = tasks.iter().map(Task::of_worker).collect();
    match workers {
        Some(list) => format!("worker{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", ")),
        None => tasks.iter().map(Task::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Task {
    /// Returns the index of a worker.
    fn of_worker(&self) -> Option<String> {
        match self.role {
            Role::Worker(worker) => Some(worker.to_string()),
            Role::Chief | Role::Server(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_by_their_roles() {
        let of = |roles: &[Role]| {
            names(&roles.iter().enumerate().map(|(index, &role)| Task { index, role }).collect::<Vec<_>>())
        };
        assert_eq!(of(&[Role::Worker(3)]), "worker 3");
        assert_eq!(of(&[Role::Worker(0), Role::Worker(3)]), "workers 0, 3");
        assert_eq!(of(&[Role::Chief, Role::Worker(3), Role::Server(1)]), "chief, worker 3, ps 1");
    }
}
