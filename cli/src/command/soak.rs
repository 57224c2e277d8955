//! `consonance soak`: random collectives with random faults, compared with the spec.

use crate::soak::{Plan, Soak, Worker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Let processes make random calls while they are killed and stopped, and compare every result with
/// the spec.
///
/// The processes share memory, as those of a cluster do. In each round all of them make the same
/// few calls: any collective, on groups that are split off, too, of any dtype, operation and size,
/// blocking or asynchronous. Now and then one is killed (SIGKILL), and replaced; or stopped
/// (SIGSTOP), and goes on at once or when the others have given it up. Whoever is left has to get
/// an error that names the process, and the next group has to work.
///
/// A seed is one sequence of calls, sizes and times of faults, round by round. A wrong result, an
/// error without a reason and a process that hangs end the soak with status 1 and with what repeats
/// it: the seed, the round, and the last calls of all ranks.
#[derive(clap::Args)]
pub(crate) struct Command {
    /// For how long
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many processes there are
    #[arg(long, value_name = "P", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    processes: u64,
    /// How many ranks each of them has
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    replicas: u64,
    /// Whence everything comes; by default another one each time
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The first round
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    round: u64,
    /// Kill and stop nobody
    #[arg(long)]
    no_faults: bool,
}

/// How a soak starts one of its processes.
#[derive(clap::Args)]
pub(crate) struct WorkerCommand {
    seed: u64,
    processes: usize,
    replicas: usize,
    index: usize,
    round: u64,
    parent: u32,
    #[arg(long)]
    no_faults: bool,
}

impl Command {
    /// Writes how far it is to standard output.
    ///
    /// # Errors
    /// What went wrong.
    pub(crate) fn run(self) -> Result<(), String> {
        let seed = self.seed.unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64 % 1_000_000_000)
        });
        let Command { seconds, round, no_faults, .. } = self;
        let (processes, replicas) = (self.processes as usize, self.replicas as usize);
        let plan = Plan { seed, processes, replicas, faults: !no_faults };
        let soak = Soak { plan, round, time: Duration::from_secs(seconds) };
        println!("seed {seed}, {processes} processes of {replicas} ranks, for {seconds} s");
        let progress = soak.run(|progress| println!("{progress}")).map_err(|failure| failure.to_string())?;
        println!("{progress}; every result as the spec says");
        Ok(())
    }
}

impl WorkerCommand {
    pub(crate) fn run(self) -> i32 {
        let WorkerCommand { seed, processes, replicas, index, round, parent, no_faults } = self;
        let plan = Plan { seed, processes, replicas, faults: !no_faults };
        Worker { plan, index, round, parent }.run()
    }
}
