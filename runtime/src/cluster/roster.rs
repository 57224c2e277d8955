//! The place of a process among those of its job.

use super::Role;
use crate::{ClusterResolver, Error, Result, UniqueId};
use consonance_kernels::{
    bootstrap::{Waiting, packet::MAX_TASKS},
    digest::digest,
    wire::Kind,
};
use std::{env, sync::Arc, time::Duration};

const CALL: &str = "ProcessGroup";

/// The wait after which a process says how long it goes on. Before, others may just be starting.
const TELLS_CURE: Duration = Duration::from_secs(10);

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
    /// The processes that a launcher has started on several hosts: all know the address of a table,
    /// `host:port`, which rank 0 serves. The text tells one job from another.
    Chief {
        address: String,
        rank: usize,
        size: usize,
        job: String,
    },
}

/// The way of data between processes of one host, if the group has a wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Locality {
    /// Through memory that they share.
    Memory,
    /// Over the wire, as to other hosts.
    Wire,
    /// As between the hosts of this number and others that they play. For tests.
    Played(usize),
}

/// The way in which the processes of a job find each other.
pub(super) enum Way {
    /// By a name on this host, whose memory they share.
    Host,
    /// At their addresses, which all know, in order of the tasks. They use a wire.
    Addresses(Vec<String>),
    /// By the table of their addresses, at one of these addresses. They use a wire.
    Table {
        at: Vec<String>,
        /// Whether this process serves it.
        serves: bool,
    },
}

/// The place of this process among those of its job.
pub(super) struct Roster {
    /// The names of all processes of the job, with their addresses.
    pub(super) tasks: Vec<String>,
    pub(super) own: usize,
    pub(super) digest: u128,
    pub(super) way: Way,
}

impl Job {
    /// Whether the processes have chosen each other, and not the launcher.
    pub(super) fn is_private(&self) -> bool {
        matches!(self, Job::Id { is_private: true, .. })
    }

    /// Returns the place of this process, whose job may use a wire on one host, too.
    pub(super) fn place(&self, locality: Locality) -> Result<Roster> {
        match self {
            Job::Cluster(resolver) => {
                let role = Role::of(CALL, &**resolver)?;
                let way = match role.is_shared() && wants_wire(locality != Locality::Memory || role.spans_hosts())? {
                    true => Way::Addresses(role.workers().iter().map(|(_, address)| address.clone()).collect()),
                    false => Way::Host,
                };
                let tasks: Vec<String> = match role.workers().is_empty() {
                    // A program that runs alone: its process id is unique.
                    true => vec![format!("process {}", std::process::id())],
                    false => role.workers().iter().map(|(task, address)| format!("{task} ({address})")).collect(),
                };
                Ok(Roster { own: role.worker(), digest: job_digest(&tasks), tasks, way })
            }
            &Job::Id { ref id, rank, size, .. } => {
                let tasks = ranks(rank, size)?;
                let way = match id.addresses() {
                    at if at.is_empty() => {
                        id.check_here(rank)?;
                        Way::Host
                    }
                    // A process that runs alone needs no network.
                    _ if size == 1 => Way::Host,
                    at => Way::Table { at, serves: false },
                };
                Ok(Roster { own: rank, digest: id.digest(), tasks, way })
            }
            &Job::Chief { ref address, rank, size, ref job } => {
                let tasks = ranks(rank, size)?;
                // Hosts may have other names for the address. Sizes that differ are told of.
                let digest = digest_of(&format!("launched\n{job}"));
                let way = match size {
                    1 => Way::Host,
                    _ => Way::Table { at: vec![address.clone()], serves: rank == 0 },
                };
                Ok(Roster { own: rank, digest, tasks, way })
            }
        }
    }
}

/// Returns the names of the ranks of a job whose tasks have no other names.
fn ranks(rank: usize, size: usize) -> Result<Vec<String>> {
    if rank >= size {
        return Err(Error::invalid(CALL, "rank", format!("a rank below the size, {size}"), rank.to_string()));
    }
    // Names are made for all ranks, so their number is compared first.
    if size > MAX_TASKS {
        return Err(Error::invalid(CALL, "size", format!("at most {MAX_TASKS}"), size.to_string()));
    }
    Ok((0..size).map(|rank| format!("rank {rank}")).collect())
}

/// Returns whether processes meet at their addresses and use a wire. Those of several hosts must
/// (`must`); those of one may.
///
/// # Errors
/// As [`chosen_wire`].
fn wants_wire(must: bool) -> Result<bool> {
    Ok(chosen_wire()?.is_some() || must)
}

/// Returns the kind of wire that `CONSONANCE_WIRE` names, if it is set.
///
/// # Errors
/// [`Error::InvalidCall`] for a name of no wire.
pub(super) fn chosen_wire() -> Result<Option<Kind>> {
    let name = env::var("CONSONANCE_WIRE").unwrap_or_default();
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    if kind.is_none() && !name.is_empty() {
        let names = Kind::ALL.map(Kind::name).join(" or ");
        return Err(Error::invalid(CALL, "CONSONANCE_WIRE", names, name));
    }
    Ok(kind)
}

impl Roster {
    /// Returns what this process says while it waits for others, at most `timeout`.
    pub(super) fn waits(&self, waiting: &Waiting, timeout: Duration) -> String {
        let missing: Vec<&str> = waiting.missing.iter().map(|&task| self.tasks[task].as_str()).collect();
        let (own, waited) = (self.own_task(), waiting.waited.as_secs());
        let elsewhere: Vec<String> = waiting.elsewhere.iter().map(u32::to_string).collect();
        let hint = match elsewhere.join(" or ").as_str() {
            "" => String::new(),
            processes => {
                format!("; perhaps for process {processes}, which has another cluster, CONSONANCE_JOB or Slurm step")
            }
        };
        let cure = match waiting.waited < TELLS_CURE {
            true => String::new(),
            false => format!("; it gives up after {} s (see MultiWorkerBuilder::meeting)", timeout.as_secs()),
        };
        format!("{own} has waited {waited} s for {}{hint}{cure}", missing.join(", "))
    }

    /// Returns the name of this process's task.
    pub(super) fn own_task(&self) -> &str {
        &self.tasks[self.own]
    }
}

/// Returns a digest that only processes of the same job share: of the tasks with their addresses,
/// and the job id of a launcher.
pub(super) fn job_digest(tasks: &[String]) -> u128 {
    let job = ["CONSONANCE_JOB", "SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| env::var(name).unwrap_or_default());
    digest_of(&format!("{}\n{}", tasks.join("\n"), job.join("\n")))
}

fn digest_of(text: &str) -> u128 {
    u128::from(digest(text)) << 64 | u128::from(digest(&format!("again {text}")))
}
