//! Hosts that this machine plays: processes in namespaces, as if on other machines.
//!
//! A host has its own network with one device, `eth0`, its own process ids, host name, and System V
//! objects. It shares the file system with this machine, but for `/proc` and `/sys`. The devices
//! are plugged into a bridge in one more network namespace, so that this machine's own network is
//! not touched.
//!
//! No namespace has a name. Each lives as long as its first process, a shell's script that becomes
//! `cat` and reads a pipe from the launcher. When the launcher ends, in whatever way, the pipe
//! closes, `cat` ends, and the system ends all other processes of the host and removes its network.
//!
//! With a [`Cable`], a host is plugged in by a TAP device in place of a link of the system, and so
//! is the bridge: `cables.rs` carries the frames between the two.
//!
//! A process joins a host in two steps. The launcher's thread asks for the process ids of the host
//! for its next child, which stays its own child: the launcher waits for it and signals it by the
//! process id outside. The child itself then joins the other namespaces ([`join`]).

use super::{
    StartError,
    cables::{self, Cable, Cables},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, chroot, fchdir, geteuid, pidfd_open},
    thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces},
};
use std::{
    env, fs,
    fs::File,
    io::{self, BufRead, BufReader},
    net::Ipv4Addr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

/// The most hosts: a bridge's ports and the addresses of the network allow a few more.
pub const MAX_HOSTS: usize = 250;

/// The path of the pipe to the launcher in each host.
pub(super) const PIPE: &str = "/proc/1/fd/1";

/// The files that the launcher has open for each host, and for its cable.
const FILES_OF_HOST: usize = 4;
const FILES_OF_CABLE: usize = 2;

/// The network of the hosts.
const NETWORK: [u8; 3] = [10, 77, 0];

/// The name of the bridge among the devices of its network.
pub(crate) const BRIDGE: &str = "bridge";

/// The time in which namespaces must be ready. It takes milliseconds a host.
const START: Duration = Duration::from_secs(30);

/// The time that the system has at the end to remove a host, before the launcher leaves it to it.
const END: Duration = Duration::from_millis(500);

/// The commands that make namespaces, and the packages that have them.
const TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux"), ("mount", "mount or util-linux")];

/// Hosts, and the bridge that connects them. Dropping it ends all of their processes.
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    bridge: Option<Holder>,
    /// The cables that this process plays.
    _cables: Option<Cables>,
}

/// A host.
pub(crate) struct Host {
    holder: Holder,
    /// The namespace of its process ids.
    processes: File,
}

/// A process that holds namespaces.
struct Holder {
    /// Its process id outside. It is the child, or a child of that.
    pid: i32,
    child: Child,
    /// The pipe that keeps it alive.
    stdin: Option<ChildStdin>,
}

/// Returns the number of files that the launcher has open for hosts.
pub(super) fn files(hosts: usize, has_cables: bool) -> usize {
    hosts.saturating_mul(FILES_OF_HOST + if has_cables { FILES_OF_CABLE } else { 0 })
}

/// Returns the address of a host.
pub(crate) fn address(host: usize) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, u8::try_from(host + 1).expect("at most MAX_HOSTS"))
}

impl Hosts {
    /// Makes hosts, whose processes write to `pipe` as [`PIPE`], with these cables, or perfect
    /// ones.
    ///
    /// # Errors
    /// What this process or this machine lacks.
    pub(crate) fn start(count: usize, pipe: &Path, cable: Option<Cable>) -> Result<Hosts, StartError> {
        check()?;
        if cable.is_some() {
            cables::check()?;
        }
        let cannot = |error: io::Error| StartError::Hosts { why: error.to_string() };
        let hosts: io::Result<Vec<Starting>> = (0..count).map(|host| Starting::host(host, pipe)).collect();
        let hosts: io::Result<Vec<Host>> = hosts.and_then(|hosts| hosts.into_iter().map(Starting::into_host).collect());
        let hosts = hosts.map_err(cannot)?;
        let mut cables = None;
        let mut plug = |bridge: i32| {
            let hosts = hosts.iter().map(|host| host.holder.pid);
            cables = cable.map(|cable| Cables::plug(cable, bridge, hosts)).transpose()?;
            Ok(())
        };
        let bridge = Starting::bridge(&hosts, cable.is_some()).and_then(|bridge| bridge.finish(&mut plug));
        let bridge = bridge.map_err(cannot)?;
        Ok(Hosts { hosts, bridge: Some(bridge), _cables: cables })
    }

    /// Returns no hosts: all workers run on this machine as it is.
    pub(crate) fn none() -> Hosts {
        Hosts { hosts: Vec::new(), bridge: None, _cables: None }
    }

    /// Returns the process ids of the processes in whose namespaces the hosts are.
    pub(crate) fn holders(&self) -> Vec<i32> {
        self.hosts.iter().map(|host| host.holder.pid).collect()
    }

    /// Returns the process id of the process in whose network the bridge is.
    pub(crate) fn bridge(&self) -> Option<i32> {
        self.bridge.as_ref().map(|holder| holder.pid)
    }

