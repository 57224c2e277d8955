//! Measures closures of a coordinator and reads of variables on servers, beside other libraries and
//! the memory of this process.
//!
//! A round measures all libraries once, one after the other, ours by threads and by processes. A
//! row is the median of the rounds. Workers, servers and the rivals start anew in each.

use super::{
    rivals::pythons::{self, pythons},
    strategies::{Row, rows, start},
};
use crate::{
    executable,
    launcher::{
        cluster::Cluster,
        task::{Role, Task},
    },
    subprocess::OwnedChild,
};
use consonance::{
    ClusterCoordinator, DType, ParameterServerStrategy, Result, ShardedVariable, Tensor, TfConfigClusterResolver,
    parameter_server::{Function, ParameterServerBuilder},
};
use consonance_kernels::{cpu::copy::copy_own, memory::HostMemory};
use std::{
    error::Error,
    hint::black_box,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

/// The hidden command by which a worker or a server begins.
const ROLE: &str = "bench-role";

/// The program that measures the rivals.
const RIVALS: &str = include_str!("rivals/coordinator.py");

/// The rivals: a name, the module that Python has it in, and how it is installed.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("tensorflow", "tensorflow", "pip install tensorflow-cpu"),
    ("ray", "ray", "pip install ray"),
    ("futures", "concurrent.futures", "install python3"),
];

const LIMIT: Duration = Duration::from_secs(60);
const WORKERS: usize = 2;
/// The elements of a variable that is read as a whole: 64 MiB.
const WHOLE: usize = 16 << 20;
/// The rows of a table, of 256 bytes each: 256 MiB.
const ROWS: usize = 1 << 20;
const ROW: usize = 64;
const LOOKED_UP: usize = 10_000;

const CLOSURE: &str = "an empty closure, scheduled and fetched";
const QUEUED: &str = "an empty closure of many that are queued";
const READ: &str = "a variable of 64 MiB read";
const LOOKUP: &str = "10,000 rows of 256 B of 256 MiB looked up";

/// The names of the rows.
const NAMES: [&str; 4] = [CLOSURE, QUEUED, READ, LOOKUP];

/// The program of all processes.
struct Declared {
    whole: ShardedVariable,
    table: ShardedVariable,
    coordinator: ClusterCoordinator,
    empty: Function<u64, u64>,
}

/// Measures closures and reads. Rivals are looked for in the pythons that are named and in those of
/// the environment. Calls `row` for each result, and `say` for each rival that is not installed.
///
/// # Errors
/// That of a call, of a process or of a Python.
pub fn coordinator(
    rounds: usize,
    named: &[PathBuf],
    mut row: impl FnMut(Row),
    mut say: impl FnMut(&str),
    mut progress: impl FnMut(usize, usize, String),
) -> std::result::Result<(), Box<dyn Error>> {
    let mut rivals = Vec::new();
    for (library, module, how) in LIBRARIES {
        match pythons(named).into_iter().find(|python| pythons::has(python, module).unwrap_or(false)) {
            Some(python) => rivals.push((library, python)),
            None => say(&format!("no {library}: {how}, for a python3 in PATH or one that --python names")),
        }
    }
    let turns = rounds * (2 + rivals.len());
    let mut done = 0;
    let mut all: Vec<Row> = Vec::new();
    for _ in 0..rounds {
        let mut turn = |what: &str| {
            progress(done, turns, what.to_owned());
            done += 1;
        };
        turn("threads");
        all.extend(measure(ParameterServerStrategy::builder_of_threads(WORKERS, 1), "threads")?);
        turn("processes");
        all.extend(by_processes()?);
        for (library, python) in &rivals {
            turn(library);
            let mut command = pythons::command(python);
            command.args(["-c", RIVALS, library]).env("TF_CPP_MIN_LOG_LEVEL", "3").stderr(Stdio::null());
            // Rows that it has measured stay.
            if let Err(error) =
                rows(&mut OwnedChild(start(&mut command)?), library, "processes", &mut |row| all.push(row))
            {
                say(&error.to_string());
            }
        }
    }
    for name in NAMES {
        while let Some(first) = all.iter().find(|row| row.call == name).cloned() {
            let is_same =
                |row: &Row| (&row.call, row.library, row.transport) == (&first.call, first.library, first.transport);
            let times = all.extract_if(.., |row| is_same(row)).map(|row| row.time_us).collect();
            row(Row { time_us: middle(times), ..first });
        }
    }
    Ok(())
}

