//! A training that loses a worker and goes on, with the remaining workers or with a replacement.
//!
//! ```text
//! cargo run --release --example elastic
//! cargo run --release --example elastic -- --replace
//! cargo run --release --example elastic -- --grains 6
//! cargo run --release --example elastic -- --grains 6 --hosts 2
//! ```
//!
//! This process starts the workers, each a process of this program with one replica. One of them
//! kills itself in the middle of a step. The others get an error that names it,
//! [reform](MultiWorkerMirroredStrategy::reform) their group and [go on from the newest
//! state](catch_up) among them. A replacement begins like every worker, and gets the state from the
//! others.
//!
//! Step `s` uses batch `s`, divided among the replicas that are there. So the whole training can be
//! repeated in one process, with as many threads as there were workers at each step. At the end its
//! bits are compared with the bits of the workers. With `--grains` the batch is divided among
//! grains, which the replicas share: the bits are then those of an undisturbed training on one
//! replica. With `--hosts` the command `consonance run` plays hosts and starts the workers, and all
//! workers of one host kill themselves in the same step.

#[path = "digits/data.rs"]
mod data;
#[expect(dead_code, reason = "the other example uses more of it")]
#[path = "digits/network.rs"]
mod network;
mod worker;

use clap::Parser;
use consonance::{
    ClusterResolver, CommunicationOptions, Error, MirroredStrategy, MultiWorkerMirroredStrategy, Nest, ReduceOp,
    Result, Strategy, Tensor, TfConfigClusterResolver,
};
use data::{Digits, Random, Samples};
use network::Network;
use rustix::process::{Signal, getpid, kill_process};
use std::{
    env,
    io::{BufRead, BufReader},
    mem,
    ops::Range,
    process::{self, ExitStatus, Stdio},
    sync::mpsc::{self, Sender},
    thread,
    time::Duration,
};

const SEED: u64 = 1;
const SIZES: [usize; 3] = [64, 32, 10];
const BATCH: usize = 60;
const LEARNING_RATE: f32 = 0.1;

/// The time that a worker waits for another one. A step takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Trains a small network on handwritten digits with several processes, one of which is killed
/// during the training.
///
/// The others go on without it, or with a replacement. Ends with failure unless the weights finally
/// have the same bits as after the same training in one process.
#[derive(Parser)]
#[command(name = "elastic", after_help = "Example: elastic --workers 4 --lose 0 --at 50 --replace")]
struct Options {
    /// Number of workers, with --hosts of each host
    #[arg(short, long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=64))]
    workers: u64,
    /// Number of training steps
    #[arg(short, long, value_name = "COUNT", default_value_t = 240)]
    steps: u64,
    /// Index of the worker that is killed, with --hosts of the host
    #[arg(long, value_name = "WORKER", default_value_t = 1)]
    lose: u64,
    /// The step in which it is killed
    #[arg(long, value_name = "STEP", default_value_t = 100)]
    at: u64,
    /// Start another process in its place
    #[arg(long)]
    replace: bool,
    /// Parts of each step, at least one for each worker. The weights then have the same bits for
    /// any number of workers
    #[arg(short, long, value_name = "COUNT")]
    grains: Option<usize>,
    /// Play this many hosts on this machine, one of which is lost. This takes the command
    /// consonance, root, iproute2, util-linux, and UCX
    #[arg(long, value_name = "COUNT", requires = "grains", conflicts_with = "replace", value_parser = clap::value_parser!(u64).range(2..=64))]
    hosts: Option<u64>,
    /// This worker kills itself in step `--at`
    #[arg(long, hide = true)]
    doomed: bool,
}

