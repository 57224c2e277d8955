//! Other libraries: two MPIs, if they are installed, whose ranks are a C program that is compiled
//! when the bench begins; torch's gloo; another build of this command, and this build with another
//! algorithm of all-reduce.

use super::{
    Bench,
    case::{Case, Collective},
    group::{Failure, Group},
    processes,
    tile::{Habit, Layout, PERIOD, Segment, Small, Tiles},
};
use crate::itself;
use consonance::{DType, Implementation};
use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

/// Another library, or another build of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Open MPI.
    OpenMpi,
    /// MPICH.
    Mpich,
    /// gloo, through `torch.distributed`.
    Gloo,
    /// The command `consonance` at this path.
    Build(PathBuf),
    /// This build, with one algorithm of all-reduce at all sizes.
    Ours(Implementation),
}

/// The prefix of the names of rivals that are builds.
const BUILD: &str = "build:";

const MPI_SOURCE: &str = include_str!("mpi.c");
const GLOO_SOURCE: &str = include_str!("gloo.py");

impl Rival {
    /// The other libraries.
    pub const LIBRARIES: [Rival; 3] = [Rival::OpenMpi, Rival::Mpich, Rival::Gloo];

    /// Returns the name that users read and write: `"openmpi"`, …, `"build:PATH"`.
    pub fn name(&self) -> String {
        match self {
            Rival::OpenMpi => "openmpi".to_owned(),
            Rival::Mpich => "mpich".to_owned(),
            Rival::Gloo => "gloo".to_owned(),
            Rival::Build(path) => format!("{BUILD}{}", path.display()),
            Rival::Ours(implementation) => processes::name(*implementation).to_owned(),
        }
    }

    /// Returns how a user gets it.
    fn how_to_install(&self) -> &'static str {
        match self {
            Rival::OpenMpi => {
                "install Debian's packages openmpi-bin and libopenmpi-dev, or put its mpicc and mpiexec first in PATH"
            }
            Rival::Mpich => {
                "install Debian's packages mpich and libmpich-dev, or put its mpicc and mpiexec first in PATH"
            }
            Rival::Gloo => {
                "have a python3 in PATH that can import torch: pip install torch, or Debian's package python3-torch"
            }
            Rival::Build(_) | Rival::Ours(_) => "cargo build --release -p consonance-cli",
        }
    }

    /// Whether its call is in place if that is `wanted`. gloo leaves the result of a reduction in
    /// the buffer of its input, and the results of other calls in other buffers.
    pub(super) fn in_place(&self, collective: Collective, wanted: bool) -> bool {
        match self {
            Rival::OpenMpi | Rival::Mpich | Rival::Build(_) | Rival::Ours(_) => collective.in_place(wanted),
            Rival::Gloo => matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast),
        }
    }

    /// Starts its ranks, on the same cores as ours.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub(super) fn start(&self, bench: &Bench, directory: &Path) -> Result<Group, Failure> {
        let ranks = bench.ranks;
        let commands = match self {
            Rival::OpenMpi | Rival::Mpich => vec![self.mpi(ranks, directory)?],
            Rival::Gloo => self.gloo(ranks, directory)?,
            Rival::Build(path) => processes::commands(|| Ok(Command::new(path)), bench, Implementation::Auto)?,
            Rival::Ours(implementation) => processes::commands(itself::command, bench, *implementation)?,
        };
        Group::processes(commands, ranks, directory)
    }

    /// Returns the command of an MPI's launcher with our C program, compiled by that MPI's
    /// compiler.
    fn mpi(&self, ranks: usize, directory: &Path) -> Result<Command, Failure> {
        let says = if *self == Rival::OpenMpi { "Open" } else { "HYDRA" };
        // Debian gives each MPI's launcher a name of its own. On other systems the output of the
        // launcher in PATH tells whose it is.
        let suffixes = [format!(".{}", self.name()), String::new()];
        let suffix = suffixes.into_iter().find(|suffix| {
            output(Command::new(format!("mpiexec{suffix}")).arg("--version")).is_ok_and(|text| text.contains(says))
                && output(Command::new(format!("mpicc{suffix}")).arg("--version")).is_ok()
        });
        let suffix = suffix.ok_or_else(|| self.absent())?;
        let (source, program) = (directory.join("mpi.c"), directory.join(format!("{}.ranks", self.name())));
        fs::write(&source, MPI_SOURCE)?;
        output(Command::new(format!("mpicc{suffix}")).args(["-O3", "-o"]).args([&program, &source]))
            .map_err(|why| Failure::Broken(format!("mpicc{suffix}: {why}")))?;
        let mut command = Command::new(format!("mpiexec{suffix}"));
        command.args(["-n", &ranks.to_string()]);
        if *self == Rival::OpenMpi {
            // Tests in containers often run as root.
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        } else {
            command.args(["-bind-to", "none"]);
        }
        // Each rank itself takes the same core as ours. The launcher might choose another.
        command.arg(program);
        Ok(command)
    }

    fn gloo(&self, ranks: usize, directory: &Path) -> Result<Vec<Command>, Failure> {
        // Debian's package belongs to the system's python, which another python in PATH may hide.
        let mut pythons = env::var_os("PATH").filter(|path| !path.is_empty()).into_iter().flat_map(|path| {
            let folders: Vec<PathBuf> = env::split_paths(&path).collect();
            folders.into_iter().map(|folder| folder.join("python3"))
        });
        let has_gloo = |python: &PathBuf| {
            output(Command::new(python).args(["-c", "import torch.distributed as d; d.ProcessGroupGloo"])).is_ok()
        };
        let python = pythons.find(has_gloo).ok_or_else(|| self.absent())?;
        let script = directory.join("gloo.py");
        fs::write(&script, GLOO_SOURCE)?;
        let store = directory.join("gloo.store");
        let command = |rank: usize| {
            let mut command = Command::new(&python);
            command.arg(&script).args([rank.to_string(), ranks.to_string()]).arg(&store);
            command
        };
        Ok((0..ranks).map(command).collect())
    }

    fn absent(&self) -> Failure {
        Failure::Unsupported(format!("not installed: {}", self.how_to_install()))
    }

    /// Returns what a rank needs of a case besides its words; see `mpi.c`.
    pub(super) fn describe(&self, case: &Case, rank: usize) -> Vec<u8> {
        let habit = match self {
            Rival::OpenMpi | Rival::Mpich => Habit::Mpi,
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