/// Runs as a worker or a server of the bench, by `TF_CONFIG`.
///
/// # Errors
/// That of the strategy.
pub fn bench_role() -> Result<()> {
    let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?.timeout(LIMIT).build()?;
    declare(&strategy)?;
    strategy.serve()
}

fn by_processes() -> std::result::Result<Vec<Row>, Box<dyn Error>> {
    // The chief, the workers and the server.
    let cluster = Cluster::local(1 + WORKERS + 1)?;
    let config = |index: usize, role: Role| cluster.tf_config_of_role(Task { index, role }, WORKERS);
    let mut others = Vec::new();
    for (index, role) in (0..WORKERS).map(Role::Worker).chain([Role::Server(0)]).enumerate() {
        let mut command = executable::command()?;
        others.push(OwnedChild(start(command.arg(ROLE).env("TF_CONFIG", config(index + 1, role)))?));
    }
    let resolver = TfConfigClusterResolver::from_text(&config(0, Role::Chief))?;
    Ok(measure(ParameterServerStrategy::builder(resolver)?, "processes")?)
}

fn declare(strategy: &ParameterServerStrategy) -> Result<Declared> {
    let whole = strategy.variable(|| Tensor::zeros(DType::F32, [WHOLE]))?;
    let table = strategy.variable(|| Tensor::zeros(DType::F32, [ROWS, ROW]))?;
    let coordinator = ClusterCoordinator::new(strategy);
    let empty = coordinator.function("empty", |_, number: u64| Ok(number))?;
    Ok(Declared { whole, table, coordinator, empty })
}

fn measure(builder: ParameterServerBuilder, transport: &'static str) -> Result<Vec<Row>> {
    let strategy = builder.timeout(LIMIT).build()?;
    let Declared { whole, table, coordinator, empty } = declare(&strategy)?;
    let mut rows = Vec::new();
    let mut add = |call: &str, library, transport, time_us| {
        rows.push(Row { call: call.to_owned(), library, transport, time_us });
    };
    let alone = median(3000, || coordinator.schedule(&empty, 1)?.fetch(LIMIT).map(drop))?;
    add(CLOSURE, "consonance", transport, alone);
    let queued = median(5, || {
        (0..10_000).try_for_each(|number| coordinator.schedule(&empty, number).map(drop))?;
        coordinator.join(LIMIT).map(drop)
    })?;
    add(QUEUED, "consonance", transport, queued / 10_000.0);

    // Memory that is not written reads one page of zeros, from the caches.
    let mut own = HostMemory::unspecified(DType::F32, WHOLE);
    own.as_buf_mut().into_mut_slice::<f32>().expect("memory of f32").fill(1.0);
    let (mut reads, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        reads.push(microseconds(|| whole.read().map(|read| drop(black_box(read))))?);
        copies.push(microseconds(|| {
            let mut copy = HostMemory::unspecified(DType::F32, WHOLE);
            copy_own(own.as_buf(), &mut copy.as_buf_mut());
            drop(black_box(copy));
            Ok(())
        })?);
    }
    add(READ, "consonance", transport, middle(reads));
    add(READ, "memory", "copy", middle(copies));

    let own = vec![1.0f32; ROWS * ROW];
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
        lookups.push(microseconds(|| table.lookup(&asked).map(|read| drop(black_box(read))))?);
        gathers.push(microseconds(|| {
            let mut rows = Vec::with_capacity(LOOKED_UP * ROW);
            indices.iter().for_each(|&row| rows.extend_from_slice(&own[row as usize * ROW..][..ROW]));
            drop(black_box(rows));
            Ok(())
        })?);
    }
    add(LOOKUP, "consonance", transport, middle(lookups));
    add(LOOKUP, "memory", "gather", middle(gathers));
    Ok(rows)
}

fn microseconds(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    run()?;
    Ok(1e6 * begin.elapsed().as_secs_f64())
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn median(count: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    Ok(middle((0..count).map(|_| microseconds(&mut run)).collect::<Result<_>>()?))
}