fn main() {
    let options = Options::parse();
    let done = match env::var("TF_CONFIG") {
        Ok(_) => work(&options).map(|()| true),
        Err(_) => match options.hosts {
            Some(hosts) => supervise_hosts(&options, hosts),
            None => supervise(&options),
        },
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

/// The state that a step changes, and that a replacement must get. It is the same on all replicas.
#[derive(Clone, Nest)]
struct State {
    /// The number of steps that are done.
    step: u64,
    network: Network,
    velocity: Network,
}

impl State {
    fn new() -> Result<State> {
        let network = Network::random(&SIZES, &mut Random::new(SEED))?;
        Ok(State { step: 0, velocity: network.zeros_like(), network })
    }

    fn describe(&self, test: &Samples) -> Result<String> {
        let tally = self.network.evaluate(test)?;
        Ok(format!("{:.1} % of the test digits are read right", 100.0 * tally.accuracy()))
    }
}

/// Continues from `state` up to step `end`. Calls `amid` in each step when the first grain of a
/// replica is done, before the replicas meet.
fn train(strategy: &Strategy, state: &mut State, end: u64, samples: &Samples, amid: impl Fn(u64) + Sync) -> Result<()> {
    while state.step < end {
        let batch = batch(samples.count(), state.step);
        let all = strategy.grains();
        let of_grain = |grain: usize| {
            let part = samples.select(&batch[BATCH * grain / all..BATCH * (grain + 1) / all]);
            let mut layers = Vec::new();
            state.network.gradients(&part, |layer| {
                layers.push(layer);
                Ok(())
            })?;
            Network::from_last(layers)
        };
        let gradients = strategy.run(|replica| {
            let (mut sum, mut grains) = (replica.accumulator(ReduceOp::Sum)?, replica.grains());
            let mut gradients = of_grain(grains.next().expect("each replica has a grain"))?;
            amid(state.step);
            for grain in grains {
                sum.add(mem::replace(&mut gradients, of_grain(grain)?))?;
            }
            sum.all_reduce(gradients)
        })?;
        state.network.descend(&mut state.velocity, &gradients[0], BATCH, LEARNING_RATE)?;
        state.step += 1;
    }
    Ok(())
}

/// Returns the samples of a step, which are the same on every replica.
fn batch(count: usize, step: u64) -> Vec<usize> {
    let mut order = Random::new(SEED + 1 + step).permutation(count);
    order.truncate(BATCH);
    order
}

// A worker
// -------------------------------------------------------------------------------------------------

/// Runs as a worker, also as a replacement.
fn work(options: &Options) -> Result<()> {
    let digits = Digits::load(SEED);
    let resolver = TfConfigClusterResolver::new()?;
    let host = resolver.task_id().map(|worker| worker as u64 / options.workers);
    let mut builder = MultiWorkerMirroredStrategy::builder(resolver)
        .options(CommunicationOptions::new().timeout(TIMEOUT)?)
        .meeting(|group| group.timeout(TIMEOUT));
    if let Some(grains) = options.grains {
        builder = builder.grains(grains);
    }
    let strategy = builder.build()?;
    let is_doomed = options.doomed || options.hosts.is_some() && host == Some(options.lose);
    let mut state = State::new()?;
    let die = |step| {
        if is_doomed && step == options.at {
            println!("in step {step}: kill -9 {}", process::id());
            // A process may kill itself, so this does not fail.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    };
    loop {
        let trained = catch_up(&strategy, &mut state)
            .and_then(|()| train(&strategy, &mut state, options.steps, &digits.train, die));
        match trained {
            Ok(()) => break,
            Err(error) if error.is_loss() => {
                println!("{} steps are done; {}", state.step, first_clause(&error));
                reform(&strategy, options.replace)?;
            }
            Err(error) => return Err(error),
        }
    }
    println!("done: {}; digest of the weights {:016x}", state.describe(&digits.test)?, state.network.digest()?);
    Ok(())
}

/// Reforms the group of the remaining workers. If another worker is lost meanwhile, the group has
/// fewer.
fn reform(strategy: &MultiWorkerMirroredStrategy, wait: bool) -> Result<()> {
    strategy.reform(if wait { TIMEOUT } else { Duration::ZERO })?;
    let id = strategy.local_replicas().start;
    println!("reformed: now replica {id} of {}", strategy.num_replicas_in_sync());
    Ok(())
}

/// Gives every replica the state of the replica that has done the most steps. After a loss, some
/// replicas may have completed the step in which others have seen the loss, and a replacement has
/// done no steps.
fn catch_up(strategy: &Strategy, state: &mut State) -> Result<()> {
    let before = state.step;
    let states = strategy.run(|replica| {
        let steps = replica.all_gather(Tensor::from([state.step]), 0)?;
        let steps = steps.as_slice::<u64>()?;
        let most = steps.iter().max().and_then(|most| steps.iter().position(|step| step == most));
        replica.broadcast(state.clone(), most.unwrap_or(0))
    })?;
    *state = states[0].clone();
    if state.step > before {
        println!("caught up from step {before} to step {}", state.step);
    }
    Ok(())
}

/// Returns the first clause of an error. The other clauses have the last calls of all ranks.
fn first_clause(error: &Error) -> String {
    error.to_string().split("; ").next().unwrap_or_default().to_owned()
}

// The supervisor
// -------------------------------------------------------------------------------------------------

/// An event of a worker, which its thread sends.
enum Event {
    Line(String),
    End(ExitStatus),
}

/// Starts the workers, and a replacement. Returns whether all ended with the right bits.
fn supervise(options: &Options) -> Result<bool> {
    let Options { workers, steps, lose, at, replace, grains, .. } = *options;
    check(options, "workers", workers)?;
    println!(
        "{workers} workers; worker {lose} is killed in step {at} of {steps}, and {}",
        match replace {
            true => "replaced",
            false => "the others go on without it",
        }
    );
    let (tell, events) = mpsc::channel();
    for worker in 0..workers {
        start(worker, options, worker == lose, tell.clone())?;
    }
    let (mut running, mut lost, mut digests) = (workers, false, Vec::new());
    while running > 0 {
        let (worker, event) = events.recv().map_err(Error::other)?;
        match event {
            Event::Line(line) => {
                println!("[worker {worker}] {line}");
                digests.extend(digest_in(&line));
            }
            Event::End(status) if status.success() => running -= 1,
            Event::End(status) if worker == lose && !lost => {
                lost = true;
                println!("worker {worker} has ended: {status}");
                match replace {
                    true => start(worker, options, false, tell.clone())?,
                    false => running -= 1,
                }
            }
            Event::End(status) => return Err(Error::other(format!("worker {worker} has ended: {status}"))),
        }
    }
    // The worker died before it met the others in this step, so the step was done without it.
    let left = if replace { workers } else { workers - 1 };
    let right = match (grains, replace) {
        (Some(_), _) => repeat(&[(1, 0..steps)], grains)?,
        (None, true) => repeat(&[(workers, 0..steps)], None)?,
        (None, false) => repeat(&[(workers, 0..at), (left, at..steps)], None)?,
    };
    Ok(all_same(&digests, left, &right))
}

/// Plays hosts, one of which is lost. Returns whether the workers of the others ended with the bits
/// of an undisturbed training on one replica.
fn supervise_hosts(options: &Options, hosts: u64) -> Result<bool> {
    let Options { workers, steps, lose, at, grains, .. } = *options;
    check(options, "hosts", hosts)?;
    println!("{hosts} hosts of {workers} workers; host {lose} is lost in step {at} of {steps}, and the others go on");
    let mut launcher = worker::start_on_hosts(hosts, workers, &["--keep-going"], Stdio::piped())?;
    let mut digests = Vec::new();
    let lines = launcher.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    for line in lines.into_iter().flatten().map_while(|line| line.ok()) {
        println!("{line}");
        digests.extend(digest_in(&line));
    }
    let status = launcher.wait().map_err(Error::other)?;
    if !status.success() {
        return Err(Error::other(format!("consonance run has ended: {status}")));
    }
    Ok(all_same(&digests, (hosts - 1) * workers, &repeat(&[(1, 0..steps)], grains)?))
}

/// Checks the worker or host that is lost, of `count`, the step, and the number of grains.
fn check(options: &Options, what: &str, count: u64) -> Result<()> {
    let Options { workers, steps, lose, at, grains, hosts, .. } = *options;
    if lose >= count || at >= steps {
        return Err(Error::other(format!("there are {what} 0 to {} and steps 0 to {}", count - 1, steps - 1)));
    }
    let workers = hosts.unwrap_or(1) * workers;
    match grains.filter(|&grains| (grains as u64) < workers) {
        Some(grains) => {
            Err(Error::other(format!("--grains {grains} leaves some of {workers} workers without a grain")))
        }
        None => Ok(()),
    }
}

/// Returns the digest in the last line of a worker.
fn digest_in(line: &str) -> Option<String> {
    line.split_once("digest of the weights ").map(|(_, digest)| digest.to_owned())
}

/// Prints and returns whether there are so many digests, and all of them are right.
fn all_same(digests: &[String], count: u64, right: &str) -> bool {
    let all_same = digests.len() as u64 == count && digests.iter().all(|digest| digest == right);
    println!("{}", if all_same { "Every bit of every weight is the same." } else { "The bits differ." });
    all_same
}

/// Starts a worker, and a thread that reports its output and its end.
fn start(worker: u64, options: &Options, doomed: bool, tell: Sender<(u64, Event)>) -> Result<()> {
    let mut command = worker::command(worker, options.workers)?;
    let numbers = [("--workers", options.workers), ("--steps", options.steps), ("--at", options.at)];
    command.args(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]));
    command.args(options.grains.iter().flat_map(|grains| ["--grains".to_owned(), grains.to_string()]));
    command
        .args([("--replace", options.replace), ("--doomed", doomed)].iter().filter(|flag| flag.1).map(|flag| flag.0));
    let mut process = command.stdout(Stdio::piped()).spawn().map_err(Error::other)?;
    println!("worker {worker} is process {}", process.id());
    thread::spawn(move || {
        let lines = process.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        for line in lines.into_iter().flatten().map_while(|line| line.ok()) {
            // Fails if another worker's end has ended the supervisor.
            let _ = tell.send((worker, Event::Line(line)));
        }
        if let Ok(status) = process.wait() {
            let _ = tell.send((worker, Event::End(status)));
        }
    });
    Ok(())
}

/// Returns the digest after the same training in one process. `parts` has the number of replicas in
/// each part of the steps.
fn repeat(parts: &[(u64, Range<u64>)], grains: Option<usize>) -> Result<String> {
    let digits = Digits::load(SEED);
    let mut state = State::new()?;
    for (replicas, steps) in parts {
        let mut builder = MirroredStrategy::builder((0..*replicas).map(|replica| format!("cpu:{replica}")));
        if let Some(grains) = grains {
            builder = builder.grains(grains);
        }
        let strategy = builder.build()?;
        train(&strategy, &mut state, steps.end, &digits.train, |_| ())?;
    }
    let digest = format!("{:016x}", state.network.digest()?);
    let part = |(replicas, steps): &(u64, Range<u64>)| match steps.is_empty() {
        true => None,
        false => Some(format!("{replicas} replicas in steps {} to {}", steps.start, steps.end - 1)),
    };
    let story: Vec<String> = parts.iter().filter_map(part).collect();
    println!("one process: {}: {}; digest of the weights {digest}", story.join(", "), state.describe(&digits.test)?);
    Ok(digest)
}
