//! A command that starts this program again, as a worker of a cluster on this machine.

use consonance::{Error, Result};
use std::{
    env,
    process::{self, Command},
};

/// Returns the command for worker `index` of `workers`.
pub(crate) fn command(index: u64, workers: u64) -> Result<Command> {
    // Nothing listens at these addresses. Together with the job id they only identify the group to
    // the workers.
    let addresses: Vec<String> = (0..workers).map(|worker| format!("\"localhost:{}\"", 2222 + worker)).collect();
    let cluster = format!(r#"{{"worker": [{}]}}"#, addresses.join(", "));
    let mut command = Command::new(env::current_exe().map_err(Error::other)?);
    command.env("TF_CONFIG", format!(r#"{{"cluster": {cluster}, "task": {{"type": "worker", "index": {index}}}}}"#));
    command.env("CONSONANCE_JOB", format!("example-{}", process::id()));
    Ok(command)
}
