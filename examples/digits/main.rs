//! Trains a small network on real handwritten digits, data-parallel over replicas. Then proves that
//! the weights have the same bits, whether the gradients travel between threads or between
//! processes.
//!
//! ```text
//! cargo run --release --example digits -- --replicas 4
//! cargo run --release --example digits -- --workers 2
//! cargo run --release --example digits -- --grains 8 --replicas 3
//! cargo run --release --example digits -- --hosts 2 --workers 2
//! ```
//!
//! With `--workers` this process starts itself so many times. Each of these finds its place in
//! `TF_CONFIG`, and a process of another launcher in the variables of that one. With `--hosts` the
//! command `consonance run` plays so many hosts, each with as many processes. The training code is
//! the same: its strategy is a value.

mod data;
mod network;
mod plan;
mod proof;
mod state;
mod train;
#[path = "../worker.rs"]
mod worker;

use clap::{Parser, ValueEnum};
use consonance::{
    Device, Error, Implementation, MultiWorkerMirroredStrategy, Result, Strategy, training::Communication,
};
use data::Digits;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use plan::Plan;
use proof::{Between, Travel, prove};
use std::{
    env, fmt,
    io::{self, Write},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{self, Child, Stdio},
    time::Duration,
};
use train::train;

/// Trains a small network on 1,797 real handwritten digits, data-parallel over replicas. Then
/// proves that the weights have the same bits whatever the size of the buckets, the algorithm of
/// the all-reduce, and the cores and processes of the replicas.
///
/// Ends with failure if any bits differ. A process that a launcher has started, as `consonance run
/// -n 2 -- digits` does, is one of its workers.
#[derive(Parser)]
#[command(
    name = "digits",
    after_help = "Examples: digits --replicas 4 --epochs 50 --hidden 256,128 --pin\n          digits --workers 2 --replicas 2"
)]
struct Options {
    /// Number of processes to start, which train together
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: Option<u64>,
    /// Play this many hosts on this machine, each with --workers processes. This takes the command
    /// consonance, root, iproute2, util-linux, and UCX
    #[arg(long, value_name = "COUNT", requires = "workers", value_parser = clap::value_parser!(u64).range(1..=64))]
    hosts: Option<u64>,
    /// Replicas of each process, each a thread with a copy of the network. By default 2; with
    /// workers as many as CONSONANCE_REPLICAS says, or 1
    #[arg(short, long, value_name = "COUNT")]
    replicas: Option<NonZeroUsize>,
    /// Parts of each step that are contributions of their own, at least one for each replica. The
    /// weights then have the bits of as many replicas, whatever the number of replicas is
    #[arg(short, long, value_name = "COUNT", value_parser = positive)]
    grains: Option<usize>,
    /// Devices of the replicas of each process, such as cuda:0.0,cuda:0.1 for two that share a GPU.
    /// The gradients lie in the devices' memory; the network's own arithmetic is the host's
    #[arg(short, long, value_name = "DEVICES", value_delimiter = ',', conflicts_with = "replicas")]
    device: Vec<Device>,
    /// Number of passes over all training digits
    #[arg(short, long, value_name = "COUNT", default_value_t = 30, value_parser = positive)]
    epochs: usize,
    /// Digits in a step, divided among the replicas
    #[arg(short, long, value_name = "COUNT", default_value_t = 64, value_parser = positive)]
    batch: usize,
    /// Sizes of the hidden layers
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "128,64", value_parser = positive)]
    hidden: Vec<usize>,
    /// Length of a step along the mean gradient
    #[arg(short, long, value_name = "RATE", default_value_t = 0.1, value_parser = rate)]
    learning_rate: f32,
    /// Seed of the choice of test digits, the first weights, and the order of the batches
    #[arg(short, long, default_value_t = 1)]
    seed: u64,
    /// Size limit of the buckets in which gradients travel; 0 for one bucket
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    bytes_per_pack: usize,
    /// Memory that each replica shares with other processes; a multiple of 2 KiB
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = positive)]
    staging_bytes: usize,
    /// Whether a thread reduces the gradients of a layer while the replica computes those of the
    /// next layer; by default if the machine has more cores than replicas
    #[arg(long, value_enum, value_name = "WHETHER")]
    overlap: Option<Switch>,
    /// Bind each replica's thread to a core
    #[arg(long)]
    pin: bool,
    /// Save the training in this file after each epoch. If the file exists, resume from it; the
    /// result has the same bits as without a break
    #[arg(short, long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Train without the proof
    #[arg(long)]
    no_proof: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