    /// Returns a host.
    pub(crate) fn get(&self, host: usize) -> Option<&Host> {
        self.hosts.get(host)
    }
}

/// Checks that this process can make namespaces, as far as it can be known before.
fn check() -> Result<(), StartError> {
    let missing = |why: String| Err(StartError::Hosts { why });
    if !geteuid().is_root() {
        return missing("expected root; `sudo` before the command gives it".to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &str| env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    match TOOLS.iter().find(|(tool, _)| !is_there(tool)) {
        Some((tool, package)) => {
            missing(format!("expected the command `{tool}` in PATH; the package {package} has it"))
        }
        None => Ok(()),
    }
}

/// A holder that may not be ready yet.
struct Starting {
    holder: Holder,
    said: UnixStream,
}

impl Starting {
    fn host(host: usize, pipe: &Path) -> io::Result<Starting> {
        let mut command = Command::new("unshare");
        // The child of `unshare` has the process id 1 inside.
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--"]);
        command.args(["sh", "-c", include_str!("hold_host"), "sh", &format!("host{host}")]).arg(pipe);
        Starting::of(command)
    }

    fn bridge(hosts: &[Host], has_cables: bool) -> io::Result<Starting> {
        let network = NETWORK.map(|part| part.to_string()).join(".");
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", include_str!("hold_switch"), "sh", &network]);
        command.arg(if has_cables { "tap" } else { "veth" });
        command.args(hosts.iter().map(|host| host.holder.pid.to_string()));
        Starting::of(command)
    }

    fn of(mut command: Command) -> io::Result<Starting> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(START))?;
        command.stdin(Stdio::piped()).stdout(OwnedFd::from(theirs.try_clone()?)).stderr(OwnedFd::from(theirs));
        // A signal from a terminal is for the launcher.
        let mut child = command.process_group(0).spawn()?;
        let stdin = child.stdin.take();
        Ok(Starting { holder: Holder { pid: 0, child, stdin }, said: ours })
    }

    /// Waits until the namespaces are ready. Calls `plug` with the process id of the bridge's
    /// holder when the devices of cables are there.
    fn finish(self, plug: &mut dyn FnMut(i32) -> io::Result<()>) -> io::Result<Holder> {
        let Starting { mut holder, said } = self;
        let mut text = String::new();
        for line in BufReader::new(said).lines() {
            let line = line?;
            if let Some(pid) = line.strip_prefix("plug ").and_then(|pid| pid.parse().ok()) {
                plug(pid)?;
                continue;
            }
            if let Some(pid) = line.strip_prefix("ready ").and_then(|pid| pid.parse().ok()) {
                holder.pid = pid;
                return Ok(holder);
            }
            text += &format!("; {line}");
        }
        // The reason of the first command that failed, or of `unshare`.
        Err(io::Error::other(format!("it takes root with CAP_SYS_ADMIN, as `docker run --privileged` gives{text}")))
    }

    fn into_host(self) -> io::Result<Host> {
        let holder = self.finish(&mut |_| Ok(()))?;
        let processes = File::open(format!("/proc/{}/ns/pid", holder.pid))?;
        Ok(Host { holder, processes })
    }
}

impl Host {
    /// Starts a process as one of this host's process ids, and a child of this one.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let here = File::open("/proc/thread-self/ns/pid")?;
        let kind = Some(LinkNameSpaceType::ProcessID);
        move_into_link_name_space(self.processes.as_fd(), kind)?;
        let child = command.spawn();
        // A thread that stays there can start no other thread.
        let back = move_into_link_name_space(here.as_fd(), kind);
        let mut child = child?;
        back.inspect_err(|_| drop(child.kill()))?;
        Ok(child)
    }

    /// Returns the argument for [`join`].
    pub(crate) fn name(&self) -> String {
        format!("{HOST}{}", self.holder.pid)
    }

    /// Returns the process id in the host of a process.
    pub(crate) fn inner(pid: i32) -> Option<i32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        ids.split_whitespace().next_back()?.parse().ok()
    }
}

/// The beginning of a host's name for [`join`].
const HOST: &str = "host:";

/// Joins the other namespaces of a host, in a process that [`Host::spawn`] has started. Returns
/// whether `name` is a host's. The working directory stays.
pub(super) fn join(name: &str) -> io::Result<bool> {
    let Some(pid) = name.strip_prefix(HOST) else { return Ok(false) };
    let folder: io::Result<PathBuf> = env::current_dir();
    // The files of processes are still those outside; the ids of processes are not.
    let root = File::open(format!("/proc/{pid}/root"))?;
    let holder = pidfd_open(Pid::INIT, PidfdFlags::empty())?;
    let kinds = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::NETWORK;
    move_into_thread_name_spaces(holder.as_fd(), kinds)?;
    fchdir(&root)?;
    chroot(".")?;
    folder.and_then(env::set_current_dir)?;
    Ok(true)
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let left = Timespec::try_from(END).expect("a short time");
        if let Ok(process) = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left));
        }
        // The system reaps one that has not ended.
        let _ = self.child.try_wait();
    }
}
