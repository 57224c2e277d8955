//! Measures the calls of strategies, replicas, variables and data sets, as a program makes them.
//!
//! A row is one call. Its time is the median of several rounds; a round makes the call many times.
//! Calls within a run are timed on replica 0. Rows of processes are measured by two workers, which
//! make the same calls.

mod calls;

pub use calls::CALLS;

use super::rivals::pythons;
use crate::{executable, launcher::cluster::Cluster, subprocess::OwnedChild};
use consonance::{MirroredStrategy, MultiWorkerMirroredStrategy, ReplicaContext, Result, Strategy};
use serde_json::{Value, json};
use std::{
    error::Error,
    fmt,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

/// The hidden command by which a worker begins.
const WORKER: &str = "bench-worker";

/// The number of workers of the rows of processes.
const WORKERS: usize = 2;

/// The program that measures TensorFlow.
const TENSORFLOW: &str = include_str!("../rivals/tensorflow.py");

/// One call that is measured.
pub struct Call {
    /// The name of the row.
    pub name: &'static str,
    /// The number of replicas, in one process.
    replicas: usize,
    /// Whether workers in two processes measure it, too.
    by_processes: bool,
    measure: fn(&Strategy, &Timer) -> Result<()>,
}

/// The times of one call.
struct Timer {
    rounds: usize,
    /// Seconds of a call, one for each round.
    seconds: Mutex<Vec<f64>>,
}

/// A row of results.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the call.
    pub call: String,
    /// `consonance` or `tensorflow`.
    pub library: &'static str,
    /// `threads` or `processes`.
    pub transport: &'static str,
    /// Microseconds of a call.
    pub time_us: f64,
}

impl Timer {
    fn new(rounds: usize) -> Timer {
        Timer { rounds, seconds: Mutex::default() }
    }

    /// Makes a round that is not timed, then times the others.
    fn time(&self, calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<()> {
        self.time_if(true, calls, &mut call)
    }

    /// Does [`time`](Timer::time), and keeps the times only if `kept`.
    fn time_if(&self, kept: bool, calls: usize, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        for round in 0..=self.rounds {
            let begin = Instant::now();
            for _ in 0..calls {
                call()?;
            }
            if kept && round > 0 {
                self.keep(begin.elapsed() / calls as u32);
            }
        }
        Ok(())
    }

    /// Makes the call in a run, on every replica, and times replica 0. `prepare` makes what each
    /// replica needs.
    fn time_in_run<S>(
        &self,
        strategy: &Strategy,
        calls: usize,
        prepare: impl Fn() -> S + Sync,
        call: impl Fn(&ReplicaContext<'_>, &mut S) -> Result<()> + Sync,
    ) -> Result<()> {
        let run = strategy.run(|replica| {
            let mut state = prepare();
            let is_first = replica.replica_id_in_sync_group() == 0;
            self.time_if(is_first, calls, &mut || call(replica, &mut state))
        });
        run.map(drop)
    }

    fn keep(&self, time: Duration) {
        self.seconds.lock().expect("nobody panics while keeping a time").push(time.as_secs_f64());
    }

    /// Returns the median in microseconds.
    fn median_us(self) -> Option<f64> {
        let mut seconds = self.seconds.into_inner().expect("nobody panics while keeping a time");
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).map(|seconds| 1e6 * seconds)
    }
}

impl Row {
    /// Returns the row as a JSON object.
    pub fn json(&self) -> Value {
        json!({ "call": self.call, "library": self.library, "transport": self.transport, "time_us": self.time_us })
    }

    /// Returns the names of the table's columns.
    pub fn header() -> String {
        format!("# {:<42} {:<10} {:<9} {:>12}", "call", "library", "transport", "time (us)")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<42} {:<10} {:<9} {:>12.2}", self.call, self.library, self.transport, self.time_us)
    }
}

