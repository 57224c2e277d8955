//! `consonance soak`: random collectives with random faults, compared with the spec.

use super::{number, terminal};
use crate::{
    launcher::Cable,
    soak::{GrainSoak, GrainWorker, Jobs, Plan, Progress, Schedules, ServerRole, ServerSoak, Soak, Worker},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The time between two lines of progress.
const TELLS: Duration = Duration::from_secs(10);

/// Kill and stop processes while they make random calls, and compare every result with the spec.
///
/// The processes are one group over shared memory; with `--hosts`, over the network that joins
/// hosts that this machine plays. In each round all of them make the same few calls: any
/// collective, also on subgroups, of any dtype, operation and size, blocking or asynchronous. In
/// some rounds one process is killed (SIGKILL) and replaced, or stopped (SIGSTOP).
/// A stopped process goes on after a short time, or when the others have given it up. The ranks
/// that are left must get an error that names the process, and the next group must work.
///
/// A seed determines the calls, their sizes and the times of faults of every round. A wrong result,
/// an error without a reason or a process that hangs ends the soak with status 1. Then it prints
/// the arguments that repeat the failure (seed and round), and the last calls of all ranks.
///
/// With `--grains` it repeats one training after another schedule each time, on 1 to 8 replicas,
/// threads or processes, with dense or sparse gradients. Processes are killed in the middle of
/// steps, some are replaced, and the training is resumed from its checkpoint on other numbers of
/// replicas. Every schedule must end with the digest of an undisturbed training on one replica.
///
/// With `--servers` it runs one job with parameter servers after another, with 1 to 3 workers and
/// servers and in any order of effects. Workers are killed and replaced, workers and servers are
/// stopped, servers are killed, and the chief recovers from a checkpoint. Every effect of a closure
/// must be there once. Between recoveries a worker must take each element of its data set once.
/// Where the order of effects is fixed, all bits must be those of the same program, undisturbed on
/// threads.
#[derive(clap::Args)]
pub(crate) struct Command {
    /// Duration of the soak in seconds
    #[arg(long, value_name = "N", required_unless_present_any = ["schedules", "jobs"], value_parser = number::<u64>(1..=usize::MAX))]
    seconds: Option<u64>,
    /// Disturb trainings with grains, and compare their digests
    #[arg(long, conflicts_with_all = ["processes", "replicas", "hosts", "cable", "no_faults"])]
    grains: bool,
    /// End after this many schedules of --grains
    #[arg(long, value_name = "N", requires = "grains", value_parser = number::<u64>(1..=usize::MAX))]
    schedules: Option<u64>,
    /// Disturb jobs with parameter servers, and count the effects of their closures
    #[arg(long, conflicts_with_all = ["grains", "processes", "replicas", "hosts", "cable", "no_faults"])]
    servers: bool,
    /// End after this many jobs of --servers
    #[arg(long, value_name = "N", requires = "servers", value_parser = number::<u64>(1..=usize::MAX))]
    jobs: Option<u64>,
    /// Number of processes
    #[arg(long, value_name = "P", default_value_t = 3, value_parser = number::<u64>(1..=16))]
    processes: u64,
    /// Number of ranks in each process
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = number::<u64>(1..=8))]
    replicas: u64,
    /// Number of hosts that this machine plays (takes root); processes are dealt to them in turn
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = number::<u64>(1..=16))]
    hosts: u64,
    /// Let the cables of these hosts delay, reorder, lose and cut off frames, as `consonance run
    /// --cable` does
    #[arg(long, value_name = "CABLE", requires = "hosts", value_parser = super::cable)]
    cable: Option<Cable>,
    /// Seed of everything random; by default a new one each time
    #[arg(long, value_name = "S", value_parser = number::<u64>(0..=usize::MAX))]
    seed: Option<u64>,
    /// The first round, schedule of --grains, or job of --servers
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = number::<u64>(1..=usize::MAX))]
    round: u64,
    /// Kill and stop no process
    #[arg(long)]
    no_faults: bool,
}

/// Arguments with which a soak with grains starts one of its processes.
#[derive(clap::Args)]
pub(crate) struct GrainCommand {
    seed: u64,
    schedule: u64,
    leg: usize,
    index: usize,
    life: usize,
    checkpoint: PathBuf,
    parent: String,
}

impl GrainCommand {
    pub(crate) fn run(self) -> i32 {
        let GrainCommand { seed, schedule, leg, index, life, checkpoint, parent } = self;
        GrainWorker { seed, schedule, leg, index, life, checkpoint, parent }.run()
    }
}

/// Arguments with which a soak with parameter servers starts one of its processes.
#[derive(clap::Args)]
pub(crate) struct ServerCommand {
    seed: u64,
    job: u64,
    parent: String,
}

impl ServerCommand {
    pub(crate) fn run(self) -> i32 {
        let ServerCommand { seed, job, parent } = self;
        ServerRole { seed, job, parent }.run()
    }
}

