//! Libraries of GPUs, and launchers of MPIs. A library is its file in a
//! folder where the loader looks. Only the CUDA driver is loaded, in a process of its own, which is
//! ended if the driver hangs. The bench finds MPIs by the same search.

use super::row::{Row, Section, Verdict};
use crate::{
    bench::{Mpi, rivals::mpis::Search},
    executable,
    subprocess::{ANSWER, Program, in_path},
};
use serde_json::{Value, json};
use std::{
    env::{self, consts::ARCH},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The time that the CUDA driver has to start: on a machine with many devices it takes seconds.
const DRIVER: Duration = Duration::from_secs(10);

/// A library to look for.
struct Library {
    name: &'static str,
    /// The name by which the loader is asked for it.
    file: &'static str,
    install: &'static str,
    /// Whether this version has an engine for it.
    has_engine: bool,
}

const CUDA: Library = Library {
    name: "CUDA driver",
    file: "libcuda.so.1",
    install: "install NVIDIA's driver (Debian: nvidia-driver), or start the container with its devices",
    has_engine: true,
};

const NCCL: Library = Library {
    name: "NCCL",
    file: "libnccl.so.2",
    install: "install libnccl2 from NVIDIA's packages, or set LD_LIBRARY_PATH to the folder that has it",
    has_engine: false,
};

/// The places where the loader looks, in its order.
pub(super) struct Loader {
    /// The folders of `LD_LIBRARY_PATH`.
    path: Vec<PathBuf>,
    /// The output of `ldconfig -p`, or why there is none.
    cache: Result<String, String>,
    /// The folders that are built into it.
    folders: Vec<PathBuf>,
}

pub(super) fn rows(loader: &Loader) -> Vec<Row> {
    let mpis = Search::new(&[], ANSWER);
    let mut rows = vec![loader.row(), cuda(loader), library(&NCCL, loader)];
    rows.extend([Mpi::Open, Mpi::Mpich, Mpi::Intel].map(|kind| mpi(kind, &mpis)));
    rows
}

fn row(name: &'static str, finding: String, install: Option<&str>, facts: Value) -> Row {
    let state = if install.is_some() { Verdict::Absent } else { Verdict::Found };
    let row = Row::new(Section::Engines, name, state, finding).facts(facts);
    match install {
        Some(install) => row.advice(install),
        None => row,
    }
}

fn library(library: &Library, loader: &Loader) -> Row {
    library_at(library, loader.find(library.file), loader)
}

fn library_at(library: &Library, found: Option<PathBuf>, loader: &Loader) -> Row {
    let Library { name, file, install, has_engine } = *library;
    let version = found.as_deref().and_then(|path| version_of(path, file));
    let mut finding = match &found {
        Some(path) => path.display().to_string(),
        None => format!("no {file} in these folders"),
    };
    if let Some(version) = &version {
        finding += &format!(", version {version}");
    }
    let facts = json!({
        "engine_built": has_engine, "file": file, "path": found.as_deref().map(Path::to_string_lossy), "version": version,
        "looked_in": loader.places(),
    });
    row(name, finding, found.is_none().then_some(install), facts)
}

/// Returns the row of the driver: its library, its devices, and those that the kernel shows.
fn cuda(loader: &Loader) -> Row {
    let answer = ask_driver();
    let loaded = answer.as_ref().ok().and_then(|answer| answer["driver"]["path"].as_str());
    let path = match loaded {
        Some(path) if path.contains('/') => Some(PathBuf::from(path)),
        Some(name) => loader.find(name).or_else(|| Some(PathBuf::from(name))),
        None => loader.find(CUDA.file),
    };
    let mut row = library_at(&CUDA, path, loader);
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
    match answer {
        Ok(mut answer) if answer["driver"].is_object() => {
            let version = answer["driver"]["cuda_version"].as_str().unwrap_or_default();
            row.finding += &format!("; it has CUDA {version}");
            for (ordinal, device) in answer["devices"].as_array().into_iter().flatten().enumerate() {
                let words = device["description"].as_str().or(device["absent"].as_str()).unwrap_or_default();
                row.finding += &format!("; cuda:{ordinal} is {words}");
            }
            row.finding += "; consonance gpu-check compares bits";
            row.facts["cuda"] = answer.take();
        }
        Ok(mut answer) => {
            if row.state == Verdict::Found {
                row.finding += &format!("; {}", answer["absent"].as_str().unwrap_or_default());
            }
            row.facts["cuda"] = answer.take();
        }
        Err(why) => {
            row.finding += &format!("; it does not start: {why}");
            row.facts["cuda"] = json!({ "absent": why });
        }
    }
    row
}

/// Asks the driver for its devices, in another process.
fn ask_driver() -> Result<Value, String> {
    let mut command = executable::command().map_err(|error| error.to_string())?;
    command.arg("doctor-gpu");
    let program = Program::start(command).map_err(|error| error.to_string())?;
    match program.finish(Instant::now() + DRIVER)? {
        (true, text) => serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}")),
        (false, text) => Err(text.lines().last().unwrap_or("its process ended without a word").to_owned()),
    }
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
    pub(super) fn of_this_process() -> Loader {
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
        let state = if problems.is_empty() { Verdict::Good } else { Verdict::Note };
        let finding = [self.places().join(", ")].into_iter().chain(problems).collect::<Vec<_>>().join("; ");
        let row = Row::new(Section::Engines, "library folders", state, finding).facts(facts);
        if state == Verdict::Good { row } else { row.advice("correct LD_LIBRARY_PATH, or the folders' permissions") }
    }

    /// Returns the file of this name that the loader would take.
    pub(super) fn find(&self, file: &str) -> Option<PathBuf> {
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

/// Returns the row of an MPI.
fn mpi(mpi: Mpi, search: &Search) -> Row {
    let found = search.newest(mpi);
    let facts = json!({
        "path": found.map(|found| found.launcher.to_string_lossy()),
        "version": found.map(|found| &found.version), "compiles": found.map(|found| found.problem().is_none()),
        "looked_in": search.looked_in, "looked_for": Search::launchers(), "problems": search.problems,
    });
    match found {
        Some(found) => {
            let mut finding = format!("{}, version {}", found.launcher.display(), found.version);
            finding.extend(found.problem().map(|why| format!("; it cannot compile programs: {why}")));
            row(mpi.title(), finding, None, facts)
        }
        None => {
            let mut finding = format!("no mpiexec or mpirun of it in {}", search.looked_in.join(", "));
            finding.extend(search.problems.iter().map(|problem| format!("; {problem}")));
            row(mpi.title(), finding, Some(mpi.how_to_install()), facts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
