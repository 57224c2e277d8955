//! The command `consonance bench`: our collectives beside other libraries and the limits of the
//! machine.
//!
//! `case.rs` describes calls, `tile.rs` the contents of buffers. `rank.rs` is a rank's side of the
//! bench, `leaves.rs` that of a rank with several leaves, `group.rs` the bench's side of a group of
//! ranks, `library.rs` a library's turns.
//! `rivals/` has the other libraries. `hosts.rs` plays hosts, `crossing.rs` counts the bytes
//! between them, and `link.rs` sends these over bare TCP.
//! `pace.rs` has steps, in which calls come back to back beside busy processes.
//! `directory.rs` keeps the bench's files. `row.rs` formats a result, `table.rs` fits results into
//! a terminal, `plot/` draws them. `limits.rs` measures the machine alone.
//!
//! All libraries are started once. Their ranks sleep until their turn. At each size the libraries
//! run in turn, A B A B, for several rounds, so that a machine that is slow for a while slows all
//! of them. A rank times each call by itself, after it has met the others at a gate that is the
//! same for all libraries. The time of the slowest rank counts. Calls rotate over several sets of
//! buffers. These are filled before each batch of calls, and checked after it, outside of the timed
//! part.

pub mod case;
pub mod coordinator;
pub mod kills;
mod directory;
mod group;
mod hosts;
pub(crate) mod crossing;
mod leaves;
mod library;
mod link;
pub mod limits;
mod pace;
mod plot;
mod prepared_case;
mod processes;
mod rank;
pub(crate) mod rivals;
mod row;
mod table;
pub mod strategies;
mod tile;

pub(crate) use directory::remove_all;
pub use pace::{Step, busy};
pub use plot::plot;
pub use processes::{bench_rank, bench_threads};
pub(crate) use rank::make_once;
pub use rivals::{Rival, mpis::Mpi};
pub use row::{Figures, Row};
pub(crate) use table::{Table, fold};

use crate::launcher::MAX_HOSTS;
use case::{Case, Collective};
use consonance::{DType, ReduceOp};
use directory::Directory;
use group::{Group, Samples};
use hosts::Played;
use leaves::{Leaves, Timed};
use library::{Library, Who};
use pace::start_busy;
use rank::Subject;
use rivals::{Machine, VERSION};
use std::{
    fmt, fs, io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// The largest number of leaves.
const MOST_LEAVES: usize = 1024;

/// Rounds of turns at each size.
const ROUNDS: usize = 8;

/// Formats a number of bytes exactly: 8 B, 1 KiB, 3000 B.
pub(crate) fn size(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(power, _)| bytes > 0 && bytes.trailing_zeros() >= *power);
    unit.map_or_else(|| format!("{bytes} B"), |(power, unit)| format!("{} {unit}", bytes >> power))
}

/// The transport between our ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Threads of one process.
    Threads,
    /// Processes that share memory.
    Processes,
    /// Devices of one machine.
    Cuda,
}

impl Transport {
    /// Checks that this build has the transport.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] if this build does not have it.
    pub fn check(self) -> Result<(), BenchError> {
        match self {
            Transport::Threads | Transport::Processes => Ok(()),
            Transport::Cuda => Err(BenchError::Invalid {
                argument: "--transport <TRANSPORT>",
                expected: "threads or processes: this build has no CUDA transport".to_owned(),
                found: "cuda".to_owned(),
            }),
        }
    }
}

/// The memory of our buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In ordinary memory of the program.
    Slice,
    /// In memory that all ranks can read and write.
    Alloc,
}

