//! Libraries and MPI launchers for engines that this version does not have yet. A library is its
//! file in a folder where the loader looks; nothing is loaded.

use super::row::{Row, Section, State};
use crate::program::{ANSWER, Program, in_path};
use serde_json::{Value, json};
use std::{
    env::{self, consts::ARCH},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// A library to look for.
struct Library {
    name: &'static str,
    /// The name by which the loader is asked for it.
    file: &'static str,
    install: &'static str,
}

const CUDA: Library = Library {
    name: "CUDA driver",
    file: "libcuda.so.1",
    install: "install NVIDIA's driver (Debian: nvidia-driver), or start the container with its devices",
};

const NCCL: Library = Library {
    name: "NCCL",
    file: "libnccl.so.2",
    install: "install libnccl2 from NVIDIA's packages, or set LD_LIBRARY_PATH to the folder that has it",
};

const UCX: Library = Library { name: "UCX", file: "libucp.so.0", install: "install libucx0 (Debian), ucx (others)" };

/// An MPI to look for.
struct Mpi {
    name: &'static str,
    /// Reads the version from the launcher's answer to `--version`; none if the launcher is another
    /// MPI's.
    version: fn(&str) -> Option<String>,
    install: &'static str,
}

const MPIS: [Mpi; 3] = [
    Mpi { name: "Open MPI", version: open_mpi, install: "install openmpi-bin (Debian), openmpi (others)" },
    Mpi { name: "MPICH", version: mpich, install: "install mpich" },
    Mpi { name: "Intel MPI", version: intel_mpi, install: "install it with Intel's oneAPI, and source its setvars.sh" },
];

/// Names of launchers. Where several MPIs are installed, Debian gives each a name of its own.
const LAUNCHERS: [&str; 5] = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich", "mpiexec.hydra"];

/// The places where the loader looks, in its order.
struct Loader {
    /// The folders of `LD_LIBRARY_PATH`.
    path: Vec<PathBuf>,
    /// The output of `ldconfig -p`, or why there is none.
    cache: Result<String, String>,
    /// The folders that are built into it.
    folders: Vec<PathBuf>,
}

pub(super) fn rows() -> Vec<Row> {
    let loader = Loader::of_this_process();
    let launchers = launchers();
    let mut rows = vec![loader.row(), cuda(&loader), library(&NCCL, &loader)];
    rows.extend(MPIS.iter().map(|mpi| launcher(mpi, &launchers)));
    rows.push(library(&UCX, &loader));
    rows
}

fn row(name: &'static str, finding: String, install: Option<&str>, facts: Value) -> Row {
    let state = if install.is_some() { State::Absent } else { State::Found };
    let row = Row::new(Section::Engines, name, state, finding).facts(facts);
    match install {
        Some(install) => row.advice(install),
        None => row,
    }
}

fn library(library: &Library, loader: &Loader) -> Row {
    let Library { name, file, install } = *library;
    let found = loader.find(file);
    let version = found.as_deref().and_then(|path| version_of(path, file));
    let mut finding = match &found {
        Some(path) => path.display().to_string(),
        None => format!("no {file} in these folders"),
    };
    if let Some(version) = &version {
        finding += &format!(", version {version}");
    }
    let facts = json!({
        "engine_built": false, "file": file, "path": found.as_deref().map(Path::to_string_lossy), "version": version,
        "looked_in": loader.places(),
    });
    row(name, finding, found.is_none().then_some(install), facts)
}

/// Returns the row of the driver's library and of the devices that the kernel shows.
fn cuda(loader: &Loader) -> Row {
    let mut row = library(&CUDA, loader);
    let module = fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| module_version(&text));
    let is_device = |name: &str| name.strip_prefix("nvidia").is_some_and(|index| index.parse::<u32>().is_ok());
    let names = fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let devices = names.filter(|name| name.to_str().is_some_and(is_device)).count();
    row.finding += &match (devices, &module) {
        (0, None) => "; no device /dev/nvidia0".to_owned(),
        (_, None) => format!("; devices: {devices}"),
        (_, Some(module)) => format!("; devices: {devices}, kernel module {module}"),
    };
    row.facts["devices"] = devices.into();
    row.facts["kernel_module"] = module.into();
    row
}

