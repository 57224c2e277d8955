//! Other libraries: the MPIs that `mpis.rs` finds, whose ranks are a C program that is compiled
//! when the bench begins; torch's gloo, in a python that `pythons.rs` finds; another build of this
//! command, and this build with another algorithm of all-reduce.

pub(crate) mod mpis;
pub(crate) mod pythons;

use super::{
    Bench, BenchError,
    case::{Case, Collective},
    group::{Failure, Group},
    hosts::Played,
    pace::FREE,
    processes,
    tile::{Habit, Layout, PERIOD, Segment, Small, Tiles},
};
use crate::executable;
use consonance::{DType, Implementation};
use mpis::{Mpi, Search};
use std::{
    cell::{LazyCell, OnceCell},
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
    time::Duration,
};

/// Another library, or another build of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rival {
    /// An MPI.
    Mpi(Mpi),
    /// gloo, through `torch.distributed`.
    Gloo,
    /// The command `consonance` at this path.
    Build(PathBuf),
    /// This build, with one algorithm of all-reduce at all sizes.
    Ours(Implementation),
}

/// The prefix of the names of rivals that are builds.
const BUILD: &str = "build:";

/// The version of this build.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The time in which a launcher or a python has to tell its version. On a machine that is busy, or
/// has just started, this takes seconds.
const PATIENCE: Duration = Duration::from_secs(20);

const MPI_SOURCE: &str = include_str!("mpi.c");
const GLOO_SOURCE: &str = include_str!("gloo.py");

impl Rival {
    /// The other libraries.
    pub const LIBRARIES: [Rival; 4] =
        [Rival::Mpi(Mpi::Intel), Rival::Mpi(Mpi::Mpich), Rival::Mpi(Mpi::Open), Rival::Gloo];

    /// Returns the name that users read and write: `"openmpi"`, …, `"build:PATH"`.
    pub fn name(&self) -> String {
        match self {
            Rival::Mpi(mpi) => mpi.name().to_owned(),
            Rival::Gloo => "gloo".to_owned(),
            Rival::Build(path) => format!("{BUILD}{}", path.display()),
            Rival::Ours(implementation) => processes::name(*implementation).to_owned(),
        }
    }

    /// Returns how a user gets it.
    fn how_to_install(&self) -> &'static str {
        match self {
            Rival::Mpi(mpi) => mpi.how_to_install(),
            Rival::Gloo => {
                "pip install torch, for a python3 in PATH or one that bench --python names; or install Debian's \
                 package python3-torch"
            }
            Rival::Build(_) | Rival::Ours(_) => "cargo build --release -p consonance-cli",
        }
    }

    /// Whether its call is in place if that is `wanted`. gloo leaves the result of a reduction in
    /// the buffer of its input, and the results of other calls in other buffers.
    pub(super) fn in_place(&self, collective: Collective, wanted: bool) -> bool {
        match self {
            Rival::Mpi(_) | Rival::Build(_) | Rival::Ours(_) => collective.in_place(wanted),
            Rival::Gloo => matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast),
        }
    }

    /// Starts its ranks, on the same cores as ours. Returns them with the library's version, if it
    /// is known.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub(super) fn start(
        &self,
        bench: &Bench,
        machine: &Machine<'_>,
        played: Option<&Played>,
        directory: &Path,
    ) -> Result<(Group, Option<String>), Failure> {
        let ranks = bench.ranks;
        let (commands, version) = match self {
            Rival::Mpi(mpi) => {
                let (mut command, version) = self.mpi(*mpi, machine, ranks, played, directory)?;
                if !bench.pins() {
                    command.env(FREE, "1");
                }
                (vec![command], Some(version))
            }
            Rival::Gloo | Rival::Ours(_) if played.is_some() => {
                return Err(Failure::Unsupported("measured on one host alone".to_owned()));
            }
            Rival::Gloo if !bench.pins() => {
                return Err(Failure::Unsupported("measured apart from steps: Python computes otherwise".to_owned()));
            }
            Rival::Gloo => {
                let (python, version) = machine.gloo().ok_or_else(|| self.absent())?;
                (gloo(python, ranks, directory)?, Some(version.clone()))
            }
            Rival::Build(path) => {
                (processes::commands(|| Ok(Command::new(path)), bench, played, Implementation::Auto)?, None)
            }
            Rival::Ours(implementation) => {
                (processes::commands(executable::command, bench, played, *implementation)?, Some(VERSION.to_owned()))
            }
        };
        Ok((Group::processes(commands, ranks, directory)?, version))
    }

    /// Returns the command of an MPI's launcher with our C program, and the MPI's version.
    fn mpi(
        &self,
        mpi: Mpi,
        machine: &Machine<'_>,
        ranks: usize,
        played: Option<&Played>,
        directory: &Path,
    ) -> Result<(Command, String), Failure> {
        let found = machine.mpis.newest(mpi).ok_or_else(|| self.absent())?;
        if let Some(why) = found.problem() {
            let (title, version) = (mpi.title(), &found.version);
            return Err(Failure::Unsupported(format!("{title} {version} cannot compile programs: {why}")));
        }
        // Compiled once, for all collectives.
        let folder = directory.parent().unwrap_or(directory);
        let (source, program) = (folder.join("mpi.c"), folder.join(format!("{}.ranks", self.name())));
        if !program.exists() {
            fs::write(&source, MPI_SOURCE)?;
            let compile = found.compile(&source, &program).and_then(|mut command| output(&mut command));
            compile.map_err(|why| Failure::Broken(format!("the C compiler for {}: {why}", mpi.title())))?;
        }
        Ok((found.launch(ranks, &program, played), found.version.clone()))
    }

    fn absent(&self) -> Failure {
        Failure::Unsupported(format!("not installed: {}", self.how_to_install()))
    }

    /// Returns what a rank needs of a case besides its words; see `mpi.c`.
    pub(super) fn describe(&self, case: &Case, rank: usize) -> Vec<u8> {
        let habit = match self {
            Rival::Mpi(_) => Habit::Mpi,
            Rival::Gloo => Habit::Gloo,
            Rival::Build(_) | Rival::Ours(_) => return b"\n".to_vec(),
        };
        let layout = Layout::of(case, rank, habit);
        macro_rules! of_dtype {
            ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match case.dtype {
                    $(DType::$variant => patterns::<$type>(case),)*
                }
            };
        }
        let patterns = consonance_spec::for_each_dtype!(of_dtype);
        let segments = |list: &[Segment]| {
            let each = list.iter().map(|segment| format!(" {} {} {}", segment.tile, segment.shift, segment.count));
            format!(" {}{}", list.len(), each.collect::<String>())
        };
        let lists = [&layout.send, &layout.recv, &layout.expect].map(|list| segments(list)).concat();
        let counts: String = case.counts(rank).iter().map(|count| format!(" {count}")).collect();
        let mut message = format!(" {PERIOD} {} {}{lists}{counts}\n", case.dtype.size(), patterns.len()).into_bytes();
        message.extend(patterns.concat());
        message
    }
}

