//! A worker: a process that leads its own process group, and dies with the launcher.
//!
//! Only a process itself can ask the system to end it with its parent, and only unsafe code could
//! run in it before the program does. Therefore a worker begins as another process of the
//! launcher's binary, which asks for this and then becomes the program ([`become_worker`]). Until
//! then its standard input is a socket to the launcher. The socket closes when the program begins.
//! If the program cannot begin, the worker sends the error through the socket. Programs find an
//! empty standard input.
//!
//! The processes that a worker has started in its group get every signal, and are killed when the
//! launch ends. If the launcher is killed by `SIGKILL`, only the workers themselves are sure to
//! die.

use super::{
    Launch, StartError,
    hosts::{self, Host},
    output::{Sink, Stream},
    profile::Profile,
    signals,
    task::Task,
};
use crate::executable;
use consonance::profile::VARIABLE;
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getppid, kill_process_group, pidfd_open,
        set_parent_process_death_signal, waitid,
    },
    stdio::dup2_stdin,
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{self, Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The first argument of a process that becomes a worker. No launcher's own command line has it.
const BECOME_WORKER: &str = "consonance::become_worker";

/// The time in which a worker must become its program. It takes milliseconds, unless the file is on
/// a remote file system.
const START: Duration = Duration::from_secs(30);

/// The variables that are those of one launch.
const OF_LAUNCH: [&str; 3] = ["TF_CONFIG", "CONSONANCE_JOB", "TORCHELASTIC_RUN_ID"];

/// The beginnings of the names of variables by which launchers of MPI tell a process its place.
const OF_LAUNCHERS: [&str; 4] = ["OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL"];

/// The exit status of a process that did not become a worker. It is not read.
const FAILED: i32 = 127;

/// The end of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The worker exited with this status.
    Status(i32),
    /// This signal ended the worker.
    Signal(i32),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            End::Status(status) => write!(f, "exit status {status}"),
            End::Signal(signal) => write!(f, "killed by {}", signals::name(signal)),
        }
    }
}

/// A worker that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The worker.
    pub worker: Task,
    /// Its process id.
    pub pid: i32,
    /// The kind of its end.
    pub end: End,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended { worker, pid, end } = self;
        write!(f, "{worker} (pid {pid}): {end}")
    }
}

/// The order in which workers end. `waitid` may report an end later: a tracer of the worker learns
/// of it before the parent.
pub(super) struct Ends {
    epoll: OwnedFd,
    /// The pidfds of the workers. Their ends are reported as long as these are open.
    processes: Vec<OwnedFd>,
    /// The process ids of workers that have ended.
    order: Vec<i32>,
}

impl Ends {
    pub(super) fn new() -> io::Result<Ends> {
        Ok(Ends { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, processes: Vec::new(), order: Vec::new() })
    }

    /// Begins to watch this worker, too.
    pub(super) fn watch(&mut self, worker: &Worker) -> io::Result<()> {
        let process = pidfd_open(Pid::from_child(&worker.child), PidfdFlags::empty())?;
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&self.epoll, &process, epoll::EventData::new_u64(worker.pid() as u64), once)?;
        self.processes.push(process);
        Ok(())
    }

    /// Returns the process ids of the workers that have ended so far, in the order of their ends.
    /// No two workers of a launch have the same, because those that have ended stay zombies.
    pub(super) fn order(&mut self) -> &[i32] {
        let mut ended = Vec::with_capacity(self.processes.len());
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The call does not wait, so no signal interrupts it. If it fails, the workers stay in the
        // order of their indices.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut ended), Some(&now));
        self.order.extend(ended.into_iter().map(|event| event.data.u64() as i32));
        &self.order
    }
}

fn is_of(name: &OsStr, beginning: &str) -> bool {
    name.as_encoded_bytes().starts_with(beginning.as_bytes())
}

