//! `consonance timeline`.

use crate::timeline::{Joined, join};
use std::path::PathBuf;

/// Write the timeline of a program that another launcher has started, for https://ui.perfetto.dev
///
/// The program's processes need CONSONANCE_PROFILE, a folder of their host in which each thread
/// writes its calls. Hosts may share it. Begin with an empty folder: the records of all runs in it
/// come on one timeline. `consonance run --profile` needs no folder: it writes the timeline itself.
///
/// Times are those of the first host of a group. While the first process of another host and
/// process 0 of the group run, they compare their clocks every 10 s, and the times of that host are
/// corrected. Processes of no group of several hosts tell of no host, and count to one: give the
/// folders of one host.
#[derive(clap::Args)]
pub(crate) struct Timeline {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folders of all hosts, each copied to this one or shared with it
    #[arg(value_name = "FOLDER", required = true)]
    folders: Vec<PathBuf>,
}

impl Timeline {
    /// Writes the timeline, and on standard output what it has.
    ///
    /// # Errors
    /// The reason why there is no timeline, in one line.
    pub(super) fn run(&self) -> Result<(), String> {
        let Joined { count, processes, hosts, uncompared, unread } = join(&self.folders, &self.file)?;
        let es = if processes == 1 { "" } else { "es" };
        let on = if hosts == 1 { String::new() } else { format!(" on {hosts} hosts") };
        println!("{}: {} runs and calls of {processes} process{es}{on}", self.file.display(), count.slices);
        if count.dropped > 0 {
            eprintln!("consonance: {} later runs and calls had no room in the records", count.dropped);
        }
        if unread > 0 {
            eprintln!("consonance: unread files, of another version or of a process killed as it began: {unread}");
        }
        if !uncompared.is_empty() {
            let list: Vec<String> = uncompared.iter().map(usize::to_string).collect();
            eprintln!(
                "consonance: not compared with the clock of host 0, so times are its own: host {}",
                list.join(", ")
            );
        }
        Ok(())
    }
}
