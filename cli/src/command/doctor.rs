//! `consonance doctor`.

use super::terminal;
use crate::doctor::{Report, serve};

/// Say whether this machine can run Consonance, and what to do where it cannot.
///
/// Looks at the processor, memory, limits and settings. Makes calls with threads and with
/// processes, and checks every bit. Loads UCX, which groups of several hosts need, and looks for
/// CUDA, NCCL and MPI, whose engines this version does not have: these rows are information only.
/// It takes less than a second, or some seconds where there is a GPU whose driver must start.
///
/// The status is 0 if everything works that Consonance needs, and 1 otherwise. Each row that FAILS
/// says what to do.
#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Write the report as a JSON object
    #[arg(long)]
    json: bool,
}

/// The hidden subcommand that a process of the trial runs.
#[derive(clap::Args)]
pub(crate) struct Trial {
    /// Run as the rank that TF_CONFIG names
    #[arg(long)]
    process: bool,
}

/// The hidden subcommand that loads UCX.
#[cfg(target_os = "linux")]
#[derive(clap::Args)]
pub(crate) struct Ucx {}

impl Doctor {
    /// Writes the report to standard output, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        let report = Report::of_this_machine();
        if self.json {
            println!("{:#}", report.json());
        } else {
            print!("{}", terminal::fit(&report.to_string()));
        }
        i32::from(!report.is_usable())
    }
}

#[cfg(target_os = "linux")]
impl Ucx {
    /// Writes what there is as a JSON object, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        println!("{}", crate::doctor::loaded());
        0
    }
}

impl Trial {
    /// Runs as a process of the trial, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        serve(self.process)
    }
}
