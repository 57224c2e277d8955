//! Closures and reads of parameter servers, by threads and by processes:
//! `cargo bench -p consonance-harness --bench coordinator`.
//!
//! Each row has the median of its times. Reads stand beside the same copies from own memory, in
//! turns.

use consonance::{
    ClusterCoordinator, DType, ParameterServerStrategy, Result, ShardedVariable, Tensor, TfConfigClusterResolver,
    parameter_server::{Function, ParameterServerBuilder},
};
use consonance_kernels::{cpu::copy::copy_own, memory::HostMemory};
use std::{
    env,
    hint::black_box,
    process::{self, Child, Command},
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(60);
const WORKERS: usize = 2;
/// The elements of a variable that is read as a whole: 64 MiB.
const WHOLE: usize = 16 << 20;
/// The rows of a table, of 256 bytes each: 256 MiB.
const ROWS: usize = 1 << 20;
const ROW: usize = 64;
const LOOKED_UP: usize = 10_000;

fn main() -> Result<()> {
    if env::var("TF_CONFIG").is_ok() {
        let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?.timeout(LIMIT).build()?;
        declare(&strategy)?;
        return strategy.serve();
    }
    println!("{:<44}{:>12}{:>12}", "", "threads", "processes");
    let threads = measure(ParameterServerStrategy::builder_of_threads(WORKERS, 1))?;
    let mut others = start();
    let config = config("chief", 0);
    let resolver = TfConfigClusterResolver::from_text(&config)?;
    let processes = measure(ParameterServerStrategy::builder(resolver)?)?;
    others.iter_mut().for_each(|other| drop(other.wait()));
    for ((name, threads), (_, processes)) in threads.into_iter().zip(processes) {
        println!("{name:<44}{threads:>12}{processes:>12}");
    }
    Ok(())
}

/// The program of all processes.
struct Declared {
    whole: ShardedVariable,
    table: ShardedVariable,
    coordinator: ClusterCoordinator,
    empty: Function<u64, u64>,
}

fn declare(strategy: &ParameterServerStrategy) -> Result<Declared> {
    let whole = strategy.variable(|| Tensor::zeros(DType::F32, [WHOLE]))?;
    let table = strategy.variable(|| Tensor::zeros(DType::F32, [ROWS, ROW]))?;
    let coordinator = ClusterCoordinator::new(strategy);
    let empty = coordinator.function("empty", |_, number: u64| Ok(number))?;
    Ok(Declared { whole, table, coordinator, empty })
}

/// Returns the rows of the table: a name and a median.
fn measure(builder: ParameterServerBuilder) -> Result<Vec<(&'static str, String)>> {
    let strategy = builder.timeout(LIMIT).build()?;
    let Declared { whole, table, coordinator, empty } = declare(&strategy)?;
    coordinator.schedule(&empty, 0)?.fetch(LIMIT)?;
    let mut rows = Vec::new();
    let alone = median(5000, || coordinator.schedule(&empty, 1)?.fetch(LIMIT).map(drop))?;
    rows.push(("an empty closure, scheduled and fetched", format!("{:.1} us", alone * 1e6)));
    let queued = median(5, || {
        (0..10_000).try_for_each(|number| coordinator.schedule(&empty, number).map(drop))?;
        coordinator.join(LIMIT).map(drop)
    })?;
    rows.push(("one of 10,000 that are queued", format!("{:.1} us", queued / 10_000.0 * 1e6)));

    let own = HostMemory::zeroed(DType::F32, WHOLE);
    let (mut reads, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        reads.push(seconds(|| whole.read().map(|read| drop(black_box(read))))?);
        copies.push(seconds(|| {
            let mut copy = HostMemory::unspecified(DType::F32, WHOLE);
            copy_own(own.as_buf(), &mut copy.as_buf_mut());
            drop(black_box(copy));
            Ok(())
        })?);
    }
    rows.push(("64 MiB read, speed beside a copy", format!("{:.2}", middle(copies) / middle(reads))));

    let own = Tensor::zeros(DType::F32, [ROWS, ROW]);
    let own: &[f32] = own.as_slice()?;
    let mut state = 1u64;
    let (mut lookups, mut gathers) = (Vec::new(), Vec::new());
    for _ in 0..31 {
        let indices: Vec<i64> = (0..LOOKED_UP)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as i64 % ROWS as i64
            })
            .collect();
        let asked = Tensor::from(indices.clone());
        lookups.push(seconds(|| table.lookup(&asked).map(|read| drop(black_box(read))))?);
        gathers.push(seconds(|| {
            let mut rows = Vec::with_capacity(LOOKED_UP * ROW);
            indices.iter().for_each(|&row| rows.extend_from_slice(&own[row as usize * ROW..][..ROW]));
            drop(black_box(rows));
            Ok(())
        })?);
    }
    rows.push(("10,000 rows of 256 B, speed beside a gather", format!("{:.2}", middle(gathers) / middle(lookups))));
    Ok(rows)
}

fn seconds(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    run()?;
    Ok(begin.elapsed().as_secs_f64())
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn median(count: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    Ok(middle((0..count).map(|_| seconds(&mut run)).collect::<Result<_>>()?))
}

/// Starts the workers and the server.
fn start() -> Vec<Child> {
    let tasks = (0..WORKERS).map(|worker| ("worker", worker)).chain([("ps", 0)]);
    let start = |(job, index)| {
        let program = env::current_exe().expect("the path of this program");
        Command::new(program).env("TF_CONFIG", config(job, index)).spawn().expect("a process")
    };
    tasks.map(start).collect()
}

/// Returns the cluster, as this process and its children know it, with the task of one of them.
fn config(job: &str, index: usize) -> String {
    // Nothing listens at these addresses. They only tell processes apart, also of other launches.
    let first = process::id() as usize % 5000 * 10;
    let address = |port: usize| format!("\"localhost:{}\"", first + port);
    let workers: Vec<String> = (1..=WORKERS).map(address).collect();
    let (chief, server, workers) = (address(0), address(9), workers.join(", "));
    let cluster = format!(r#"{{"chief": [{chief}], "worker": [{workers}], "ps": [{server}]}}"#);
    format!(r#"{{"cluster": {cluster}, "task": {{"type": "{job}", "index": {index}}}}}"#)
}