/// Returns the version in the first line of `/proc/driver/nvidia/version`: the first word that
/// consists of numbers and points.
fn module_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// Returns the version in the name of the file to which `path` leads, if it says more than the name
/// for the loader.
fn version_of(path: &Path, file: &str) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let (_, version) = real.file_name()?.to_str()?.split_once(".so.")?;
    (Some(version) != file.split_once(".so.").map(|(_, version)| version)).then(|| version.to_owned())
}

impl Loader {
    fn of_this_process() -> Loader {
        let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let path = env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()).collect();
        let of_arch = format!("{ARCH}-linux-gnu");
        let folders = ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"].map(PathBuf::from).into_iter();
        let folders = ["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(&of_arch)).into_iter().chain(folders);
        Loader { path, cache: cache(), folders: folders.collect() }
    }

    /// Returns the places where a library is looked for.
    fn places(&self) -> Vec<String> {
        let path = self.path.iter().map(|folder| format!("{} (LD_LIBRARY_PATH)", folder.display()));
        let cache = if self.cache.is_ok() { "ldconfig's cache" } else { "no cache of ldconfig" };
        let folders = self.folders.iter().map(|folder| folder.display().to_string());
        path.chain([cache.to_owned()]).chain(folders).collect()
    }

    /// Returns the row of the places, with those that cannot be read.
    fn row(&self) -> Row {
        // A folder of the loader's own may be absent. A folder that the user names must exist.
        let closed = |folder: &PathBuf| {
            let error = fs::read_dir(folder).err()?;
            let is_named = self.path.contains(folder) || error.kind() != io::ErrorKind::NotFound;
            is_named.then(|| format!("{} cannot be read: {error}", folder.display()))
        };
        let mut problems: Vec<String> = self.path.iter().chain(&self.folders).filter_map(closed).collect();
        problems.extend(self.cache.as_ref().err().cloned());
        let facts = json!({ "looked_in": self.places(), "problems": problems });
        let state = if problems.is_empty() { State::Good } else { State::Note };
        let finding = [self.places().join(", ")].into_iter().chain(problems).collect::<Vec<_>>().join("; ");
        let row = Row::new(Section::Engines, "library folders", state, finding).facts(facts);
        if state == State::Good { row } else { row.advice("correct LD_LIBRARY_PATH, or the folders' permissions") }
    }

    /// Returns the file of this name that the loader would take.
    fn find(&self, file: &str) -> Option<PathBuf> {
        let of_folder = |folder: &PathBuf| Some(folder.join(file)).filter(|path| path.exists());
        (self.path.iter().find_map(of_folder))
            .or_else(|| self.cache.as_deref().ok().and_then(|cache| cached(cache, file)))
            .or_else(|| self.folders.iter().find_map(of_folder))
    }
}

/// Returns the output of `ldconfig -p`. It is seldom in the `PATH` of users.
fn cache() -> Result<String, String> {
    let paths = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].map(PathBuf::from);
    let program = in_path("ldconfig").or_else(|| paths.into_iter().find(|path| path.exists()));
    let mut command = Command::new(program.ok_or("there is no ldconfig")?);
    command.arg("-p");
    match Program::start(command).map_err(|error| format!("ldconfig: {error}"))?.finish(Instant::now() + ANSWER) {
        Ok((true, text)) => Ok(text),
        Ok((false, text)) => Err(format!("ldconfig failed: {}", text.lines().next().unwrap_or("no word"))),
        Err(why) => Err(format!("ldconfig: {why}")),
    }
}

/// Returns the path of a library of this architecture in the list of `ldconfig -p`.
fn cached(list: &str, file: &str) -> Option<PathBuf> {
    let architecture = match ARCH {
        "x86_64" => "x86-64",
        "aarch64" => "AArch64",
        _ => "",
    };
    list.lines().find_map(|line| {
        let (name, rest) = line.trim().split_once(" (")?;
        let (kind, path) = rest.split_once(") => ")?;
        (name == file && kind.contains(architecture)).then(|| PathBuf::from(path))
    })
}

