//! Our ranks in other processes: a build of this command, started once a rank, or once for all
//! ranks if they are threads.

use super::{
    Bench, Transport,
    group::{ANSWER, Failure, Group, cores},
    hosts::Played,
    leaves::Leaves,
    link::Link,
    pace::FREE,
    rank::{Subject, open_gate, serve},
};
use crate::{executable, launcher::cluster::Cluster};
use consonance::{CommunicationOptions, Communicator, Implementation, ProcessGroup, TfConfigClusterResolver};
use consonance_kernels::os::thread_pool;
use rustix::time::ClockId;
use std::{
    env,
    error::Error,
    io,
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

/// The hidden subcommand that runs a rank; its argument is the rank's number.
const RANK: &str = "bench-rank";

/// The hidden subcommand that runs all ranks of a group as threads; its argument is their number.
const THREADS: &str = "bench-threads";

/// The environment variable that is set if the ranks' buffers are allocated by the communicator.
const ALLOCATED: &str = "CONSONANCE_BENCH_ALLOC";

/// The environment variable that is set for the ranks of the limit between hosts: the number of
/// ranks of a host.
const LINKED: &str = "CONSONANCE_BENCH_LINKED";

/// The environment variable with the work of ranks that have leaves.
const LEAVES: &str = "CONSONANCE_BENCH_LEAVES";

/// The environment variable that names the implementation.
const IMPLEMENTATION: &str = "CONSONANCE_BENCH_IMPLEMENTATION";

/// Starts a group of processes, each on the core that [`Group::threads`] gives to its rank.
pub(super) fn start(bench: &Bench, played: Option<&Played>, directory: &Path) -> Result<Group, Failure> {
    let commands = commands(executable::command, bench, played, Implementation::Auto)?;
    Group::processes(commands, bench.ranks, directory)
}

/// Starts a group of processes with leaves.
pub(super) fn start_leaves(bench: &Bench, leaves: Leaves, directory: &Path) -> Result<Group, Failure> {
    let mut commands = commands(executable::command, bench, None, Implementation::Auto)?;
    for command in &mut commands {
        command.env(LEAVES, leaves.to_string());
    }
    Group::processes(commands, bench.ranks, directory)
}

/// Starts the group of the limit between hosts.
pub(super) fn start_limit(bench: &Bench, played: &Played, directory: &Path) -> Result<Group, Failure> {
    let mut commands = commands(executable::command, bench, Some(played), Implementation::Auto)?;
    for command in &mut commands {
        command.env(LINKED, played.ranks_of_host.to_string());
    }
    Group::processes(commands, bench.ranks, directory)
}

/// Returns the commands that start the ranks of a build of this command. `consonance` makes a
/// command that starts the build.
pub(super) fn commands(
    consonance: impl Fn() -> io::Result<Command>,
    bench: &Bench,
    played: Option<&Played>,
    implementation: Implementation,
) -> Result<Vec<Command>, Failure> {
    let command = |hidden: &str, number: usize| {
        let mut command = consonance()?;
        command.args([hidden, &number.to_string()]);
        if let Subject::Allocated = bench.subject() {
            command.env(ALLOCATED, "1");
        }
        command.env(IMPLEMENTATION, name(implementation));
        if !bench.pins() {
            command.env(FREE, "1");
        }
        io::Result::Ok(command)
    };
    if bench.transport == Transport::Threads && played.is_none() {
        return Ok(vec![command(THREADS, bench.ranks)?]);
    }
    let cluster = played.map_or_else(|| Cluster::local(bench.ranks), Played::cluster)?;
    let mut commands = (0..bench.ranks).map(|rank| command(RANK, rank)).collect::<io::Result<Vec<Command>>>()?;
    for (rank, command) in commands.iter_mut().enumerate() {
        command.env("TF_CONFIG", cluster.tf_config(rank));
        if let Some(played) = played {
            *command = played.on_host_of(rank, command);
        }
    }
    Ok(commands)
}

fn subject(communicator: &mut Communicator) -> Result<Subject, Box<dyn Error>> {
    if let Some(ranks_of_host) = env::var(LINKED).ok().and_then(|ranks| ranks.parse().ok()) {
        let link = Link::connect(communicator, ranks_of_host)?;
        return Ok(Subject::Linked(link.map(|link| Arc::new(Mutex::new(link)))));
    }
    if let Ok(leaves) = env::var(LEAVES) {
        return Ok(Subject::Leaves(leaves.parse()?));
    }
    Ok(if env::var_os(ALLOCATED).is_some() { Subject::Allocated } else { Subject::Collective })
}

/// Returns the name of an implementation, as users read and write it.
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

/// Puts this thread on the core of its rank, unless ranks may move.
fn pin(rank: usize) -> io::Result<()> {
    if env::var_os(FREE).is_some() { Ok(()) } else { thread_pool::pin(rank % cores()) }
}

/// Runs as rank `rank` of the group that `TF_CONFIG` describes, for the bench at `socket`.
///
/// # Errors
/// If the group is not formed, or the socket fails.
pub fn bench_rank(rank: usize, socket: &Path) -> Result<(), Box<dyn Error>> {
    // Pins the thread before the group is formed, so that the group sees the cores of its members.
    pin(rank)?;
    let mut group = ProcessGroup::builder(TfConfigClusterResolver::new()?)
        .options(CommunicationOptions::new().timeout(ANSWER)?)
        .timeout(ANSWER)?
        .join()?;
    let mut communicator = group.communicators().pop().ok_or("a process with a rank")?;
    communicator.set_implementation(implementation());
    let subject = subject(&mut communicator)?;
    let gate = open_gate(socket, rank)?;
    Ok(serve(UnixStream::connect(socket)?, communicator, gate, subject, ClockId::ProcessCPUTime)?)
}

/// Runs as a group of `ranks` threads, for the bench at `socket`.
///
/// # Errors
/// If the system gives no thread or refuses a core, or a socket fails.
pub fn bench_threads(ranks: usize, socket: &Path) -> Result<(), Box<dyn Error>> {
    thread::scope(|scope| {
        let threads = Communicator::threads(ranks).into_iter().map(|mut communicator| {
            scope.spawn(move || {
                pin(communicator.rank())?;
                communicator.set_timeout(ANSWER).expect("a time that is not too long");
                communicator.set_implementation(implementation());
                let gate = open_gate(socket, communicator.rank())?;
                let subject = if env::var_os(ALLOCATED).is_some() { Subject::Allocated } else { Subject::Collective };
                serve(UnixStream::connect(socket)?, communicator, gate, subject, ClockId::ThreadCPUTime)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
    })?;
    Ok(())
}
