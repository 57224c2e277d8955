//! Looks for UCX, and loads it.

use super::sys::{Functions, VERSION};
use crate::wire::{Absent, Kind, functions::is_loaded, hooks, signals};
use libloading::os::unix::{Library as Loaded, RTLD_LAZY, RTLD_LOCAL};
use std::{
    env,
    ffi::c_uint,
    path::{Path, PathBuf},
};

/// The environment variable that names the library.
const VARIABLE: &str = "CONSONANCE_UCX";

/// The name by which the system's loader is asked.
const NAME: &str = "libucp.so.0";

/// The library that another version of UCX would share with one that is loaded.
const SHARED: &str = "libucs.so.0";

/// UCX, loaded. It is never unloaded: it has a thread of its own.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) functions: Functions,
    pub(super) name: String,
    pub(super) version: [u32; 3],
}

impl Library {
    /// Loads UCX from the first place that has it.
    ///
    /// # Errors
    /// What was found in all places.
    pub(super) fn load() -> Result<Library, Absent> {
        let mut looked = Vec::new();
        let before = is_loaded(SHARED);
        for place in places(&of_environment) {
            let name = place.path.display().to_string();
            match Library::from(&place.path, &name) {
                Ok(library) => return Ok(library),
                Err(found) => looked.push((place.words(&name), found)),
            }
            if !before && is_loaded(SHARED) {
                looked.push((
                    "other places".to_owned(),
                    format!("not tried, since that version stays in the process; {VARIABLE} names a newer one"),
                ));
                break;
            }
        }
        Err(Absent { kinds: vec![Kind::Ucx], looked })
    }

    fn from(path: &Path, name: &str) -> Result<Library, String> {
        // The loader's words about a file that is not there are about its first search, not the
        // file.
        if path.components().count() > 1 && !path.exists() {
            return Err("there is no such file".to_owned());
        }
        let _kept = signals::keep();
        // SAFETY: the code that runs when a library is loaded is UCX's, or that of the library that
        // the user names in its place. The signal handlers that it sets are set back.
        let load = || unsafe { Loaded::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
        // UCX reads its variables when it is loaded for the first time.
        let loaded = if is_loaded(SHARED) { load() } else { hooks::without(load) };
        let loaded = loaded.map_err(|error| error.to_string())?;
        let loaded = libloading::Library::from(loaded);
        // SAFETY: a library of UCX's name has its functions under their names. It is forgotten
        // below, or not used again.
        let functions = match unsafe { Functions::of(&loaded) } {
            Ok(functions) => functions,
            Err(function) => {
                return Err(format!("it has no function {function}: it is not UCX, or older than 1.13"));
            }
        };
        let [mut major, mut minor, mut release]: [c_uint; 3] = [0; 3];
        // SAFETY: writes three numbers.
        unsafe { (functions.version)(&mut major, &mut minor, &mut release) };
        if major != VERSION[0] || minor < VERSION[1] {
            return Err(format!("it is UCX {major}.{minor}.{release}; needed is 1.13 or a newer 1.x"));
        }
        std::mem::forget(loaded);
        Ok(Library { functions, name: name.to_owned(), version: [major, minor, release] })
    }
}

/// Returns the places where UCX is looked for, in words, in the order in which they are tried.
pub fn places_of_ucx() -> Vec<String> {
    let words = |place: Candidate| place.words(&place.path.display().to_string());
    places(&of_environment).into_iter().map(words).collect()
}

fn of_environment(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A place where the library may be.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    /// The variable that the path comes from.
    variable: Option<&'static str>,
}

impl Candidate {
    fn words(&self, name: &str) -> String {
        match self.variable {
            Some(variable) => format!("{name} (from {variable})"),
            None => format!("{name} (by the system's loader)"),
        }
    }
}

/// Returns the places in the order in which they are tried.
fn places(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Vec<Candidate> {
    if let Some(path) = variable(VARIABLE) {
        // A name without a folder would be looked for in the loader's.
        let path = if path.components().count() > 1 { path } else { Path::new(".").join(path) };
        return vec![Candidate { path, variable: Some(VARIABLE) }];
    }
    let of = |name: &'static str, folder: &str| {
        Some(Candidate { path: variable(name)?.join(folder).join(NAME), variable: Some(name) })
    };
    // "pip install mpich" brings UCX in `lib/mpich`.
    let folders = [("VIRTUAL_ENV", "lib/mpich"), ("CONDA_PREFIX", "lib/mpich"), ("CONDA_PREFIX", "lib")];
    let loader = Candidate { path: PathBuf::from(NAME), variable: None };
    std::iter::once(loader).chain(folders.into_iter().filter_map(|(name, folder)| of(name, folder))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_in_the_variable_is_the_only_place_and_others_come_after_the_loader() {
        let paths = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| PathBuf::from(value));
            let paths = places(&value).into_iter().map(|place| place.path.display().to_string());
            paths.collect::<Vec<_>>()
        };
        assert_eq!(paths(&[]), ["libucp.so.0"]);
        let all = [("VIRTUAL_ENV", "/v"), ("CONDA_PREFIX", "/c")];
        let expected = ["libucp.so.0", "/v/lib/mpich/libucp.so.0", "/c/lib/mpich/libucp.so.0", "/c/lib/libucp.so.0"];
        assert_eq!(paths(&all), expected);
        assert_eq!(paths(&[all[0], (VARIABLE, "/x/ucp")]), ["/x/ucp"]);
        assert_eq!(paths(&[(VARIABLE, "ucp")]), ["./ucp"]);
    }

    #[test]
    fn a_file_other_than_ucx_is_named_with_its_fault() {
        let fault = |path: &str| Library::from(Path::new(path), path).unwrap_err();
        assert_eq!(fault("/nonexistent/libucp.so.0"), "there is no such file");
        assert!(fault("/proc/self/status").contains("status"), "{}", fault("/proc/self/status"));
        let libm = fault("libm.so.6");
        assert_eq!(libm, "it has no function ucp_get_version: it is not UCX, or older than 1.13");
    }
}
