//! Hosts that this machine plays, for the ranks of the bench and of its rivals.
//!
//! Each has its own network, process ids and name, as under `consonance run --hosts`. All have the
//! file system of this machine, so that ranks find the bench's socket and gate there. The launchers
//! of MPIs run in the network of the bridge, and reach each host by a script in the place of `ssh`.

use super::{
    case::Case,
    crossing::{Crossing, least},
    group::Failure,
};
use crate::launcher::{
    cluster::Cluster,
    hosts::{Hosts, address},
};
use std::{
    fs, io,
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// The hosts of a bench. Dropping it ends all of their processes.
pub(super) struct Played {
    /// The number of hosts.
    pub(super) count: usize,
    /// The number of ranks of each host.
    pub(super) ranks_of_host: usize,
    /// The script that takes the place of `ssh`.
    pub(super) agent: PathBuf,
    holders: Vec<i32>,
    bridge: i32,
    _hosts: Hosts,
}

impl Played {
    /// Makes hosts with this number of ranks each. The script is in `directory`.
    ///
    /// # Errors
    /// What this process or this machine lacks.
    pub(super) fn start(hosts: NonZeroUsize, ranks_of_host: usize, directory: &Path) -> Result<Played, String> {
        // No process of a bench writes to a launcher.
        let started = Hosts::start(hosts.get(), Path::new("/dev/null"), None).map_err(|error| error.to_string())?;
        let (holders, bridge) = (started.holders(), started.bridge().ok_or("no bridge between the hosts")?);
        let agent = directory.join("enter_host");
        let written = fs::write(&agent, script(&holders));
        let written = written.and_then(|()| fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)));
        written.map_err(|error| format!("{}: {error}", agent.display()))?;
        Ok(Played { count: hosts.get(), ranks_of_host, agent, holders, bridge, _hosts: started })
    }

    /// Returns the addresses of the hosts, in order.
    pub(super) fn addresses(&self) -> Vec<String> {
        (0..self.count).map(|host| address(host).to_string()).collect()
    }

    /// Returns the cluster of a group with a rank a process.
    ///
    /// # Errors
    /// If a host has too few ports.
    pub(super) fn cluster(&self) -> io::Result<Cluster> {
        let hosts: Vec<usize> = (0..self.count * self.ranks_of_host).map(|rank| rank / self.ranks_of_host).collect();
        Cluster::of_hosts(&hosts, self.ranks_of_host)
    }

    /// Returns the command that runs another one as a process of the host of this rank.
    pub(super) fn on_host_of(&self, rank: usize, command: &Command) -> Command {
        within(&entering(self.holders[rank / self.ranks_of_host]), command)
    }

    /// Returns the command that runs another one in the network of the bridge.
    pub(super) fn on_bridge(&self, command: &Command) -> Command {
        within(&[format!("--net=/proc/{}/ns/net", self.bridge)], command)
    }

    /// Returns the bytes that have crossed the link of each host, all headers included.
    ///
    /// # Errors
    /// The system's, or if a host has no link.
    pub(super) fn crossed(&self) -> io::Result<Vec<Crossing>> {
        let of = |pid: &i32| {
            let text = fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
            of_device(&text).ok_or_else(|| io::Error::other("a host that is played has no counters of eth0"))
        };
        self.holders.iter().map(of).collect()
    }

    /// Checks that the data of `calls` calls have crossed the links since `before`.
    ///
    /// # Errors
    /// If less has crossed than any algorithm needs: the data took another way.
    pub(super) fn check(&self, case: &Case, calls: usize, before: &[Crossing]) -> Result<(), Failure> {
        let now = self.crossed()?;
        for (host, needed) in least(case, self.count).into_iter().enumerate() {
            let crossed = now[host].since(before[host]);
            let needed = Crossing { sent: needed.sent * calls, received: needed.received * calls };
            if crossed.sent < needed.sent || crossed.received < needed.received {
                return Err(Failure::Unsupported(format!(
                    "its data are not on the link of host {host}: {crossed} in {calls} calls, at least {needed}"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the arguments of `nsenter` for all namespaces of the host that a process holds.
fn entering(pid: i32) -> [String; 7] {
    let target = pid.to_string();
    ["--target", &target, "--mount", "--uts", "--ipc", "--net", "--pid"].map(str::to_owned)
}

fn within(namespaces: &[String], command: &Command) -> Command {
    let mut entered = Command::new("nsenter");
    // The working directory of the host's first process would be that of the command.
    if let Ok(folder) = std::env::current_dir() {
        entered.arg(format!("--wd={}", folder.display()));
    }
    entered.args(namespaces).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => entered.env(name, value),
            None => entered.env_remove(name),
        };
    }
    entered
}

/// Returns a script that takes the arguments of `ssh`: options, a host's address, a command.
fn script(holders: &[i32]) -> String {
    let case =
        |(host, &pid): (usize, &i32)| format!("{}) set -- {} \"$@\" ;;\n", address(host), entering(pid).join(" "));
    let cases: String = holders.iter().enumerate().map(case).collect();
    format!(
        "#!/bin/sh\n\
         while :; do case $1 in -*) shift ;; *) break ;; esac; done\n\
         host=$1\n\
         shift\n\
         command=$*\n\
         set --\n\
         case $host in\n\
         {cases}\
         *) echo \"$host is no host of this bench\" >&2; exit 1 ;;\n\
         esac\n\
         exec nsenter --wd=\"$PWD\" \"$@\" -- sh -c \"$command\"\n"
    )
}

/// Reads the counters of the device `eth0` from the system's list of devices.
fn of_device(text: &str) -> Option<Crossing> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"))?;
    let numbers: Vec<usize> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
    Some(Crossing { received: *numbers.first()?, sent: *numbers.get(8)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_link() {
        let text = "Inter-|   Receive                            |  Transmit\n face |bytes packets\n\
                    \x20   lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 1234 5 0 0 0 0 0 0 6789 1 0 0 0 0 0 0\n";
        assert_eq!(of_device(text), Some(Crossing { received: 1234, sent: 6789 }));
        assert_eq!(of_device("  lo: 1 2"), None);
    }

    #[test]
    fn the_script_takes_options_as_ssh_does() {
        let folder = std::env::temp_dir().join(format!("consonance-enter-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        // A `nsenter` of this test says with which arguments it was started.
        let (script_at, fake) = (folder.join("enter_host"), folder.join("nsenter"));
        fs::write(&script_at, script(&[11, 22])).expect("a file");
        fs::write(&fake, "#!/bin/sh\nshift\nprintf '%s|' \"$@\"\n").expect("a file");
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).expect("an executable");
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let run = |words: &[&str]| {
            let output = Command::new("sh").arg(&script_at).args(words).env("PATH", &path).output().expect("a shell");
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let expected = "--target|22|--mount|--uts|--ipc|--net|--pid|--|sh|-c|proxy --port 5|";
        assert_eq!(run(&["-x", "-q", "10.77.0.2", "proxy", "--port", "5"]), (true, expected.to_owned()));
        assert_eq!(run(&["10.77.0.3", "proxy"]), (false, String::new()));
        fs::remove_dir_all(&folder).expect("this test's folder");
    }
}