/// Returns the launchers in `PATH`, each with its answer to `--version`, or the reason why there is
/// none.
fn launchers() -> Vec<(PathBuf, Result<String, String>)> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in LAUNCHERS.into_iter().filter_map(in_path) {
        // Two names are often one program.
        if !paths.iter().any(|other| other.canonicalize().ok() == path.canonicalize().ok()) {
            paths.push(path);
        }
    }
    let deadline = Instant::now() + ANSWER;
    let start = |path: PathBuf| {
        let mut command = Command::new(&path);
        command.arg("--version");
        (path, Program::start(command))
    };
    // Starts all at once, so that several that hang take the time of one.
    let programs: Vec<_> = paths.into_iter().map(start).collect();
    let finish = |program: io::Result<Program>| {
        program.map_err(|error| error.to_string())?.finish(deadline).map(|(_, text)| text)
    };
    programs.into_iter().map(|(path, program)| (path, finish(program))).collect()
}

fn launcher(mpi: &Mpi, launchers: &[(PathBuf, Result<String, String>)]) -> Row {
    let own = launchers.iter().find_map(|(path, said)| Some((path, (mpi.version)(said.as_ref().ok()?)?)));
    let mut problems = Vec::new();
    for (path, said) in launchers {
        if let Err(why) = said {
            problems.push(format!("{}: {why}", path.display()));
        }
    }
    let facts = json!({
        "engine_built": false, "path": own.as_ref().map(|(path, _)| path.to_string_lossy()),
        "version": own.as_ref().map(|(_, version)| version), "looked_in": ["PATH"], "looked_for": LAUNCHERS,
        "problems": problems,
    });
    match own {
        Some((path, version)) => row(mpi.name, format!("{}, version {version}", path.display()), None, facts),
        None => {
            let mut finding = format!("no {} of it in PATH", LAUNCHERS[..2].join(" or "));
            finding.extend(problems.iter().map(|problem| format!("; {problem}")));
            row(mpi.name, finding, Some(mpi.install), facts)
        }
    }
}

/// Returns the word after `before` in a text.
fn word_after(text: &str, before: &str) -> Option<String> {
    let (_, rest) = text.split_once(before)?;
    rest.split_whitespace().next().map(|word| word.trim_end_matches(',').to_owned())
}

fn open_mpi(text: &str) -> Option<String> {
    word_after(text, "(Open MPI)")
}

fn mpich(text: &str) -> Option<String> {
    text.contains("HYDRA").then(|| word_after(text, "Version:"))?
}

fn intel_mpi(text: &str) -> Option<String> {
    text.contains("Intel(R) MPI Library").then(|| word_after(text, "Version"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_by_what_they_say() {
        let open = "mpirun (Open MPI) 4.1.4\n\nReport bugs to …\n";
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: …\n";
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n";
        let expected = [(open, 0, "4.1.4"), (hydra, 1, "4.0.2"), (intel, 2, "2021.9")];
        for (text, own, version) in expected {
            let versions = MPIS.map(|mpi| (mpi.version)(text));
            for (index, found) in versions.iter().enumerate() {
                assert_eq!(found.as_deref(), (index == own).then_some(version), "{text}");
            }
        }
        assert!(MPIS.iter().all(|mpi| (mpi.version)("prterun (PRRTE) 3.0\n").is_none()));
    }

    #[test]
    fn the_cache_is_read_for_this_architecture() {
        let kind = if ARCH == "aarch64" { "libc6,AArch64" } else { "libc6,x86-64" };
        let list = format!(
            "2 libs found\n\tlibucp.so.0 (libc6) => /32/libucp.so.0\n\tlibucp.so.0 ({kind}) => /a b/libucp.so.0\n"
        );
        let found = cached(&list, "libucp.so.0");
        assert!(found.is_some());
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert_eq!(found, Some(PathBuf::from("/a b/libucp.so.0")));
        }
        assert_eq!(cached(&list, "libucp.so"), None);
    }

    #[test]
    fn a_driver_says_its_version() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n";
        assert_eq!(module_version(text).as_deref(), Some("550.54.15"));
        assert_eq!(module_version(""), None);
    }
}
