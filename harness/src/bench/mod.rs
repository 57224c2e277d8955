//! The command `consonance bench`: our collectives beside other libraries and what the machine allows.
//!
//! `case.rs` says what is called, `tile.rs` what is in the buffers, `rank.rs` what a rank does, `group.rs` how the bench talks to
//! ranks, `rivals/` who else there is, `row.rs` what a result looks like, `plot.rs` draws it. `limits.rs` measures the machine alone.
//!
//! All libraries are started once and wait, asleep, until it is their turn. At each size they run in turn, A B A B, for
//! several rounds, so that a machine that is slow for a while is so for all. A rank times each call by itself, after a barrier of
//! its library; the slowest rank's time counts. Calls rotate over several sets of buffers, which are filled anew before, and checked
//! after, each batch of calls, outside of what is timed.

pub mod case;
mod group;
pub mod limits;
mod plot;
mod processes;
mod rank;
mod rivals;
mod row;
mod tile;

pub use plot::plot;
pub use processes::bench_rank;
pub use rivals::Rival;
pub use row::{Figures, Row};

use case::{Case, Collective};
use consonance::{DType, ReduceOp};
use group::{Failure, Group, Samples};
use rank::Subject;
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    process,
    str::FromStr,
    time::{Duration, Instant},
};

/// Rounds in which the libraries take turns at a size.
const ROUNDS: usize = 8;

/// How the ranks of ours meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Threads of one process.
    Threads,
    /// Processes that share memory.
    Processes,
    /// Devices of one machine.
    Cuda,
}

