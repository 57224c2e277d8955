//! The pythons of this machine, and the folders into which they install programs and libraries.

use crate::subprocess::{Program, all_in_path};
use std::{
    env, io,
    path::{self, Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Prints the folders into which pip puts the files of a wheel that are no code of Python: the
/// environment's, and the user's own.
const FOLDERS: &str = "import site, sysconfig; print(sysconfig.get_path('data')); print(site.getuserbase())";

/// Returns the pythons to ask, each once: those that the user names, the active virtual
/// environment's, then each `python3` in `PATH`. One python in `PATH` may hide another.
pub(crate) fn pythons(named: &[PathBuf]) -> Vec<PathBuf> {
    let active = env::var_os("VIRTUAL_ENV").map(|root| Path::new(&root).join("bin/python3"));
    let active = active.filter(|python| python.exists());
    let mut pythons: Vec<PathBuf> = Vec::new();
    for python in named.iter().cloned().chain(active).chain(all_in_path("python3")) {
        // A link leads from an environment's python to the system's, so only folders are compared.
        let place = |python: &Path| {
            let folder = python.parent().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
            (folder, python.file_name().map(ToOwned::to_owned))
        };
        if !pythons.iter().any(|other| place(other) == place(&python)) {
            pythons.push(python);
        }
    }
    pythons
}

/// Returns the folders of all environments, each once, and which pythons gave no answer. An
/// environment has folders `bin`, `include` and `lib`.
pub(super) fn environments(named: &[PathBuf], patience: Duration) -> (Vec<PathBuf>, Vec<String>) {
    let deadline = Instant::now() + patience;
    // Starts all at once, so that several that hang take the time of one.
    let running: Vec<_> = pythons(named).into_iter().map(|python| (ask(&python), python)).collect();
    let (mut environments, mut problems) = (Vec::new(), Vec::new());
    for (program, python) in running {
        match program.and_then(|program| answer(program, deadline)) {
            Ok(roots) => {
                for root in roots.into_iter().filter(|root| root.is_dir()) {
                    if !environments.contains(&root) {
                        environments.push(root);
                    }
                }
            }
            Err(why) => problems.push(format!("{}: {why}", python.display())),
        }
    }
    (environments, problems)
}

/// Returns the command of a python that takes no folder of the user's for a module.
pub(crate) fn command(python: &Path) -> Command {
    // A name alone is looked for in PATH.
    let is_name = python.file_name() == Some(python.as_os_str());
    let absolute = path::absolute(python).ok().filter(|_| !is_name);
    let mut command = Command::new(absolute.as_deref().unwrap_or(python));
    command.current_dir("/");
    command
}

/// Returns whether a python has a module.
///
/// # Errors
/// If the python does not start.
pub(crate) fn has(python: &Path, module: &str) -> io::Result<bool> {
    let find = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
    let status = command(python).args(["-c", &find]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    status.map(|status| status.success())
}

/// Checks that a python that the user names is one.
///
/// # Errors
/// The reason why it is none.
pub(crate) fn check(python: &Path, patience: Duration) -> Result<(), String> {
    answer(ask(python)?, Instant::now() + patience).map(|_| ())
}

fn ask(python: &Path) -> Result<Program, String> {
    let mut command = Command::new(python);
    command.args(["-c", FOLDERS]);
    Program::start(command).map_err(|error| error.to_string())
}

fn answer(program: Program, deadline: Instant) -> Result<Vec<PathBuf>, String> {
    let (success, text) = program.finish(deadline)?;
    let roots: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    if !success || roots.len() != 2 || !roots.iter().all(|root| root.is_absolute()) {
        return Err(text.lines().last().unwrap_or("it is no Python").to_owned());
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_program_other_than_python_is_refused() {
        for program in ["/no/such/python", "true", "echo", "false"] {
            check(Path::new(program), PATIENCE).expect_err(program);
        }
    }

    #[test]
    fn a_path_of_a_python_is_from_this_folder_and_a_name_in_the_path_variable() {
        let program = |python: &str| PathBuf::from(command(Path::new(python)).get_program());
        assert_eq!(program("venv/bin/python3"), env::current_dir().unwrap().join("venv/bin/python3"));
        assert_eq!(program("./python3"), env::current_dir().unwrap().join("python3"));
        assert_eq!(program("python3"), Path::new("python3"));
        assert_eq!(program("/usr/bin/python3"), Path::new("/usr/bin/python3"));
    }

    #[test]
    fn named_pythons_come_first_and_once() {
        let named = ["/e/bin/python3", "/f/bin/python3", "/e/bin/python3"].map(PathBuf::from);
        let found = pythons(&named);
        assert_eq!(found[..2], named[..2]);
        assert_eq!(found.iter().filter(|python| named.contains(python)).count(), 2, "{found:?}");
    }
}
