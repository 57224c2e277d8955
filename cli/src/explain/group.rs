//! Forms a real group to learn its topology. Ranks know only after they have met whether they can
//! read each other's memory.

use crate::{bench::case::Collective, executable, launcher::cluster::Cluster};
use consonance::{CommunicationOptions, Communicator, ProcessGroup, TfConfigClusterResolver};
use consonance_kernels::group::{LARGE_BYTES, plan::Topology};
use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

/// The time that the processes wait for each other.
const MEETING: Duration = Duration::from_secs(30);

/// Returns the topology of a group of `ranks` threads.
pub fn topology_of_threads(ranks: usize) -> Topology {
    topology(&Communicator::threads(ranks)[0], None)
}

fn topology(rank: &Communicator, peer: Option<usize>) -> Topology {
    rank.topology(peer).expect("ranks that share memory")
}

/// Returns the topology of this rank's group for calls of `collective`. All ranks must make this
/// call.
///
/// # Errors
/// If the ranks do not meet.
pub fn topology_of(rank: &mut Communicator, collective: Collective) -> consonance::Result<Topology> {
    let mut large = vec![0u8; LARGE_BYTES];
    if collective != Collective::SendRecv {
        // After a large call the ranks have chosen their pipelines.
        rank.broadcast(&mut large, 0)?;
        // In the first barrier the ranks try to read each other's memory. After the second, all
        // know the result.
        rank.barrier()?;
        rank.barrier()?;
        return Ok(topology(rank, None));
    }
    let other = match rank.rank() {
        0 => 1,
        1 => 0,
        _ => return Ok(topology(rank, None)),
    };
    for _ in 0..2 {
        match other {
            1 => rank.send(&large, 1)?,
            _ => rank.recv(&mut large, 0)?,
        }
    }
    Ok(topology(rank, Some(other)))
}

/// Runs as a rank of the processes that [`start`] has started.
///
/// # Errors
/// If the ranks do not meet.
pub fn join() -> consonance::Result<(ProcessGroup, Communicator)> {
    let mut group = ProcessGroup::builder(TfConfigClusterResolver::new()?)
        .options(CommunicationOptions::new().timeout(MEETING)?)
        .timeout(MEETING)?
        .join()?;
    let rank = group.communicators().remove(0);
    Ok((group, rank))
}

/// Starts this command with its own arguments once for each rank. The rank's number comes before
/// the other arguments, among which a `--` may be. The output of rank 0 is the output of this
/// command. Returns the status of rank 0.
///
/// # Errors
/// The system's.
pub fn start(ranks: usize) -> io::Result<ExitStatus> {
    let cluster = Cluster::local(ranks)?;
    let command = |rank: usize| {
        let (mut command, mut arguments) = (executable::command()?, executable::arguments().iter());
        command.args(arguments.next()).arg("--rank").arg(rank.to_string()).args(arguments);
        command.env("TF_CONFIG", cluster.tf_config(rank)).stdin(Stdio::null());
        if rank > 0 {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.spawn()
    };
    let children = (0..ranks).map(command).collect::<io::Result<Vec<_>>>()?;
    let statuses = children.into_iter().map(|mut child| child.wait()).collect::<io::Result<Vec<_>>>()?;
    Ok(statuses[0])
}