fn rate(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f32::is_finite(rate) => Ok(rate),
        Ok(_) => Err("must be more than 0, and finite".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn main() {
    let options = Options::parse();
    let done = match options.workers {
        Some(workers) if env::var_os("TF_CONFIG").is_none() => match options.hosts {
            Some(hosts) => worker::start_on_hosts(hosts, workers, &[], Stdio::inherit()).and_then(succeeds),
            None => launch(workers),
        },
        _ => run(&options),
    };
    process::exit(match done {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    })
}

/// Starts this program as the workers of a cluster, with its own arguments. Returns whether all
/// succeeded. A worker that fails gives those that it has met an error, so all end.
fn launch(workers: u64) -> Result<bool> {
    let start = |index| worker::command(index, workers)?.args(env::args_os().skip(1)).spawn().map_err(Error::other);
    let mut processes: Vec<Child> = Vec::new();
    for index in 0..workers {
        match start(index) {
            Ok(process) => processes.push(process),
            Err(error) => {
                // Without all of them the others would wait until their deadline.
                processes.iter_mut().for_each(|process| _ = process.kill().and_then(|()| process.wait()));
                return Err(error);
            }
        }
    }
    let ends: Vec<bool> = processes.into_iter().map(succeeds).collect::<Result<_>>()?;
    Ok(ends.into_iter().all(|success| success))
}

/// Waits for the end of a process, and returns whether it succeeded.
fn succeeds(mut process: Child) -> Result<bool> {
    Ok(process.wait().map_err(Error::other)?.success())
}

/// Trains, and returns whether every variation of the training gave the same bits.
fn run(options: &Options) -> Result<bool> {
    let digits = Digits::load(options.seed);
    let inputs = digits.train.images.ncols();
    let plan = Plan {
        sizes: [inputs].into_iter().chain(options.hidden.iter().copied()).chain([10]).collect(),
        epochs: options.epochs,
        batch: options.batch,
        learning_rate: options.learning_rate,
        seed: options.seed,
    };
    let travel = Travel {
        between: between(options)?,
        grains: options.grains,
        bytes_per_pack: options.bytes_per_pack,
        implementation: Implementation::Auto,
        pin: options.pin,
        overlap: options.overlap.map(|overlap| overlap == Switch::On),
    };
    let strategy = travel.strategy()?;
    let replicas = strategy.num_replicas_in_sync();
    if options.batch < strategy.grains() {
        let parts = match options.grains {
            Some(grains) => format!("{grains} grains"),
            None => format!("{replicas} replicas"),
        };
        let problem = format!("--batch {} leaves some of {parts} without a digit", options.batch);
        return Err(Error::other(problem));
    }
    if strategy.is_chief() {
        say(format_args!(
            "{} digits to train on, {} to test with; layers of {:?}; replicas: {replicas}\n",
            HumanCount(digits.train.count() as u64),
            digits.test.count(),
            plan.sizes,
        ));
    }
    let digest = train_and_show(&strategy, &digits, &plan, options.checkpoint.as_deref())?;
    if options.no_proof {
        if strategy.is_chief() {
            say(format_args!("digest of the weights: {digest:016x}"));
        }
        return Ok(true);
    }
    prove(travel, strategy, digest, &digits, &plan)
}

/// Returns the replicas between which gradients travel.
fn between(options: &Options) -> Result<Between<'_>> {
    let Options { replicas, staging_bytes, device: devices, .. } = options;
    Ok(match MultiWorkerMirroredStrategy::from_environment()?.cluster_resolver().cluster_spec().is_empty() {
        true if devices.is_empty() => Between::Threads(replicas.map_or(2, NonZeroUsize::get)),
        true => Between::Devices(devices),
        false => Between::Workers { replicas: *replicas, devices, staging_bytes: *staging_bytes },
    })
}

/// Trains, prints a line for each epoch and a summary, and returns the digest of the weights.
fn train_and_show(strategy: &Strategy, digits: &Digits, plan: &Plan, checkpoint: Option<&Path>) -> Result<u64> {
    let is_chief = strategy.is_chief();
    if is_chief {
        say("        training          test");
        say("epoch   loss     right    loss     right    digits/s   in collectives   waited for     hidden");
    }
    let progress = progress(plan, 1, is_chief);
    let (mut right, mut seen, mut elapsed, mut all) = (None, 0, Duration::ZERO, Communication::default());
    let resumes = checkpoint.filter(|path| path.exists());
    let digest = train(strategy, digits, plan, checkpoint, |epoch| {
        if !is_chief {
            return;
        }
        if let (None, Some(path)) = (right, resumes) {
            progress.set_position(epoch.number as u64 - 1);
            progress.suspend(|| say(format_args!("{:5}   resumed from {}", epoch.number - 1, path.display())));
        }
        let test = 100.0 * epoch.test.accuracy();
        right = Some(test);
        seen += epoch.train.count();
        elapsed += epoch.elapsed;
        all += epoch.communication;
        progress.inc(1);
        progress.suspend(|| {
            say(format_args!(
                "{:5}   {:.4}  {:5.1} %   {:.4}  {test:5.1} %  {:>10}   {:9.1} ms  {:6.1} ms {:4.1} %  {:4.0} %",
                epoch.number,
                epoch.train.mean_loss(),
                100.0 * epoch.train.accuracy(),
                epoch.test.mean_loss(),
                per_second(epoch.train.count(), epoch.elapsed),
                1e3 * epoch.communication.total.as_secs_f64(),
                1e3 * epoch.communication.waited.as_secs_f64(),
                100.0 * epoch.communication.waited.div_duration_f64(epoch.elapsed),
                100.0 * epoch.communication.hidden(),
            ))
        });
    })?;
    progress.finish_and_clear();
    if !is_chief {
        return Ok(digest);
    }
    let Some(right) = right else {
        say(format_args!("\nThe checkpoint has all {} epochs already.", plan.epochs));
        return Ok(digest);
    };
    say(format_args!(
        "\n{right:.1} % of the test digits are read right after {:.2} s of training.\n\
         {} digits a second; {:.0} % of the time waiting for collectives, other replicas included;\n\
         {:.0} % of the collectives' time hidden behind computing.",
        elapsed.as_secs_f64(),
        per_second(seen, elapsed),
        100.0 * all.waited.div_duration_f64(elapsed),
        100.0 * all.hidden(),
    ));
    Ok(digest)
}

/// Prints a line. Ends the process without an error if nobody reads the output any more.
fn say(line: impl fmt::Display) {
    if writeln!(io::stdout(), "{line}").is_err() {
        process::exit(0);
    }
}

fn per_second(count: u64, elapsed: Duration) -> String {
    HumanCount((count as f64 / elapsed.as_secs_f64()) as u64).to_string()
}

/// Returns a progress bar over the epochs of `trainings` trainings. Only the chief shows it, and
/// only on a terminal.
fn progress(plan: &Plan, trainings: usize, is_chief: bool) -> ProgressBar {
    if !is_chief {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:40} {percent:>3} %, {eta} left").expect("a template without mistakes");
    ProgressBar::new((trainings * plan.epochs) as u64).with_style(style)
}
