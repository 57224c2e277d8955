//! `consonance doctor`.

use super::terminal;
use crate::doctor::{Report, serve};
#[cfg(target_os = "linux")]
use consonance_kernels::wire::Kind;

/// Say whether this machine can run Consonance, and what to do where it cannot.
///
/// Looks at the processor, memory, limits and settings. Makes calls with threads and with
/// processes, and checks every bit. Loads UCX and MPIs, of which groups of several hosts need one,
/// and looks for CUDA, for NCCL, whose engine this version does not have, and for the launchers of
/// MPIs with which the bench compares: these rows are information only. It takes less than a
/// second, or some seconds where there is a GPU whose driver must start.
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

/// The hidden subcommand that loads the libraries of a kind of wire.
#[cfg(target_os = "linux")]
#[derive(clap::Args)]
pub(crate) struct OneWire {
    /// ucx or mpi
    kind: String,
}

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
impl OneWire {
    /// Writes the finding as a JSON object, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == self.kind) else { return 2 };
        println!("{}", crate::doctor::loaded(kind));
        0
    }
}

impl Trial {
    /// Runs as a process of the trial, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        serve(self.process)
    }
}
