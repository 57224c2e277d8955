//! Counts the effects of closures while their workers are killed, one after the other, and
//! replaced.

use super::strategies::start;
use crate::{
    executable,
    launcher::{
        cluster::Cluster,
        task::{Role, Task},
    },
    subprocess::OwnedChild,
};
use consonance::{
    ClusterCoordinator, DType, IndexedSlices, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    TfConfigClusterResolver, parameter_server::Function,
};
use serde_json::{Value, json};
use std::{
    error::Error,
    fmt, hint, io,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// The hidden command by which a worker or a server begins.
const ROLE: &str = "bench-role";

const LIMIT: Duration = Duration::from_secs(300);
const WORKERS: usize = 4;
const SERVERS: usize = 2;

/// The time that a closure computes. Without it all have ended before a kill.
const COMPUTES: Duration = Duration::from_micros(500);

/// The effects of closures whose workers were killed.
#[derive(Clone, Copy, Debug)]
pub struct Kills {
    /// The number of closures.
    pub closures: usize,
    /// The number of workers that were killed while they ran.
    pub kills: usize,
    /// The number of effects that the servers have.
    pub effects: i64,
    /// The time from the first closure to the end of all.
    pub seconds: f64,
}

/// The program of all processes.
struct Declared {
    total: ShardedVariable,
    /// The effects of each closure.
    counts: ShardedVariable,
    coordinator: ClusterCoordinator,
    count: Function<i64, ()>,
}

/// Runs so many closures on workers of which one is killed in each `period`.
///
/// # Errors
/// That of a call or of a process, and an effect that did not happen once.
pub fn kills(closures: usize, period: Duration) -> std::result::Result<Kills, Box<dyn Error>> {
    let cluster = Cluster::local(1 + WORKERS + SERVERS)?;
    let config = |index: usize, role: Role| cluster.tf_config_of_role(Task { index, role }, WORKERS);
    let begin = |index: usize, role: Role| -> io::Result<OwnedChild> {
        let mut command = executable::command()?;
        command.args([ROLE, "--closures", &closures.to_string()]).env("TF_CONFIG", config(index, role));
        start(&mut command).map(OwnedChild)
    };
    let worker = |worker: usize| begin(1 + worker, Role::Worker(worker));
    let workers = (0..WORKERS).map(worker).collect::<io::Result<Vec<_>>>()?;
    let server = |server: usize| begin(1 + WORKERS + server, Role::Server(server));
    let _servers = (0..SERVERS).map(server).collect::<io::Result<Vec<_>>>()?;
    let resolver = TfConfigClusterResolver::from_text(&config(0, Role::Chief))?;
    let strategy = ParameterServerStrategy::builder(resolver)?.timeout(LIMIT).build()?;
    let Declared { total, counts, coordinator, count } = declare(&strategy, closures)?;
    // All meet before the time begins.
    total.read()?;
    let (ends, ended) = mpsc::channel::<()>();
    let (kills, seconds) = thread::scope(|scope| {
        let killer = scope.spawn(move || replace(workers, worker, period, &ended));
        let begin = Instant::now();
        let scheduled = (0..closures as i64).try_for_each(|number| coordinator.schedule(&count, number).map(drop));
        let joined = scheduled.and_then(|()| coordinator.join(LIMIT));
        let seconds = begin.elapsed().as_secs_f64();
        drop(ends);
        let kills = killer.join().expect("the killer does not panic");
        joined.map_err(Box::<dyn Error>::from).and_then(|_| Ok((kills?, seconds)))
    })?;
    let counts = counts.read()?.into_vec::<i64>()?;
    let effects: i64 = total.read()?.item()?;
    let wrong: Vec<usize> = (0..closures).filter(|&closure| counts[closure] != 1).collect();
    match wrong.first() {
        None if effects == closures as i64 => Ok(Kills { closures, kills, effects, seconds }),
        None => Err(format!("{closures} closures have {effects} effects").into()),
        Some(&first) => Err(format!("closure {first} has {} effects, and {} more", counts[first], wrong.len()).into()),
    }
}

/// Kills the workers in turn, one in each period, and starts others in their places, until the
/// sender ends. Returns the number of kills.
fn replace(
    mut workers: Vec<OwnedChild>,
    start: impl Fn(usize) -> io::Result<OwnedChild>,
    period: Duration,
    ended: &Receiver<()>,
) -> io::Result<usize> {
    let mut kills = 0;
    let begin = Instant::now();
    loop {
        let next = begin + period * (kills as u32 + 1);
        match ended.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {
                let victim = kills % WORKERS;
                workers[victim].0.kill()?;
                workers[victim].0.wait()?;
                workers[victim] = start(victim)?;
                kills += 1;
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(kills),
        }
    }
}

/// Runs as a worker or a server, by `TF_CONFIG`.
///
/// # Errors
/// That of the strategy.
pub fn kills_role(closures: usize) -> Result<()> {
    let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?.timeout(LIMIT).build()?;
    declare(&strategy, closures)?;
    strategy.serve()
}

fn declare(strategy: &ParameterServerStrategy, closures: usize) -> Result<Declared> {
    let total = strategy.variable(|| Tensor::from(0i64))?;
    let counts = strategy.variable(|| Tensor::zeros(DType::I64, [closures]))?;
    let coordinator = ClusterCoordinator::new(strategy);
    let count = coordinator.function("count", {
        let (total, counts) = (total.clone(), counts.clone());
        move |worker, number: i64| {
            let one = IndexedSlices::new(Tensor::from([1i64]), Tensor::from([number]), None)?;
            worker.scatter_add(&counts, &one)?;
            let begin = Instant::now();
            while begin.elapsed() < COMPUTES {
                hint::spin_loop();
            }
            worker.assign_add(&total, &Tensor::from(1i64))
        }
    })?;
    Ok(Declared { total, counts, coordinator, count })
}

impl Kills {
    /// Returns the row as a JSON object.
    pub fn json(&self) -> Value {
        let Kills { closures, kills, effects, seconds } = self;
        json!({ "closures": closures, "workers": WORKERS, "kills": kills, "effects": effects, "seconds": seconds })
    }
}

impl fmt::Display for Kills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kills { closures, kills, effects, seconds } = self;
        write!(f, "  {closures} closures of {COMPUTES:?} on {WORKERS} workers, {kills} kills of a worker: ")?;
        write!(f, "{effects} effects counted, each once, in {seconds:.2} s")
    }
}
