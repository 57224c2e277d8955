//! Hidden subcommands, by which a bench starts its processes: ranks, workers, roles, busy ones.

use crate::bench::{
    bench_rank, bench_threads, busy, coordinator::bench_role, kills::kills_role, strategies::bench_worker,
};
use clap::Args;
use std::path::PathBuf;

/// Starts a worker or a server of the bench of a coordinator.
#[derive(Args)]
pub(crate) struct Role {
    /// Number of closures whose effects are counted, if they are
    #[arg(long)]
    closures: Option<usize>,
}

/// Starts a worker of the bench of strategies.
#[derive(Args)]
pub(crate) struct Worker {
    part: String,
    rounds: usize,
}

/// Arguments with which the bench starts a rank that is a process.
#[derive(Args)]
pub(crate) struct Rank {
    rank: usize,
    socket: PathBuf,
}

/// Arguments with which the bench starts a process whose threads are the ranks.
#[derive(Args)]
pub(crate) struct Threads {
    ranks: usize,
    socket: PathBuf,
}

/// Runs as a rank, and returns the exit status of the command.
pub(crate) fn rank(arguments: &Rank) -> i32 {
    match bench_rank(arguments.rank, &arguments.socket) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("rank {}: {error}", arguments.rank);
            1
        }
    }
}

/// Runs as a worker of the bench of strategies, and returns the exit status of the command.
pub(crate) fn worker(arguments: &Worker) -> i32 {
    match bench_worker(&arguments.part, arguments.rounds) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("consonance bench strategies: {error}");
            1
        }
    }
}

/// Runs as a worker or a server of the bench of a coordinator, and returns the exit status of the
/// command.
pub(crate) fn role(role: &Role) -> i32 {
    match role.closures.map_or_else(bench_role, kills_role) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("consonance bench coordinator: {error}");
            1
        }
    }
}

/// Runs as a busy process, and returns the exit status of the command.
pub(crate) fn busy_process() -> i32 {
    let Err(error) = busy();
    eprintln!("consonance bench: {error}");
    1
}

/// Runs as all ranks, and returns the exit status of the command.
pub(crate) fn threads(arguments: &Threads) -> i32 {
    match bench_threads(arguments.ranks, &arguments.socket) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}
