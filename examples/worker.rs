//! Commands that start this program again: as a worker of a cluster on this machine, and as all
//! workers of a cluster of hosts that this machine plays.

use consonance::{Error, Result};
use std::{
    env,
    process::{self, Child, Command, Stdio},
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

/// Starts this program by the command `consonance`, with its own arguments, as the workers of a
/// cluster of several hosts. `options` are more of the command's.
pub(crate) fn start_on_hosts(hosts: u64, workers: u64, options: &[&str], stdout: Stdio) -> Result<Child> {
    let own = env::current_exe().map_err(Error::other)?;
    // The command lies there once `cargo build --release -p consonance-cli` has made it.
    let built = own.ancestors().nth(2).map(|folder| folder.join("consonance"));
    let program = built.filter(|path| path.exists()).unwrap_or_else(|| "consonance".into());
    let mut command = Command::new(&program);
    command.args(["run", "--hosts", &hosts.to_string(), "-n", &workers.to_string()]).args(options).arg("--");
    command.arg(own).args(env::args_os().skip(1)).stdout(stdout).spawn().map_err(|error| {
        let remedy = "\"cargo build --release -p consonance-cli\" makes it";
        Error::other(format!("start {}: {error}; {remedy}", program.display()))
    })
}
