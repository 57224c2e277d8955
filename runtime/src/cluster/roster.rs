//! The place of a process among those of its job.

use super::{Role, check_on_this_host};
use crate::{ClusterResolver, Error, Result, UniqueId};
use consonance_kernels::{bootstrap::packet::MAX_TASKS, digest::digest};
use std::{env, sync::Arc};

const CALL: &str = "ProcessGroup";

/// The means of a group's processes to find each other.
pub(super) enum Job {
    Cluster(Arc<dyn ClusterResolver>),
    /// An id is private if a program chose who gets it, and not the launcher.
    Id {
        id: Box<UniqueId>,
        rank: usize,
        size: usize,
        is_private: bool,
    },
}

/// The place of this process among those of its job.
pub(super) struct Roster {
    /// The names of all processes of the job, with their addresses.
    pub(super) tasks: Vec<String>,
    pub(super) own: usize,
    pub(super) digest: u128,
}

impl Job {
    /// Whether the processes have chosen each other, and not the launcher.
    pub(super) fn is_private(&self) -> bool {
        matches!(self, Job::Id { is_private: true, .. })
    }

    /// Returns the place of this process.
    pub(super) fn place(&self) -> Result<Roster> {
        match self {
            Job::Cluster(resolver) => {
                let role = Role::of(CALL, &**resolver)?;
                check_on_this_host(CALL, &role)?;
                let tasks: Vec<String> = match role.workers().is_empty() {
                    // A program that runs alone: its process id is unique.
                    true => vec![format!("process {}", std::process::id())],
                    false => role.workers().iter().map(|(task, address)| format!("{task} ({address})")).collect(),
                };
                Ok(Roster { own: role.worker(), digest: job_digest(&tasks), tasks })
            }
            &Job::Id { ref id, rank, size, .. } => {
                if rank >= size {
                    let expected = format!("a rank below the size, {size}");
                    return Err(Error::invalid(CALL, "rank", expected, rank.to_string()));
                }
                // Names are made for all ranks, so their number is compared first.
                if size > MAX_TASKS {
                    return Err(Error::invalid(CALL, "size", format!("at most {MAX_TASKS}"), size.to_string()));
                }
                id.check_here(rank)?;
                let tasks = (0..size).map(|rank| format!("rank {rank}")).collect();
                Ok(Roster { own: rank, digest: id.digest(), tasks })
            }
        }
    }
}

impl Roster {
    /// Returns the name of this process's task.
    pub(super) fn own_task(&self) -> &str {
        &self.tasks[self.own]
    }
}

/// Returns a digest that only processes of the same job share: of the tasks with their addresses,
/// and the job id of a launcher.
fn job_digest(tasks: &[String]) -> u128 {
    let job = ["CONSONANCE_JOB", "SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| env::var(name).unwrap_or_default());
    let text = format!("{}\n{}", tasks.join("\n"), job.join("\n"));
    u128::from(digest(&text)) << 64 | u128::from(digest(&format!("again {text}")))
}