/// A description of the measurements.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The collectives, measured in turn.
    pub collectives: Vec<Collective>,
    /// The number of ranks.
    pub ranks: usize,
    /// The transport between our ranks, on one host.
    pub transport: Transport,
    /// The number of hosts that this machine plays, with as many ranks each; `None`: all ranks run
    /// on this machine as it is.
    pub hosts: Option<NonZeroUsize>,
    /// Bytes of the larger buffer, in the order of measurement.
    pub sizes: Vec<usize>,
    /// The element type.
    pub dtype: DType,
    /// The operation, for collectives that reduce.
    pub op: ReduceOp,
    /// The memory of our buffers.
    pub memory: Memory,
    /// Whether results replace the contributions.
    pub in_place: bool,
    /// By how many percent the smallest and the largest part differ from the average, in
    /// collectives with parts of different sizes.
    pub spread: usize,
    /// The number of leaves of all ranks: if there is one, all-reduces of accumulators are
    /// measured, too.
    pub leaves: Option<usize>,
    /// The steps that are measured, in turn; empty: calls apart from each other.
    pub steps: Vec<Step>,
    /// The other libraries to measure.
    pub rivals: Vec<Rival>,
    /// Pythons in whose environments rivals are looked for, besides those in `PATH`.
    pub pythons: Vec<PathBuf>,
    /// Whether to measure a copy of the bytes that a call must move at least, too.
    pub limit: bool,
    /// The time that each library is measured at each size, with filling and checking. Every
    /// set of buffers is used at least once a round.
    pub time: Duration,
}

/// The reason why nothing was measured.
#[derive(Debug)]
pub enum BenchError {
    /// An option has an invalid value.
    Invalid {
        /// The option, as `--help` writes it.
        argument: &'static str,
        /// The values that are valid.
        expected: String,
        /// The value that was given.
        found: String,
    },
    /// Our own ranks cannot be started, or have failed.
    Failed(String),
}

