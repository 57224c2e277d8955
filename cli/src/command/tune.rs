//! `consonance tune`.

use super::time;
use crate::{
    tune::{Class, Gain, LIMIT, compare_all, tune},
    writable::writable,
};
use consonance_kernels::tuning::{Knob, Tuning, VARIABLE, to_text};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

/// Try thresholds and pipelines on this machine, and write the best to a file.
///
/// Programs that run with CONSONANCE_TUNING=FILE use these values. Results do not depend on them,
/// only times do. Ranks make the calls that each knob matters to, with its value and with others in
/// turn. Run nothing else meanwhile. The table shows what each knob gained: the time of those calls
/// with the new value, as a part of the time with the old one.
///
/// With --all nothing is written. Calls of several collectives and sizes are made as the machine
/// chose to, and in each of all pipelines. The table shows the time of each, and that of the choice
/// as a part of the least.
#[derive(clap::Args)]
pub(crate) struct Tune {
    /// The file to write
    #[arg(required_unless_present = "all")]
    file: Option<PathBuf>,
    /// Compare the machine's choice with all pipelines, by brute force
    #[arg(long, conflicts_with_all = ["file", "knobs"])]
    all: bool,
    /// About how long to measure: 30s, 2m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    time: Duration,
    /// Measure these knobs only, separated by commas; the others stay as they are
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = knob)]
    knobs: Vec<&'static Knob>,
}

fn knob(name: &str) -> Result<&'static Knob, String> {
    let names = || Tuning::offered().map(|knob| knob.name).collect::<Vec<_>>().join(", ");
    Tuning::offered().find(|knob| knob.name == name).ok_or_else(|| format!("expected one of {}", names()))
}

impl Tune {
    /// Writes the table to standard output, and the file.
    ///
    /// # Errors
    /// The reason why nothing can be measured or written, in one line.
    pub(crate) fn run(&self) -> Result<(), String> {
        let Some(file) = &self.file else { return self.compare() };
        let all: Vec<&Knob> = Tuning::offered().collect();
        let knobs = if self.knobs.is_empty() { &all } else { &self.knobs };
        let cannot = |error: std::io::Error| format!("cannot write {}: {error}", file.display());
        // A file that cannot be written is better known before a minute than after it.
        writable(file).map_err(cannot)?;
        println!("# {:<22} {:>10} {:>10} {:>6}", "knob", "before", "now", "time");
        let mut row = |gain: &Gain| {
            println!("  {:<22} {:>10} {:>10} {:>6.2}", gain.knob.name, gain.before, gain.after, gain.time);
        };
        let progress = |index: usize, knob: &Knob| {
            eprintln!("consonance: {} of {}: {}", index + 1, knobs.len(), knob.name);
        };
        let best = tune(knobs, self.time, progress, &mut row)?;
        write_whole(file, &to_text(&best)).map_err(cannot)?;
        println!("\nUse it with {VARIABLE}={}", file.display());
        Ok(())
    }

    /// Writes the table of all pipelines.
    fn compare(&self) -> Result<(), String> {
        println!("{}", Class::header());
        let mut good = 0;
        compare_all(self.time, |class| {
            println!("{class}");
            good += usize::from(class.part() <= LIMIT);
        })?;
        println!("\nThe choice takes at most {LIMIT} of the least time in {good} of {} classes", Class::all().count());
        Ok(())
    }
}

/// Writes a file so that it has all of the text or is as it was: programs refuse half a file.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    // A pipe or a device keeps its place, and so does the file that a link names.
    let (path, permissions) = match fs::metadata(path) {
        Ok(of) if !of.is_file() => return fs::write(path, text),
        Ok(of) => (path.canonicalize()?, Some(of.permissions())),
        Err(_) => (path.to_owned(), None),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", process::id()));
    let temporary = path.with_file_name(name);
    let written = fs::write(&temporary, text)
        .and_then(|()| permissions.map_or(Ok(()), |permissions| fs::set_permissions(&temporary, permissions)))
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        env,
        os::unix::fs::{PermissionsExt, symlink},
    };

    #[test]
    fn a_rewritten_file_keeps_its_permissions_and_its_link() {
        let folder = env::temp_dir().join(format!("consonance-tune-permissions-{}", process::id()));
        fs::create_dir(&folder).expect("a folder");
        let [file, link] = ["file", "link"].map(|name| folder.join(name));
        fs::write(&file, "old").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a file");
        symlink(&file, &link).expect("a link");
        write_whole(&link, "new").expect("a file");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "new");
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 2);
        fs::remove_dir_all(folder).expect("a folder");
    }
}
