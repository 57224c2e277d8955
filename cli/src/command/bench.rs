//! `consonance bench`.

use crate::bench::{
    Bench, Memory, Rival, Row, Transport, bench_rank, bench_threads,
    case::Collective,
    limits::{Limit, limits},
    plot,
    strategies::{self, bench_worker, strategies},
};
use clap::{Args, Subcommand};
use consonance::{DType, ReduceOp};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    cell::Cell,
    fmt,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// Measure a collective beside other libraries and this machine's limits.
///
/// Time is that of the slowest rank: half of the calls took no more, 99 of 100 no more than p99.
/// algbw is the bytes of the larger buffer by time; busbw is what the links between ranks must at
/// least have carried; both are nccl-tests'. Every call is of other buffers than the one before,
/// and every result is checked: `wrong` counts elements. Where a library has no such call, or is
/// not installed, its row says so.
///
/// Rank r runs on the r-th of the cores that are allowed, with every library; if there are more
/// ranks than cores, they share them.
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
}

// What a call is, whatever is asked of it. (Of a part of a command, documentation would take the
// place of the whole one's.)
#[derive(Args)]
pub(super) struct Call {
    /// How many ranks there are
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2)]
    pub(super) ranks: usize,
    /// How our ranks meet: threads or processes (cuda is not there yet, and refused)
    #[arg(long, default_value = "threads")]
    pub(super) transport: Transport,
    /// The element type: f32, bf16, i8, …
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    pub(super) dtype: DType,
    /// How elements are combined: sum, mean, product, min, max, and, or, xor
    #[arg(long, default_value = "sum", value_parser = op)]
    pub(super) op: ReduceOp,
    /// Where our buffers are: slice (anywhere) or alloc (memory that all ranks can read)
    #[arg(long, default_value = "slice")]
    pub(super) memory: Memory,
    /// Leave the result where the contribution was
    #[arg(long)]
    pub(super) in_place: bool,
    /// By how many percent the least and the largest part differ from the average, in all_gather_v
    /// and its like
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub(super) spread: usize,
}

#[derive(Args)]
struct Collectives {
    /// One or more, which take turns: all_reduce, all_gather, reduce_scatter, broadcast,
    /// all_to_all, barrier, gather, scatter, reduce, send_recv; all_gather_v, gather_v, scatter_v,
    /// all_to_all_v, whose parts differ (see --spread)
    #[arg(required = true, value_name = "COLLECTIVE")]
    collectives: Vec<Collective>,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    call: Call,
    /// Who else is measured, in turn with ours: openmpi, mpich, gloo; build:PATH is another build
    /// of this command; one_shot and two_shot are ours with that way of all-reduce at all sizes;
    /// limit is a copy of the bytes that must at least be moved
    #[arg(long, value_name = "LIBRARIES", value_delimiter = ',')]
    vs: Vec<Beside>,
    /// How long each library is measured at each size: 250ms, 2s
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = super::time)]
    time: Duration,
    /// Write each row as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
    /// Draw time and bus bandwidth over size, the limit too, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Measure what this machine can do: copies, sums of several buffers, the round trip of a cache
/// line between two cores.
#[derive(Args)]
struct Limits {
    #[command(flatten)]
    sizes: Sizes,
    /// Write each figure as a JSON object on a line of its own
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
    /// How many rounds each call is measured
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Also measure TensorFlow, in this Python
    #[arg(long, value_name = "PYTHON")]
    tensorflow: Option<String>,
    /// Write each row as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

/// How the bench of strategies starts a worker.
#[derive(Args)]
pub(crate) struct Worker {
    part: String,
    rounds: usize,
}

#[derive(Args)]
struct Sizes {
    /// The smallest size: bytes of the larger buffer, such as 8, 64K, 1M
    #[arg(short = 'b', long, value_name = "MIN", default_value = "8", value_parser = bytes)]
    begin: usize,
    /// The largest size
    #[arg(short = 'e', long, value_name = "MAX", default_value = "16M", value_parser = bytes)]
    end: usize,
    /// How many times as large each size is as the one before
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
}

/// How the bench starts a rank that is a process.
#[derive(Args)]
pub(crate) struct Rank {
    rank: usize,
    socket: PathBuf,
}

/// How the bench starts ranks that are threads of another process.
#[derive(Args)]
pub(crate) struct Threads {
    ranks: usize,
    socket: PathBuf,
}

/// Who is measured beside us.
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
    fn list(&self) -> Result<Vec<usize>, String> {
        let Sizes { begin, end, factor } = *self;
        if begin > end {
            return Err(format!("-b: expected at most the {end} bytes of -e, found {begin}"));
        }
        let next = |bytes: &usize| bytes.checked_mul(factor as usize);
        Ok(std::iter::successors(Some(begin), next).take_while(|&bytes| bytes <= end).collect())
    }
}

