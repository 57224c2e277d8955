//! Our ranks as processes: this binary, started once a rank.

use super::{
    group::{ANSWER, Failure, Group, cores},
    rank::{Subject, serve},
};
use crate::launcher::cluster::Cluster;
use consonance::{CommunicationOptions, ProcessGroup, TfConfigClusterResolver};
use consonance_kernels::team;
use rustix::time::ClockId;
use std::{env, error::Error, os::unix::net::UnixStream, path::Path, process::Command};

/// The hidden command by which a rank begins.
const COMMAND: &str = "bench-rank";

/// The variable that is set where the rank's data are to lie in memory of the communicator's.
const ALLOCATED: &str = "CONSONANCE_BENCH_ALLOC";

/// A group of `ranks` processes, each on a core as [`Group::threads`] has it.
pub(super) fn start(ranks: usize, directory: &Path, subject: Subject) -> Result<Group, Failure> {
    let cluster = Cluster::local(ranks)?;
    let consonance = env::current_exe()?;
    let command = |rank: usize| {
        let mut command = Command::new(&consonance);
        command.args([COMMAND, &rank.to_string()]);
        if let Subject::Allocated = subject {
            command.env(ALLOCATED, "1");
        }
        command.env("TF_CONFIG", cluster.tf_config(rank));
        command
    };
    Group::processes((0..ranks).map(command).collect(), ranks, directory, "consonance")
}

/// Is rank `rank` of a group that `TF_CONFIG` tells of, for the bench at `socket`.
///
/// # Errors
/// If the group is not formed, or the socket fails.
pub fn bench_rank(rank: usize, socket: &Path) -> Result<(), Box<dyn Error>> {
    // First, so that the group sees on which cores its members are.
    team::pin(rank % cores())?;
    let mut group = ProcessGroup::builder(TfConfigClusterResolver::new()?)
        .options(CommunicationOptions::new().timeout(ANSWER)?)
        .timeout(ANSWER)?
        .join()?;
    let communicator = group.communicators().pop().ok_or("a process with a rank")?;
    let subject = if env::var_os(ALLOCATED).is_some() { Subject::Allocated } else { Subject::Collective };
    Ok(serve(UnixStream::connect(socket)?, communicator, subject, ClockId::ProcessCPUTime)?)
}
