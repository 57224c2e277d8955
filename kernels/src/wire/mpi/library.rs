//! Looks for the MPI of this process, and loads it.

use super::{
    calls::Calls,
    launcher::{Launcher, Variables, variable},
    sys::{Constants, Family, Functions, IS_KNOWN},
};
use crate::wire::{Absent, Kind, functions::is_loaded, hooks, signals};
use libloading::os::unix::{Library as Loaded, RTLD_LAZY, RTLD_LOCAL};
use std::{
    ffi::{CStr, OsStr, c_void},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The finding on a processor whose calls are not [known](IS_KNOWN).
const UNKNOWN: &str = "this processor's calls of it are not known";

/// The environment variable that names the library.
const VARIABLE: &str = "CONSONANCE_MPI";

/// The names by which the system's loader is asked.
const OPEN_MPI: &str = "libmpi.so.40";
const MPICH: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];
const STANDARD: &str = "libmpi_abi.so.1";

/// The names of Cray's MPICH for each compiler, which only a program chooses.
const CRAY: [&str; 9] = [
    "libmpi_cray.so.12",
    "libmpi_gnu.so.12",
    "libmpi_gnu_91.so.12",
    "libmpi_gnu_112.so.12",
    "libmpi_gnu_123.so.12",
    "libmpi_intel.so.12",
    "libmpi_nvidia.so.12",
    "libmpi_amd.so.12",
    "libmpi_aocc.so.12",
];

/// An MPI, loaded. It is never unloaded: MPI cannot begin again.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) calls: Calls,
    pub(super) name: String,
    /// The name and the version of the MPI, in its own words.
    pub(super) version: String,
}

impl Library {
    /// Loads the MPI of this process from the first place that has it.
    ///
    /// # Errors
    /// The finds in all places.
    pub(super) fn load(launcher: Option<&Launcher>) -> Result<Library, Absent> {
        let absent = |looked| Absent { kinds: vec![Kind::Mpi], looked };
        if !IS_KNOWN {
            return Err(absent(vec![("MPI".to_owned(), UNKNOWN.to_owned())]));
        }
        let mut looked = Vec::new();
        if variable(VARIABLE).is_none()
            && let Some(name) = file_of_program()
        {
            // The handles of some MPIs are variables, which a program may have copies of.
            let found = Library::of(Loaded::this(), &name, launcher);
            return found.map_err(|found| absent(vec![(format!("{name} (of the program)"), found)]));
        }
        for place in places(&variable, launcher, &is_loaded) {
            let name = place.path.display().to_string();
            // Before a library is loaded whose program cannot begin.
            if launcher.is_none() && !place.is_loaded {
                continue;
            }
            match Library::from(&place.path, &name, launcher) {
                Ok(library) => return Ok(library),
                Err(found) => looked.push((place.words(&name), found)),
            }
        }
        if launcher.is_none() && looked.is_empty() {
            let found = "this process was started by no launcher of an MPI (no OMPI_COMM_WORLD_RANK, PMI_RANK or \
                         PMIX_RANK)";
            looked.push(("MPI".to_owned(), found.to_owned()));
        }
        Err(absent(looked))
    }

