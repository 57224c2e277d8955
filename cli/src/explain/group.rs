//! A real group, to ask on what ground its calls stand: whether processes can read each other's
//! memory is known when they have met.

use crate::{bench::case::Collective, itself, launcher::cluster::Cluster};
use consonance::{CommunicationOptions, Communicator, ProcessGroup, TfConfigClusterResolver};
use consonance_kernels::group::plan::Topology;
use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

/// How long the processes wait for each other.
const MEETING: Duration = Duration::from_secs(30);

/// The ground of so many threads.
pub fn topology_of_threads(ranks: usize) -> Topology {
    topology(&Communicator::threads(ranks)[0], None)
}

fn topology(rank: &Communicator, peer: Option<usize>) -> Topology {
    rank.topology(peer).expect("ranks that share memory")
}

/// The ground of this rank's group for calls of `collective`. All ranks ask.
///
/// # Errors
/// If they do not come together.
pub fn topology_of(rank: &mut Communicator, collective: Collective) -> consonance::Result<Topology> {
    if collective != Collective::SendRecv {
        // In the first call they see each other, in the second they know what they can do.
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
            1 => rank.send(&[1u8], 1)?,
            _ => rank.recv(&mut [1u8], 0)?,
        }
    }
    Ok(topology(rank, Some(other)))
}

/// Is a rank of the processes that [`start`] has started.
///
/// # Errors
/// If they do not come together.
pub fn join() -> consonance::Result<(ProcessGroup, Communicator)> {
    let mut group = ProcessGroup::builder(TfConfigClusterResolver::new()?)
        .options(CommunicationOptions::new().timeout(MEETING)?)
        .timeout(MEETING)?
        .join()?;
    let rank = group.communicators().remove(0);
    Ok((group, rank))
}

/// Starts this command, as it was started, once a rank, with the rank's number before its own
/// arguments, among which a `--` may be; what rank 0 writes is the command's. The status of rank 0.
///
/// # Errors
/// The system's.
pub fn start(ranks: usize) -> io::Result<ExitStatus> {
    let cluster = Cluster::local(ranks)?;
    let command = |rank: usize| {
        let (mut command, mut arguments) = (itself::command()?, itself::arguments().iter());
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