/// The other libraries that this machine has. Each is looked for once, when a row needs it.
pub(super) struct Machine<'b> {
    /// The pythons that the user names.
    pythons: &'b [PathBuf],
    mpis: LazyCell<Search, Box<dyn FnOnce() -> Search + 'b>>,
    gloo: OnceCell<Option<(PathBuf, String)>>,
}

impl<'b> Machine<'b> {
    /// # Errors
    /// [`BenchError::Invalid`] if a program that the user names is no Python.
    pub(super) fn new(pythons: &'b [PathBuf]) -> Result<Machine<'b>, BenchError> {
        for python in pythons {
            pythons::check(python, PATIENCE).map_err(|why| BenchError::Invalid {
                argument: "--python <PYTHONS>",
                expected: format!("a Python: {why}"),
                found: python.display().to_string(),
            })?;
        }
        let search = Box::new(|| Search::new(pythons, PATIENCE));
        Ok(Machine { pythons, mpis: LazyCell::new(search), gloo: OnceCell::new() })
    }

    /// Returns a python that has gloo, and its torch's version.
    fn gloo(&self) -> Option<&(PathBuf, String)> {
        let version = |python: &Path| {
            let script = "import torch, torch.distributed as d; d.ProcessGroupGloo; print(torch.__version__)";
            output(Command::new(python).args(["-c", script])).ok().map(|text| text.trim().to_owned())
        };
        let search = || {
            pythons::pythons(self.pythons).into_iter().find_map(|python| version(&python).map(|text| (python, text)))
        };
        self.gloo.get_or_init(search).as_ref()
    }
}

/// Returns the commands of the ranks of gloo.
fn gloo(python: &Path, ranks: usize, directory: &Path) -> Result<Vec<Command>, Failure> {
    let script = directory.join("gloo.py");
    fs::write(&script, GLOO_SOURCE)?;
    let store = directory.join("gloo.store");
    let command = |rank: usize| {
        let mut command = Command::new(python);
        command.arg(&script).args([rank.to_string(), ranks.to_string()]).arg(&store);
        command
    };
    Ok((0..ranks).map(command).collect())
}

/// Returns the bytes of each pattern.
fn patterns<T: Small>(case: &Case) -> Vec<Vec<u8>> {
    let tiles = Tiles::<T>::new(case);
    tiles
        .bytes()
        .map(|bytes| if bytes.is_empty() { vec![0; PERIOD * case.dtype.size()] } else { bytes.to_vec() })
        .collect()
}

/// Returns the standard output of a command, or the reason why there is none.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr).lines().last().unwrap_or("it failed").to_owned()),
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl FromStr for Rival {
    type Err = String;

    fn from_str(text: &str) -> Result<Rival, String> {
        let [one_shot, two_shot] = [Implementation::OneShot, Implementation::TwoShot].map(Rival::Ours);
        let named = || Rival::LIBRARIES.into_iter().chain([one_shot.clone(), two_shot.clone()]);
        let names = || named().map(|rival| rival.name()).collect::<Vec<_>>().join(", ");
        let build = text.strip_prefix(BUILD).filter(|path| !path.is_empty()).map(|path| Rival::Build(path.into()));
        let rival = build.or_else(|| named().find(|rival| rival.name() == text));
        rival.ok_or_else(|| format!("expected one of {}, {BUILD}PATH", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for rival in Rival::LIBRARIES.into_iter().chain([Rival::Build("/a b".into())]) {
            assert_eq!(rival.name().parse(), Ok(rival));
        }
        let error = "mpi".parse::<Rival>().unwrap_err();
        assert_eq!(error, "expected one of intelmpi, mpich, openmpi, gloo, one_shot, two_shot, build:PATH");
        "build:".parse::<Rival>().unwrap_err();
    }
}