/// Where the buffers of ours are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In memory of the program's own.
    Slice,
    /// In memory that all ranks can read and write.
    Alloc,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// How the ranks of ours meet.
    pub transport: Transport,
    /// Bytes of the larger buffer, in the order in which they are measured.
    pub sizes: Vec<usize>,
    /// The element type.
    pub dtype: DType,
    /// The operation, of collectives that have one.
    pub op: ReduceOp,
    /// Where the buffers of ours are.
    pub memory: Memory,
    /// Whether results take the place of what is sent.
    pub in_place: bool,
    /// Who else is measured.
    pub rivals: Vec<Rival>,
    /// Whether a copy of the bytes that must at least be moved is measured, too.
    pub limit: bool,
    /// How long each library is measured at each size, with what is around the calls; every set of buffers is used once a round at
    /// least.
    pub time: Duration,
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum BenchError {
    /// It cannot be, as it was asked for.
    Invalid {
        /// Which option is wrong.
        argument: &'static str,
        /// What would be right.
        expected: String,
        /// What there is.
        found: String,
    },
    /// Our own ranks cannot be started, or have failed.
    Failed(String),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Invalid { argument, expected, found } => {
                write!(f, "{argument}: expected {expected}, found {found}")
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

/// Who is measured.
struct Library {
    name: &'static str,
    /// None of ours.
    rival: Option<Rival>,
    /// Its ranks, or why there are none.
    group: Result<Group, String>,
    /// The shortest time that a call can have taken, in seconds.
    least: f64,
    case: Case,
    batches: usize,
    samples: Samples,
}

impl Bench {
    /// Measures. `row` gets each result when it is there; `progress` is told, before each measurement, how many of how many have
    /// been made and what is measured next.
    ///
    /// # Errors
    /// [`BenchError`]. What rivals cannot do is in their rows.
    pub fn run(
        &self,
        mut row: impl FnMut(Row),
        mut progress: impl FnMut(usize, usize, String),
    ) -> Result<(), BenchError> {
        self.check()?;
        let directory = Directory::new()?;
        let names = self.rivals.iter().map(|rival| rival.name()).collect::<Vec<_>>().join(", ");
        progress(0, 1, format!("starting {} ranks of consonance {names}", self.ranks));
        let mut libraries = self.start(&directory.0)?;
        // Sizes that come to the same number of elements are one.
        let mut cases: Vec<Case> = self.sizes.iter().map(|&bytes| self.case(bytes)).collect();
        cases.dedup();
        let total = cases.len() * (ROUNDS + 1) * libraries.len();
        let mut done = 0;
        for case in cases {
            let sets = sets(case.bytes());
            for round in 0..=ROUNDS {
                for library in &mut libraries {
                    progress(done, total, format!("{} bytes, {}", case.bytes(), library.name));
                    done += 1;
                    match round {
                        0 => library.begin(case, sets, self.time),
                        _ => library.measure(),
                    }
                    .map_err(BenchError::Failed)?;
                }
            }
            for library in &mut libraries {
                row(self.row(library));
            }
        }
        Ok(())
    }

    fn case(&self, bytes: usize) -> Case {
        let Bench { collective, ranks, dtype, op, .. } = *self;
        Case { collective, ranks, count: 0, dtype, op, in_place: collective.in_place(self.in_place) }.with_bytes(bytes)
    }

    fn check(&self) -> Result<(), BenchError> {
        let invalid =
            |argument, expected: String, found: String| Err(BenchError::Invalid { argument, expected, found });
        let Bench { ranks, dtype, op, .. } = *self;
        if !(1..=256).contains(&ranks) {
            return invalid("-n", "1 to 256 ranks".to_owned(), ranks.to_string());
        }
        if self.collective.reduces() && op.result(dtype) != Some(dtype) {
            let ops = ReduceOp::ALL.into_iter().filter(|op| op.result(dtype) == Some(dtype));
            let names = ops.map(ReduceOp::name).collect::<Vec<_>>().join(", ");
            return invalid("--op", format!("an operation that gives {dtype} from {dtype} ({names})"), op.to_string());
        }
        match self.transport {
            Transport::Threads | Transport::Processes => {}
            Transport::Cuda => {
                return invalid(
                    "--transport",
                    "threads or processes".to_owned(),
                    "cuda: this build has no CUDA transport".to_owned(),
                );
            }
        }
        Ok(())
    }

    /// Starts all ranks.
    fn start(&self, directory: &Path) -> Result<Vec<Library>, BenchError> {
        let library = |name, rival, group| Library {
            name,
            rival,
            group,
            least: 0.0,
            case: self.case(0),
            batches: 0,
            samples: Samples::default(),
        };
        let failed = |failure: Failure| BenchError::Failed(failure.to_string());
        let subject = match self.memory {
            Memory::Slice => Subject::Collective,
            Memory::Alloc => Subject::Allocated,
        };
        let ours = match self.transport {
            Transport::Processes => processes::start(self.ranks, directory, subject),
            _ => Group::threads(self.ranks, subject),
        };
        let mut libraries = vec![library("consonance", None, Ok(ours.map_err(failed)?))];
        for &rival in &self.rivals {
            let group = rival.start(self.ranks, directory).map_err(|failure| failure.to_string());
            libraries.push(library(rival.name(), Some(rival), group));
        }
        if self.limit {
            let group = Group::threads(self.ranks, Subject::Limit).map_err(failed)?;
            // Nothing that one rank knows is known to another sooner.
            let least = if self.ranks > 1 { limits::round_trip()?.map_or(0.0, |seconds| seconds / 2.0) } else { 0.0 };
            libraries.push(Library { least, ..library("limit", None, Ok(group)) });
        }
        Ok(libraries)
    }

    fn row(&self, library: &mut Library) -> Row {
        let samples = std::mem::take(&mut library.samples);
        let (transport, figures) = match &library.group {
            Ok(_) if !samples.seconds.is_empty() => {
                let transport = match (library.rival, library.name) {
                    (Some(_), _) => "processes",
                    (None, "limit") => "threads",
                    (None, _) => self.transport.name(),
                };
                (transport.to_owned(), Some(Figures::new(samples)))
            }
            Ok(_) => ("none: no call was made".to_owned(), None),
            Err(why) => (format!("none: {why}"), None),
        };
        let memory = if library.name == "consonance" { self.memory.name() } else { Memory::Slice.name() };
        Row { library: library.name, transport, memory, case: library.case, figures }
    }
}

impl Library {
    /// Has buffers made and the first calls done, by which it is known how many fit in a round.
    ///
    /// # Errors
    /// Our own failures; a rival's is kept for its rows.
    fn begin(&mut self, case: Case, sets: usize, time: Duration) -> Result<(), String> {
        let rival = self.rival;
        self.case = case;
        self.samples = Samples::default();
        if let Some(rival) = rival {
            self.case.in_place = rival.in_place(case.collective, case.in_place);
        }
        let case = self.case;
        let describe = |rank| rival.map_or(b"\n".to_vec(), |rival| rival.describe(&case, rank));
        let batches = self.ask(|group| {
            group.prepare(&case, sets, describe)?;
            // The first touches new memory.
            group.run(1, 0)?;
            let begin = Instant::now();
            group.run(1, sets)?;
            let rounds = ROUNDS as f64 * begin.elapsed().as_secs_f64();
            Ok(((time.as_secs_f64() / rounds) as usize).clamp(1, 1 << 20))
        })?;
        self.batches = batches.unwrap_or(0);
        Ok(())
    }

    /// A round.
    ///
    /// # Errors
    /// As [`begin`](Library::begin).
    fn measure(&mut self) -> Result<(), String> {
        let (batches, turn) = (self.batches, self.samples.seconds.len());
        if batches == 0 {
            return Ok(());
        }
        let Some(samples) = self.ask(|group| group.run(batches, turn))? else { return Ok(()) };
        let least = self.least;
        self.samples.seconds.extend(samples.seconds.into_iter().map(|seconds| seconds.max(least)));
        self.samples.cpu_seconds += samples.cpu_seconds;
        self.samples.wrong += samples.wrong;
        Ok(())
    }

    /// Asks its ranks for something, if there are any; a rival that fails has none any more.
    fn ask<T>(&mut self, what: impl FnOnce(&mut Group) -> Result<T, Failure>) -> Result<Option<T>, String> {
        let Ok(group) = &mut self.group else { return Ok(None) };
        match what(group) {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if self.rival.is_none() => Err(failure.to_string()),
            Err(failure) => {
                self.group = Err(failure.to_string());
                Ok(None)
            }
        }
    }
}

/// Over how many sets of buffers calls of so many bytes rotate: no more than memory has room for, no less than it takes that the next
/// call does not find what the one before has left in the nearest cache.
fn sets(bytes: usize) -> usize {
    match bytes {
        0..=4096 => 16,
        4097..=0x100_0000 => 4,
        _ => 2,
    }
}

/// A directory for sockets and programs, which goes with its owner.
struct Directory(PathBuf);

impl Directory {
    fn new() -> io::Result<Directory> {
        let path = std::env::temp_dir().join(format!("consonance-bench-{}", process::id()));
        fs::create_dir(&path)?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of a directory for temporary files is the system's to remove.
        let _ = fs::remove_dir_all(&self.0);
    }
}

macro_rules! names {
    ($type:ident: $($variant:ident $name:literal),*) => {
        impl $type {
            /// The name that users read and write.
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