    fn from(path: &Path, name: &str, launcher: Option<&Launcher>) -> Result<Library, String> {
        // The loader's words about a file that is not there are about its first search, not the
        // file.
        if path.components().count() > 1 && !path.exists() {
            return Err("there is no such file".to_owned());
        }
        let _kept = signals::keep();
        // SAFETY: the code that runs when a library is loaded is MPI's, or that of the library that
        // the user names in its place. The signal handlers that it sets are set back.
        let load = || unsafe { Loaded::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
        // An MPI may bring UCX.
        let loaded = hooks::without(load).map_err(|error| error.to_string())?;
        Library::of(loaded, name, launcher)
    }

    fn of(loaded: Loaded, name: &str, launcher: Option<&Launcher>) -> Result<Library, String> {
        let loaded = libloading::Library::from(loaded);
        // SAFETY: a library of MPI's name has its functions under their names. It is forgotten
        // below, or not used again.
        let functions = match unsafe { Functions::of(&loaded) } {
            Ok(functions) => functions,
            Err(function) => return Err(format!("it has no function {function}: it is not MPI, or older than 3.1")),
        };
        // SAFETY: only the address is used.
        let address =
            |name: &str| unsafe { loaded.get::<*const c_void>(name.as_bytes()) }.ok().map(|found| found.addr());
        let (family, constants) = Constants::of(address, file);
        if let Some(Launcher { variable, families, .. }) = launcher
            && !families.contains(&family)
        {
            return Err(format!("it is of the kind {family:?}, and the launcher of another one, by {variable}"));
        }
        // SAFETY: the function of this name takes a communicator in all MPIs that have it.
        let failure_ack = unsafe { loaded.get(b"MPIX_Comm_failure_ack\0") }.ok().map(|function| *function);
        let calls = Calls { functions, constants, failure_ack };
        let version = in_short(&calls.library_version());
        std::mem::forget(loaded);
        Ok(Library { calls, name: name.to_owned(), version })
    }

    /// Returns the numbers of the version.
    pub(super) fn numbers(&self) -> [u32; 3] {
        let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let words = self.version.split(|of: char| !of.is_ascii_digit() && of != '.');
        let mut numbers = words.filter(is_number).max_by_key(|word| word.contains('.')).unwrap_or_default().split('.');
        [(); 3].map(|()| numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0))
    }
}