/// Arguments with which a soak starts one of its processes.
#[derive(clap::Args)]
pub(crate) struct WorkerCommand {
    seed: u64,
    processes: usize,
    replicas: usize,
    hosts: usize,
    index: usize,
    round: u64,
    parent: String,
    #[arg(long)]
    no_faults: bool,
}

impl Command {
    /// Runs the soak. Shows its progress as a bar if standard error is a terminal, and otherwise as
    /// a line every 10 s on standard output.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn run(self) -> Result<(), String> {
        let seed = self.seed.unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64 % 1_000_000_000)
        });
        let Command { seconds, round, no_faults, .. } = self;
        // Without a duration, the number of schedules or jobs bounds the soak.
        let seconds = seconds.unwrap_or(u64::MAX);
        if self.grains {
            let (time, most) = (Duration::from_secs(seconds), self.schedules.unwrap_or(u64::MAX));
            return disturb(&GrainSoak { seed, first: round, time, most });
        }
        if self.servers {
            let (time, most) = (Duration::from_secs(seconds), self.jobs.unwrap_or(u64::MAX));
            return count_effects(&ServerSoak { seed, first: round, time, most });
        }
        let (processes, replicas) = (self.processes as usize, self.replicas as usize);
        let hosts = self.hosts as usize;
        if hosts > processes {
            return Err(format!("--hosts {hosts}: expected at most one for each of the {processes} processes"));
        }
        if self.cable.is_some() && hosts == 1 {
            return Err("--cable: expected several hosts, --hosts".to_owned());
        }
        let plan = Plan { seed, processes, replicas, hosts, faults: !no_faults };
        let soak = Soak { plan, cable: self.cable, round, time: Duration::from_secs(seconds) };
        let (of_processes, of_ranks) = (count(processes, "process", "processes"), count(replicas, "rank", "ranks"));
        let on_hosts = if hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
        println!("seed {seed}, {of_processes} of {of_ranks}{on_hosts}, for {seconds} s");
        // Hidden if standard error is no terminal: then lines tell the progress.
        let style = ProgressStyle::with_template("{bar:20} {elapsed} gone, {msg}").expect("a template that is right");
        let bar = ProgressBar::new(seconds).with_style(style);
        let (begin, mut told) = (Instant::now(), Instant::now());
        let tell = |progress: &Progress| {
            let left = soak.time.saturating_sub(begin.elapsed());
            if !bar.is_hidden() {
                bar.set_position(begin.elapsed().as_secs());
                let Progress { round, kills, stops, .. } = progress;
                let (kills, stops) = (count(*kills as usize, "kill", "kills"), count(*stops as usize, "stop", "stops"));
                bar.set_message(format!("{} s left: round {round}, {kills}, {stops}", left.as_secs()));
            } else if told.elapsed() >= TELLS {
                told = Instant::now();
                println!("{}", terminal::fit(&format!("{progress}; {} s left", left.as_secs())));
            }
        };
        let progress = soak.run(tell).map_err(|failure| failure.to_string())?;
        bar.finish_and_clear();
        println!("{}", terminal::fit(&format!("{progress}; every result as the spec says")));
        Ok(())
    }
}

/// Runs schedules with grains.
fn disturb(soak: &GrainSoak) -> Result<(), String> {
    println!("seed {}, {} grains on 1 to 8 replicas", soak.seed, soak.grains());
    let mut told = Instant::now();
    let tell = |schedules: &Schedules| {
        if told.elapsed() >= TELLS {
            told = Instant::now();
            println!("{}", terminal::fit(&schedules.to_string()));
        }
    };
    let schedules = soak.run(tell).map_err(|failure| failure.to_string())?;
    println!("{}", terminal::fit(&format!("{schedules}; every digest as undisturbed on one replica")));
    Ok(())
}

/// Runs jobs with parameter servers.
fn count_effects(soak: &ServerSoak) -> Result<(), String> {
    println!("seed {}, jobs with 1 to 3 workers and servers", soak.seed);
    let mut told = Instant::now();
    let tell = |jobs: &Jobs| {
        if told.elapsed() >= TELLS {
            told = Instant::now();
            println!("{}", terminal::fit(&jobs.to_string()));
        }
    };
    let jobs = soak.run(tell).map_err(|failure| failure.to_string())?;
    println!("{}", terminal::fit(&format!("{jobs}; every effect once")));
    Ok(())
}

/// Returns `1 rank`, or `2 ranks`.
fn count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

impl WorkerCommand {
    pub(crate) fn run(self) -> i32 {
        let WorkerCommand { seed, processes, replicas, hosts, index, round, parent, no_faults } = self;
        let plan = Plan { seed, processes, replicas, hosts, faults: !no_faults };
        Worker { plan, index, round, parent }.run()
    }
}