impl BenchError {
    /// Returns the error for a spread that is too large.
    pub(crate) fn spread(found: usize) -> BenchError {
        let expected = format!("at most {} %", case::MOST_SPREAD);
        BenchError::Invalid { argument: "--spread <PERCENT>", expected, found: found.to_string() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Invalid { argument, expected, found } => {
                write!(f, "invalid value '{found}' for '{argument}': expected {expected}")
            }
            BenchError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<io::Error> for BenchError {
    fn from(error: io::Error) -> BenchError {
        BenchError::Failed(error.to_string())
    }
}

impl Bench {
    /// Measures everything. Passes each result to `row` once it is there. Calls `progress` before
    /// each measurement, with the number of measurements made, the number of all, and a description
    /// of the next. If a signal ends this process, calls `last` before.
    ///
    /// # Errors
    /// [`BenchError`]. A rival's failure is in its rows instead.
    pub fn run(
        &self,
        mut row: impl FnMut(Row),
        mut progress: impl FnMut(usize, usize, String),
        last: impl FnOnce() + Send + 'static,
    ) -> Result<(), BenchError> {
        self.check()?;
        let directory = Directory::new(last)?;
        let play = |hosts: NonZeroUsize| Played::start(hosts, self.ranks / hosts, &directory.path);
        let played = self.hosts.map(play).transpose().map_err(BenchError::Failed)?;
        let played = played.as_ref();
        let names = self.who().iter().map(Who::name).collect::<Vec<_>>().join(", ");
        progress(0, 1, format!("starting {} ranks of {names}", self.ranks));
        let mut libraries = self.start(played, &directory.path)?;
        let beside = self.steps.first().map_or(0, |step| step.beside);
        let _busy = start_busy(beside)?;
        let steps: Vec<Option<Step>> = match &self.steps[..] {
            [] => vec![None],
            steps => steps.iter().copied().map(Some).collect(),
        };
        let total = steps.len() * self.sizes.len() * (ROUNDS + 1) * libraries.len();
        let mut done = 0;
        for (&bytes, step) in steps.into_iter().flat_map(|step| self.sizes.iter().map(move |bytes| (bytes, step))) {
            // Sizes that give the same number of elements are measured once.
            let mut turns: Vec<(&mut Library, Case)> = libraries
                .iter_mut()
                .map(|library| (self.case(library.collective, bytes), library))
                .filter(|(case, library)| library.last != Some((*case, step)))
                .map(|(case, library)| (library, case))
                .collect();
            for round in 0..=ROUNDS {
                for (library, case) in &mut turns {
                    progress(
                        done,
                        total,
                        format!("{}, {} of {}", size(case.bytes()), case.collective, library.who.name()),
                    );
                    done += 1;
                    match round {
                        0 => library.begin(*case, step, sets(case.bytes()), self.time, played),
                        _ => library.measure(),
                    }
                    .map_err(BenchError::Failed)?;
                }
            }
            let mut rows: Vec<Row> = turns.into_iter().map(|(library, case)| self.row(library, case, step)).collect();
            Row::mark(&mut rows);
            rows.into_iter().for_each(&mut row);
        }
        Ok(())
    }

    /// Returns all that are measured, in the order of rows.
    fn who(&self) -> Vec<Who> {
        let rivals = self.rivals.iter().cloned().map(Who::Rival);
        let parts = self.leaves.map_or(&[][..], |leaves| Timed::parts(leaves, self.ranks));
        let leaves = parts.iter().map(|&timed| Who::Leaves(timed));
        std::iter::once(Who::Ours).chain(leaves).chain(rivals).chain(self.limit.then_some(Who::Limit)).collect()
    }

    fn case(&self, collective: Collective, bytes: usize) -> Case {
        let Bench { ranks, dtype, op, spread, .. } = *self;
        let in_place = collective.in_place(self.in_place);
        Case { collective, ranks, count: 0, dtype, op, in_place, spread }.with_bytes(bytes)
    }

    /// Returns what our ranks execute.
    fn subject(&self) -> Subject {
        match self.memory {
            Memory::Slice => Subject::Collective,
            Memory::Alloc => Subject::Allocated,
        }
    }

    /// Whether each rank stays on a core of its own.
    fn pins(&self) -> bool {
        self.steps.is_empty()
    }

    fn check(&self) -> Result<(), BenchError> {
        let invalid =
            |argument, expected: String, found: String| Err(BenchError::Invalid { argument, expected, found });
        let Bench { ranks, dtype, op, .. } = *self;
        if let Some(hosts) = self.hosts.filter(|hosts| !(2..=MAX_HOSTS).contains(&hosts.get())) {
            return invalid("--hosts <N>", format!("2 to {MAX_HOSTS} hosts"), hosts.to_string());
        }
        if !(1..=256).contains(&ranks) {
            return invalid("--ranks <N>", "1 to 256 ranks".to_owned(), ranks.to_string());
        }
        if let Some(collective) = self.collectives.iter().find(|collective| ranks < collective.least_ranks()) {
            return invalid(
                "--ranks <N>",
                format!("{} ranks or more for {collective}", collective.least_ranks()),
                ranks.to_string(),
            );
        }
        if self.collectives.iter().any(|collective| collective.kind().combines()) && op.result(dtype) != Some(dtype) {
            let ops = ReduceOp::ALL.into_iter().filter(|op| op.result(dtype) == Some(dtype));
            let names = ops.map(ReduceOp::name).collect::<Vec<_>>().join(", ");
            return invalid(
                "--op <OP>",
                format!("an operation that gives {dtype} from {dtype} ({names})"),
                op.to_string(),
            );
        }
        if let Some(leaves) = self.leaves {
            if self.collectives != [Collective::AllReduce] || (dtype, op) != (DType::F32, ReduceOp::Sum) {
                let [collectives, dtype] = [format!("{:?}", self.collectives), dtype.to_string()];
                return invalid(
                    "--leaves <L>",
                    "all_reduce of f32 by sum".to_owned(),
                    format!("{leaves}, {op} of {dtype} by {collectives}"),
                );
            }
            if leaves < ranks || leaves > MOST_LEAVES {
                return invalid("--leaves <L>", format!("{ranks} to {MOST_LEAVES} leaves"), leaves.to_string());
            }
        }
        if !self.steps.is_empty() {
            // The second call in place would get the result of the first.
            let others =
                [(self.in_place, "--in-place"), (self.limit, "a limit or a plot"), (self.leaves.is_some(), "--leaves")];
            if let Some((_, what)) = others.iter().find(|(is_set, _)| *is_set) {
                return invalid(
                    "--step <MICROSECONDS>",
                    "calls of libraries, not in place".to_owned(),
                    (*what).to_owned(),
                );
            }
        }
        let most = case::MOST_IN_ALL / ranks;
        if let Some(bytes) = self.sizes.iter().max().filter(|&&bytes| bytes > most) {
            return invalid("--end <MAX>", format!("at most {most} bytes of each of {ranks} ranks"), bytes.to_string());
        }
        if self.spread > case::MOST_SPREAD {
            return Err(BenchError::spread(self.spread));
        }
        self.transport.check()
    }

    /// Starts all ranks.
    fn start(&self, played: Option<&Played>, directory: &Path) -> Result<Vec<Library>, BenchError> {
        let machine = Machine::new(&self.pythons)?;
        let ours = |group| (group, Some(VERSION.to_owned()));
        let mut libraries = Vec::new();
        for &collective in &self.collectives {
            for who in self.who() {
                let directory = directory.join(libraries.len().to_string());
                fs::create_dir(&directory)?;
                let group = match &who {
                    Who::Ours if self.transport == Transport::Processes || played.is_some() => {
                        processes::start(self, played, &directory).map(ours)
                    }
                    Who::Leaves(timed) => {
                        let of = self.leaves.unwrap_or(self.ranks);
                        let leaves = Leaves { timed: *timed, of, memory: self.memory };
                        match self.transport {
                            Transport::Processes => processes::start_leaves(self, leaves, &directory),
                            _ => Group::threads(self.ranks, Subject::Leaves(leaves), self.pins(), &directory),
                        }
                        .map(ours)
                    }
                    Who::Ours => Group::threads(self.ranks, self.subject(), self.pins(), &directory).map(ours),
                    Who::Rival(rival) => rival.start(self, &machine, played, &directory),
                    Who::Limit if let Some(played) = played => {
                        processes::start_limit(self, played, &directory).map(|group| (group, None))
                    }
                    Who::Limit => {
                        Group::threads(self.ranks, Subject::Limit, true, &directory).map(|group| (group, None))
                    }
                };
                let (group, version) = match group {
                    Ok((group, version)) => (Ok(group), version),
                    Err(failure) => (Err(failure), None),
                };
                let group = match group.map_err(|failure| failure.to_string()) {
                    Err(why) if !matches!(who, Who::Rival(_)) => return Err(BenchError::Failed(why)),
                    group => group,
                };
                let samples = Samples::default();
                libraries.push(Library {
                    who,
                    collective,
                    version,
                    group,
                    trips: Vec::new(),
                    last: None,
                    batches: 0,
                    samples,
                });
            }
        }
        Ok(libraries)
    }

    fn row(&self, library: &mut Library, case: Case, step: Option<Step>) -> Row {
        let (samples, trips) = (std::mem::take(&mut library.samples), std::mem::take(&mut library.trips));
        let (transport, memory) = match library.who {
            Who::Ours | Who::Leaves(_) | Who::Rival(Rival::Build(_) | Rival::Ours(_)) => (self.transport, self.memory),
            Who::Rival(_) => (Transport::Processes, Memory::Slice),
            Who::Limit => (Transport::Threads, Memory::Slice),
        };
        let (transport, figures) = match &library.group {
            Ok(_) if !samples.seconds.is_empty() => {
                let words = self.hosts.map_or_else(|| transport.name().to_owned(), |hosts| format!("{hosts} hosts"));
                (words, Some(Figures::new(samples)))
            }
            Ok(_) => ("none: no call was made".to_owned(), None),
            Err(why) => (format!("none: {why}"), None),
        };
        let case = Case { in_place: library.in_place(&case), ..case };
        Row {
            library: library.who.name(),
            version: library.version.clone(),
            transport,
            round_trip_us: (!trips.is_empty()).then(|| 1e6 * limits::median(trips)),
            barrier: library.group.as_ref().ok().map(Group::barrier),
            memory: memory.name(),
            case,
            step,
            figures,
            is_below_limit: false,
        }
    }
}

/// Returns over how many sets of buffers calls of `bytes` bytes rotate: few enough for memory, and
/// enough that a call does not find the data of the call before in the nearest cache.
fn sets(bytes: usize) -> usize {
    match bytes {
        0..=4096 => 16,
        4097..=0x100_0000 => 4,
        _ => 2,
    }
}

macro_rules! names {
    ($type:ident: $($variant:ident $name:literal),*) => {
        impl $type {
            /// Returns the name that users read and write.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name),* }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                match text {
                    $($name => Ok($type::$variant),)*
                    _ => Err(format!("expected one of {}", [$($name),*].join(", "))),
                }
            }
        }
    };
}

names!(Transport: Threads "threads", Processes "processes", Cuda "cuda");
names!(Memory: Slice "slice", Alloc "alloc");