/// Measures all calls whose name contains `part`, first by threads, then by processes, then with
/// TensorFlow if `tensorflow` is a Python that has it. Calls `row` for each result.
///
/// # Errors
/// That of a call, of a worker or of the Python.
pub fn strategies(
    part: &str,
    rounds: usize,
    tensorflow: Option<&str>,
    mut row: impl FnMut(Row),
    mut progress: impl FnMut(usize, usize, String),
) -> std::result::Result<(), Box<dyn Error>> {
    let calls: Vec<&Call> = CALLS.iter().filter(|call| call.name.contains(part)).collect();
    if calls.is_empty() {
        return Err(format!("no call's name contains {part:?}").into());
    }
    // Nothing is measured in vain.
    tensorflow.map_or(Ok(()), has_tensorflow)?;
    for (done, call) in calls.iter().enumerate() {
        progress(done, calls.len(), call.name.to_owned());
        let strategy = MirroredStrategy::new((0..call.replicas).map(|replica| format!("cpu:{replica}")))?;
        let time_us = measure(call, &strategy, rounds)?;
        row(Row { call: call.name.to_owned(), library: "consonance", transport: "threads", time_us });
    }
    if calls.iter().any(|call| call.by_processes) {
        let cluster = Cluster::local(WORKERS)?;
        let start = |worker: usize| {
            let mut command = executable::command()?;
            command.args([WORKER, part, &rounds.to_string()]).env("TF_CONFIG", cluster.tf_config(worker));
            start(&mut command)
        };
        let mut workers = Vec::with_capacity(WORKERS);
        for worker in 0..WORKERS {
            workers.push(OwnedChild(start(worker)?));
        }
        rows(&mut workers[0], "consonance", "processes", &mut row)?;
        ended(workers[1].0.wait(), "worker 1")?;
    }
    if let Some(python) = tensorflow {
        progress(calls.len(), calls.len(), "tensorflow".to_owned());
        let mut command = Command::new(python);
        command.args(["-c", TENSORFLOW, part, &rounds.to_string()]).env("TF_CPP_MIN_LOG_LEVEL", "3");
        let mut process = OwnedChild(start(command.stderr(Stdio::null()))?);
        rows(&mut process, "tensorflow", "threads", &mut row)?;
    }
    Ok(())
}

/// Checks that this Python has TensorFlow.
fn has_tensorflow(python: &str) -> std::result::Result<(), Box<dyn Error>> {
    match pythons::has(Path::new(python), "tensorflow") {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(format!("--tensorflow: {python} has no tensorflow (its pip installs it: tensorflow-cpu)").into())
        }
        Err(error) => Err(format!("--tensorflow: {python}: {error}").into()),
    }
}

/// Runs as one of the workers that measure the rows of processes.
///
/// # Errors
/// That of a call, or of the cluster.
pub fn bench_worker(part: &str, rounds: usize) -> Result<()> {
    let strategy = MultiWorkerMirroredStrategy::new()?;
    for call in CALLS.iter().filter(|call| call.by_processes && call.name.contains(part)) {
        let time_us = measure(call, &strategy, rounds)?;
        if strategy.is_chief() {
            println!("{}\t{time_us}", call.name);
        }
    }
    Ok(())
}

fn measure(call: &Call, strategy: &Strategy, rounds: usize) -> Result<f64> {
    let timer = Timer::new(rounds);
    (call.measure)(strategy, &timer)?;
    Ok(timer.median_us().unwrap_or_default())
}

pub(super) fn start(command: &mut Command) -> io::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Reads the rows that a process prints: a name, a tab and microseconds each.
pub(super) fn rows(
    OwnedChild(process): &mut OwnedChild,
    library: &'static str,
    transport: &'static str,
    row: &mut impl FnMut(Row),
) -> std::result::Result<(), Box<dyn Error>> {
    let output = process.stdout.take().expect("it was piped");
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some((call, time)) = line.split_once('\t')
            && let Ok(time_us) = time.parse()
        {
            row(Row { call: call.to_owned(), library, transport, time_us });
        }
    }
    ended(process.wait(), library)
}

fn ended(status: io::Result<std::process::ExitStatus>, who: &str) -> std::result::Result<(), Box<dyn Error>> {
    match status? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{who}: ended with {status}")).into()),
    }
}