/// Returns the name and the version from the words of a library: `MPICH Version:      5.0.2` and
/// other lines, or `Open MPI v4.1.4, package: …`.
fn in_short(words: &str) -> String {
    let first = words.lines().next().unwrap_or_default().split(',').next().unwrap_or_default();
    first.replace("Version:", "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the number and the name of the file that has an address.
fn file_at(address: usize) -> Option<(usize, String)> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: takes any address, and writes what it finds.
    if unsafe { libc::dladdr(address as *const c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: a call that succeeds has written it, with the name of a file that is never unloaded.
    let (base, name) = unsafe {
        let found = found.assume_init();
        (found.dli_fbase.addr(), CStr::from_ptr(found.dli_fname))
    };
    Some((base, Path::new(OsStr::from_bytes(name.to_bytes())).display().to_string()))
}

fn file(address: usize) -> Option<usize> {
    file_at(address).map(|(base, _)| base)
}

/// Returns the file of the MPI of the program, which is linked with it, or has loaded it for all.
fn file_of_program() -> Option<String> {
    // SAFETY: only the address is used.
    let function = unsafe { Loaded::this().get::<*const c_void>(b"MPI_Initialized\0") };
    function.ok().and_then(|function| file_at(function.addr())).map(|(_, name)| name)
}

/// Loads each MPI that the launcher of a program can choose here, and starts none. Returns each
/// place where one was looked for, with its name and version, or the reason why it is none. What is
/// loaded stays: for a process that does nothing else.
pub fn mpis_here() -> Vec<(String, Result<String, String>)> {
    let found = |place: Candidate| {
        let name = place.path.display().to_string();
        let library = if IS_KNOWN {
            Library::from(&place.path, &name, None).map(|library| library.version)
        } else {
            Err(UNKNOWN.to_owned())
        };
        (place.words(&name), library)
    };
    places(&variable, None, &is_loaded).into_iter().map(found).collect()
}

/// A place where the library may be.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    /// The variable that the path comes from.
    variable: Option<&'static str>,
    /// Whether the program has loaded it.
    is_loaded: bool,
}

impl Candidate {
    fn words(&self, name: &str) -> String {
        match (self.variable, self.is_loaded) {
            (Some(variable), _) => format!("{name} (from {variable})"),
            (None, true) => format!("{name} (loaded by the program)"),
            (None, false) => format!("{name} (by the system's loader)"),
        }
    }
}

/// Returns the places in the order in which they are tried. A process has one MPI: if the program
/// has loaded one, it is the only place.
fn places(variable: Variables, launcher: Option<&Launcher>, is_loaded: &dyn Fn(&str) -> bool) -> Vec<Candidate> {
    let families =
        launcher.map_or(&[Family::OpenMpi, Family::Mpich, Family::Standard][..], |launcher| launcher.families);
    let names: Vec<&str> = families
        .iter()
        .flat_map(|family| match family {
            Family::OpenMpi => &[OPEN_MPI][..],
            Family::Mpich => &MPICH,
            Family::Standard => &[STANDARD],
        })
        .copied()
        .collect();
    if let Some(path) = variable(VARIABLE).map(PathBuf::from) {
        // A name without a folder would be looked for in the loader's.
        let path = if path.components().count() > 1 { path } else { Path::new(".").join(path) };
        let is_loaded = path.to_str().is_some_and(is_loaded);
        return vec![Candidate { path, variable: Some(VARIABLE), is_loaded }];
    }
    let of_cray = CRAY.iter().filter(|_| families.contains(&Family::Mpich));
    if let Some(name) = names.iter().chain(of_cray).find(|name| is_loaded(name)) {
        return vec![Candidate { path: PathBuf::from(name), variable: None, is_loaded: true }];
    }
    let by_loader = names.iter().map(|name| Candidate { path: PathBuf::from(name), variable: None, is_loaded: false });
    let in_environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().flat_map(|from| {
        let folder = variable(from).map(|root| Path::new(&root).join("lib"));
        let place = move |folder: &PathBuf, name: &&str| Candidate {
            path: folder.join(name),
            variable: Some(from),
            is_loaded: false,
        };
        folder.iter().flat_map(|folder| names.iter().map(move |name| place(folder, name))).collect::<Vec<_>>()
    });
    by_loader.chain(in_environments).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among<'s>(set: &'s [(&'s str, &'s str)]) -> impl Fn(&str) -> Option<String> + 's {
        |name| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn a_launcher_decides_the_names_and_a_variable_the_only_place() {
        let paths = |set: &[(&str, &str)], loaded: &str| {
            let places = places(&among(set), Launcher::of(&among(set)).as_ref(), &|name| name == loaded);
            places.into_iter().map(|place| place.path.display().to_string()).collect::<Vec<_>>()
        };
        let [open, hydra] = [("OMPI_COMM_WORLD_RANK", "0"), ("PMI_RANK", "0")];
        assert_eq!(paths(&[open], ""), ["libmpi.so.40", "libmpi_abi.so.1"]);
        let mpich = ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"];
        assert_eq!(paths(&[hydra], ""), mpich);
        let all = paths(&[hydra, ("VIRTUAL_ENV", "/v")], "");
        assert_eq!(all[3..], mpich.map(|name| format!("/v/lib/{name}")));
        assert_eq!(paths(&[hydra, (VARIABLE, "/x/mpi")], ""), ["/x/mpi"]);
        assert_eq!(paths(&[hydra, (VARIABLE, "mpi")], ""), ["./mpi"]);
        assert_eq!(paths(&[], "libmpi.so.12"), ["libmpi.so.12"]);
        assert_eq!(paths(&[hydra], "libmpi_gnu_123.so.12"), ["libmpi_gnu_123.so.12"]);
        assert_eq!(paths(&[open], "libmpi_gnu_123.so.12"), ["libmpi.so.40", "libmpi_abi.so.1"]);
    }

    #[test]
    fn a_file_other_than_mpi_is_named_with_its_fault() {
        let fault = |path: &str| Library::from(Path::new(path), path, None).unwrap_err();
        assert_eq!(fault("/nonexistent/libmpi.so.12"), "there is no such file");
        assert_eq!(fault("libm.so.6"), "it has no function MPI_Initialized: it is not MPI, or older than 3.1");
    }

    #[test]
    fn the_words_of_a_library_are_shortened_to_its_name_and_version() {
        for (words, short) in [
            ("MPICH Version:      5.0.2\nMPICH Release date: Fri", "MPICH 5.0.2"),
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI v4.1.4"),
            ("Intel(R) MPI Library 2021.13 for Linux* OS\n", "Intel(R) MPI Library 2021.13 for Linux* OS"),
            ("", ""),
        ] {
            assert_eq!(in_short(words), short);
        }
    }
}