/// The variables that the launcher sets for a worker, with their values.
pub(super) type Environment = Vec<(&'static str, String)>;

/// A worker that was started. Dropping it kills the worker and its whole group.
pub(super) struct Worker {
    pub(super) task: Task,
    pub(super) begun: Instant,
    /// The end of the worker, once the launcher has seen it. The process is reaped when this is
    /// dropped.
    pub(super) end: Option<End>,
    child: Child,
}

impl Worker {
    /// Starts a worker, and returns once the process has become the program.
    pub(super) fn start(
        task: Task,
        launch: &Launch,
        host: Option<&Host>,
        environment: &Environment,
        profile: Option<&Profile>,
    ) -> Result<Worker, StartError> {
        let cannot = |source| StartError::Launcher { doing: "start a worker", source };
        let (mut ours, theirs) = UnixStream::pair().map_err(cannot)?;
        ours.set_read_timeout(Some(START)).map_err(cannot)?;

        let mut command = executable::command().map_err(cannot)?;
        let parent = host.map_or_else(|| process::id().to_string(), Host::name);
        command.args([BECOME_WORKER, &parent]).arg(&launch.program).args(&launch.arguments);
        // A launch that does not set them may have those of an outer launch.
        OF_LAUNCH.iter().for_each(|name| _ = command.env_remove(name));
        // The place of this process in the world of an outer launcher is no worker's.
        for (name, _) in env::vars_os().filter(|(name, _)| OF_LAUNCHERS.iter().any(|of| is_of(name, of))) {
            command.env_remove(name);
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        if let Some(profile) = profile {
            command.env(VARIABLE, profile.folder(task.index));
        }
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = match host {
            None => command.spawn(),
            Some(host) => host.spawn(&mut command),
        };
        let child = child.map_err(cannot)?;
        let worker = Worker { task, begun: Instant::now(), end: None, child };
        // Dropping the command closes our copy of the worker's end of the socket.
        drop(command);

        let mut failure = Vec::new();
        ours.read_to_end(&mut failure).map_err(cannot)?;
        match <[u8; 4]>::try_from(failure) {
            // The socket is closed: the program has begun, or has been killed before it could.
            Err(_) => Ok(worker),
            Ok(code) => {
                let source = io::Error::from_raw_os_error(i32::from_ne_bytes(code));
                Err(StartError::Program { program: launch.program.clone(), source })
            }
        }
    }

    /// Takes the outputs of the worker. Only the first call returns them.
    pub(super) fn streams(&mut self) -> Vec<Stream> {
        let stdout = self.child.stdout.take().map(|pipe| Stream::new(self.task, pipe.into(), Sink::Stdout));
        let stderr = self.child.stderr.take().map(|pipe| Stream::new(self.task, pipe.into(), Sink::Stderr));
        stdout.into_iter().chain(stderr).collect()
    }

    pub(super) fn pid(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_pid()
    }

    /// Returns how the worker ended, once the launcher has seen it.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.end.map(|end| Ended { worker: self.task, pid: self.pid(), end })
    }

    /// Checks whether the worker has ended since the last check, and leaves it a zombie.
    pub(super) fn look(&mut self) -> Option<&Worker> {
        if self.end.is_some() {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(Pid::from_child(&self.child)), options).expect("a child not waited for")?;
        self.end = status.exit_status().map(End::Status).or(status.terminating_signal().map(End::Signal));
        Some(self)
    }

    /// Sends a signal to the worker and its group.
    pub(super) fn signal(&self, signal: Signal) {
        // Fails if no process of the group is left, or all of them are another user's. Nothing can
        // be done about either.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // The system ends and reaps a process that has not ended yet: a drop does not wait.
        let _ = self.child.try_wait();
    }
}

/// Turns this process into a worker's program, if a launcher has started it for that; otherwise
/// does nothing. A program that calls [`Launch::run`] must make this call before anything else: the
/// launch starts other processes of the same binary.
pub fn become_worker() {
    become_worker_of(env::args_os().skip(1));
}

/// Like [`become_worker`], with these arguments, without the program's name.
pub(crate) fn become_worker_of(mut arguments: impl Iterator<Item = OsString>) {
    if arguments.next().is_none_or(|first| first != BECOME_WORKER) {
        return;
    }
    let launcher = arguments.next().and_then(|launcher| launcher.into_string().ok());
    let (Some(launcher), Some(program)) = (launcher, arguments.next()) else { process::exit(FAILED) };
    let to_launcher = io::stdin().as_fd().try_clone_to_owned();
    let empty = File::open("/dev/null").and_then(|null| Ok(dup2_stdin(null)?));
    let error = match empty.and_then(|()| end_with(&launcher)) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    };
    if let (Ok(socket), Some(code)) = (to_launcher, error.raw_os_error()) {
        // If the write fails, the launcher is gone.
        let _ = UnixStream::from(socket).write_all(&code.to_ne_bytes());
    }
    process::exit(FAILED)
}

/// Lets this process end with its parent, the process with this id, or joins the played host of
/// this name, which ends with its launcher.
pub(crate) fn end_with(launcher: &str) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if hosts::join(launcher)? {
        return Ok(());
    }
    // The launcher may have died before that call.
    let parent = getppid().map(|pid| pid.as_raw_pid().unsigned_abs());
    if parent == launcher.parse().ok() { Ok(()) } else { Err(Errno::SRCH.into()) }
}