/// Does it, and gives the status of the command.
pub(crate) fn bench(arguments: Arguments) -> i32 {
    let result = match (arguments.other, arguments.bench) {
        (Some(Other::Limits(arguments)), _) => machine(&arguments),
        (Some(Other::Strategies(arguments)), _) => calls(&arguments),
        (None, arguments) => collectives(arguments),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("consonance bench: {error}");
            1
        }
    }
}

/// Is a rank, and gives the status of the command.
pub(crate) fn rank(arguments: &Rank) -> i32 {
    match bench_rank(arguments.rank, &arguments.socket) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("rank {}: {error}", arguments.rank);
            1
        }
    }
}

/// Is a worker of the bench of strategies, and gives the status of the command.
pub(crate) fn worker(arguments: &Worker) -> i32 {
    match bench_worker(&arguments.part, arguments.rounds) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("consonance bench strategies: {error}");
            1
        }
    }
}

/// Is all ranks, and gives the status of the command.
pub(crate) fn threads(arguments: &Threads) -> i32 {
    match bench_threads(arguments.ranks, &arguments.socket) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

fn collectives(arguments: Collectives) -> Result<(), String> {
    let Collectives { collectives, sizes, call, vs, time, json, plot: file } = arguments;
    let Call { ranks, transport, dtype, op, memory, in_place, spread } = call;
    let limit = vs.contains(&Beside::Limit) || file.is_some();
    let rivals = vs.into_iter().filter_map(|beside| match beside {
        Beside::Rival(rival) => Some(rival),
        Beside::Limit => None,
    });
    let (collectives, rivals) = (once_each(collectives), once_each(rivals));
    let sizes = sizes.list()?;
    let cannot = |path: &Path, error| format!("--plot: {}: {error}", path.display());
    // Nothing is measured in vain. Who reads a pipe sees its end only when this one is closed.
    let _open = file.as_deref().map(|path| writable(path).map_err(|error| cannot(path, error))).transpose()?;
    let bench =
        Bench { collectives, ranks, transport, sizes, dtype, op, memory, in_place, spread, rivals, limit, time };
    let show = Show::new(json, Row::header());
    let mut rows = Vec::new();
    let row = |row: Row| {
        show.row(&row, || row.json());
        rows.push(row);
    };
    bench.run(row, |done, total, what| show.progress(done, total, what)).map_err(|error| error.to_string())?;
    show.end();
    file.map_or(Ok(()), |path| fs::write(&path, plot(&rows)).map_err(|error| cannot(&path, error)))
}

/// Opens a file, to see that it can be written, and leaves what is there as it is: of a bench that
/// fails there is nothing to take its place.
fn writable(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().append(true).open(path),
        file => file.and_then(|file| fs::remove_file(path).map(|()| file)),
    }
}

/// The first of each.
fn once_each<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut first, next| {
        if !first.contains(&next) {
            first.push(next);
        }
        first
    })
}

fn machine(arguments: &Limits) -> Result<(), String> {
    let show = Show::new(arguments.json, Limit::header());
    let row = |limit: Limit| show.row(&limit, || limit.json());
    limits(&arguments.sizes.list()?, row, |done, total, what| show.progress(done, total, what))
        .map_err(|error| error.to_string())?;
    show.end();
    Ok(())
}

fn calls(arguments: &Strategies) -> Result<(), String> {
    let Strategies { part, rounds, tensorflow, json } = arguments;
    let show = Show::new(*json, strategies::Row::header());
    let row = |row: strategies::Row| show.row(&row, || row.json());
    let progress = |done, total, what| show.progress(done, total, what);
    strategies(part, (*rounds).into(), tensorflow.as_deref(), row, progress).map_err(|error| error.to_string())?;
    show.end();
    Ok(())
}

/// Results on standard output, progress on standard error if that is a terminal.
struct Show {
    json: bool,
    /// What stands above the first row of a table, until it is shown.
    header: Cell<Option<String>>,
    bar: ProgressBar,
}

impl Show {
    fn new(json: bool, header: String) -> Show {
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {elapsed} {wide_msg}");
        Show {
            json,
            header: Cell::new(Some(header).filter(|_| !json)),
            bar: ProgressBar::new(1).with_style(style.expect("a template that is right")),
        }
    }

    fn row(&self, row: &impl fmt::Display, json: impl FnOnce() -> serde_json::Value) {
        let text = if self.json { json().to_string() } else { row.to_string() };
        let header = self.header.take().map_or(String::new(), |header| header + "\n");
        self.bar.suspend(|| println!("{header}{text}"));
    }

    fn progress(&self, done: usize, total: usize, what: String) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what);
        self.bar.tick();
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A number of bytes: 8, 64K, 1M, 2G.
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
