//! The states of processes, in reports.

use consonance_kernels::os::process_state::{ProcessState, process_state};

/// Returns the name of the state of a process.
pub(super) fn name(process: u32) -> &'static str {
    match process_state(process) {
        ProcessState::Running => "running",
        ProcessState::Stopped => "stopped",
        ProcessState::Gone => "gone",
    }
}

/// Returns the words about a process that does not run.
pub(super) fn words(process: u32) -> &'static str {
    match process_state(process) {
        ProcessState::Running => "",
        ProcessState::Stopped => ", is stopped by a signal or a debugger",
        ProcessState::Gone => ", has ended",
    }
}
