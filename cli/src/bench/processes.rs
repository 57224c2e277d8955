//! Our ranks in other processes: a build of this command, started once a rank, or once for all that
//! are threads.

use super::{
    Bench, Transport,
    group::{ANSWER, Failure, Group, cores},
    rank::{Subject, serve},
};
use crate::{itself, launcher::cluster::Cluster};
use consonance::{CommunicationOptions, Communicator, Implementation, ProcessGroup, TfConfigClusterResolver};
use consonance_kernels::os::thread_pool;
use rustix::time::ClockId;
use std::{env, error::Error, io, os::unix::net::UnixStream, path::Path, process::Command, thread};

/// The hidden command by which a rank begins, with its number.
const RANK: &str = "bench-rank";

/// The same for all ranks of a group of threads, with their number.
const THREADS: &str = "bench-threads";

/// The variable that is set where the ranks' data are to lie in memory of the communicator's.
const ALLOCATED: &str = "CONSONANCE_BENCH_ALLOC";

/// The variable that names the implementation.
const IMPLEMENTATION: &str = "CONSONANCE_BENCH_IMPLEMENTATION";

/// A group of processes, each on a core as [`Group::threads`] has it.
pub(super) fn start(bench: &Bench, directory: &Path) -> Result<Group, Failure> {
    Group::processes(commands(itself::command, bench, Implementation::Auto)?, bench.ranks, directory)
}

/// What starts the ranks that a build of this command has, of which `consonance` starts a process.
pub(super) fn commands(
    consonance: impl Fn() -> io::Result<Command>,
    bench: &Bench,
    implementation: Implementation,
) -> Result<Vec<Command>, Failure> {
    let command = |hidden: &str, number: usize| {
        let mut command = consonance()?;
        command.args([hidden, &number.to_string()]);
        if let Subject::Allocated = bench.subject() {
            command.env(ALLOCATED, "1");
        }
        command.env(IMPLEMENTATION, name(implementation));
        io::Result::Ok(command)
    };
    if bench.transport == Transport::Threads {
        return Ok(vec![command(THREADS, bench.ranks)?]);
    }
    let cluster = Cluster::local(bench.ranks)?;
    let mut commands = (0..bench.ranks).map(|rank| command(RANK, rank)).collect::<io::Result<Vec<Command>>>()?;
    for (rank, command) in commands.iter_mut().enumerate() {
        command.env("TF_CONFIG", cluster.tf_config(rank));
    }
    Ok(commands)
}

fn subject() -> Subject {
    if env::var_os(ALLOCATED).is_some() { Subject::Allocated } else { Subject::Collective }
}

/// The name of an implementation, as users read and write it.
pub(super) fn name(implementation: Implementation) -> &'static str {
    match implementation {
        Implementation::OneShot => "one_shot",
        Implementation::TwoShot => "two_shot",
        _ => "auto",
    }
}

fn implementation() -> Implementation {
    let named = env::var(IMPLEMENTATION).unwrap_or_default();
    let all = [Implementation::OneShot, Implementation::TwoShot];
    all.into_iter().find(|&implementation| name(implementation) == named).unwrap_or_default()
}

/// Is rank `rank` of a group that `TF_CONFIG` tells of, for the bench at `socket`.
///
/// # Errors
/// If the group is not formed, or the socket fails.
pub fn bench_rank(rank: usize, socket: &Path) -> Result<(), Box<dyn Error>> {
    // First, so that the group sees on which cores its members are.
    thread_pool::pin(rank % cores())?;
    let mut group = ProcessGroup::builder(TfConfigClusterResolver::new()?)
        .options(CommunicationOptions::new().timeout(ANSWER)?)
        .timeout(ANSWER)?
        .join()?;
    let mut communicator = group.communicators().pop().ok_or("a process with a rank")?;
    communicator.set_implementation(implementation());
    Ok(serve(UnixStream::connect(socket)?, communicator, subject(), ClockId::ProcessCPUTime)?)
}

/// Is all of `ranks` threads, for the bench at `socket`.
///
/// # Errors
/// If the system gives no thread or refuses a core, or a socket fails.
pub fn bench_threads(ranks: usize, socket: &Path) -> Result<(), Box<dyn Error>> {
    thread::scope(|scope| {
        let threads = Communicator::threads(ranks).into_iter().map(|mut communicator| {
            scope.spawn(move || {
                thread_pool::pin(communicator.rank() % cores())?;
                communicator.set_timeout(ANSWER).expect("a time that is not too long");
                communicator.set_implementation(implementation());
                serve(UnixStream::connect(socket)?, communicator, subject(), ClockId::ThreadCPUTime)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
    })?;
    Ok(())
}
