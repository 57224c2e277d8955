//! The options of a meeting, what it reports, and the socket names at which the processes listen.

use super::{
    error::{MeetingError, system},
    packet::{Hello, MAX_TASKS},
    socket,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::time::Duration;

/// The task of a process, and the job in which it takes part.
#[derive(Clone, Debug)]
pub struct MeetingOptions {
    /// The digest of the cluster and of the job. Only processes with the same digest meet.
    pub digest: u128,
    /// The layout of the shared segment. Processes with another layout are refused.
    pub layout: u64,
    /// The index of this process's task.
    pub task: usize,
    /// The names of the cluster's tasks, for errors: at most
    /// [`MAX_TASKS`](super::packet::MAX_TASKS) of them.
    pub names: Vec<String>,
    /// The number of this process's replicas, from 1 to [`MAX_TASKS`](super::packet::MAX_TASKS).
    pub replicas: usize,
}

/// The progress report of a waiting process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The time that it has waited.
    pub waited: Duration,
    /// The tasks for which it waits.
    pub missing: Vec<usize>,
    /// From the second report on, the ids of processes that may be meant to have these tasks, but
    /// wait for another job.
    pub elsewhere: Vec<u32>,
}

impl MeetingOptions {
    /// Checks that the numbers are within their limits.
    pub(super) fn check(&self) -> Result<(), MeetingError> {
        let MeetingOptions { task, replicas, ref names, .. } = *self;
        let tasks = names.len();
        if tasks > MAX_TASKS || task >= tasks || !(1..=MAX_TASKS).contains(&replicas) {
            let what = format!(
                "task {task} of {tasks} with {replicas} replicas: there are 1 to {MAX_TASKS} tasks, and 1 to {MAX_TASKS} \
                 replicas a task"
            );
            return Err(MeetingError::Options { what });
        }
        Ok(())
    }

    /// Whether a process counts as many tasks as this one.
    pub(super) fn has_size_of(&self, hello: &Hello) -> bool {
        hello.tasks == self.names.len()
    }

    /// Makes the error for a process that counts another number of tasks.
    pub(super) fn other_size(&self, pid: Option<u32>, hello: &Hello) -> MeetingError {
        let name = self.names.get(hello.task).cloned().unwrap_or_else(|| format!("task {}", hello.task));
        MeetingError::OtherSize { name, pid, expected: self.names.len(), found: hello.tasks }
    }
}

/// Returns the socket name at which the process of a task listens.
pub(super) fn name(options: &MeetingOptions, task: usize) -> String {
    format!("consonance-{}-{:032x}-{task}", socket::user(), options.digest)
}

/// The notice of a listening process to processes of other jobs, in the name of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) digest: u128,
    pub(super) task: usize,
    /// The number of tasks of its job.
    pub(super) tasks: usize,
    /// The port in its task's address.
    pub(super) port: Option<u16>,
}

impl Notice {
    /// Returns the notice of a task.
    pub(super) fn of(options: &MeetingOptions, task: usize) -> Notice {
        let port = options.names[task].trim_end_matches(')').rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Notice { digest: options.digest, task, tasks: options.names.len(), port }
    }

    /// Returns the name of the socket of a process of this user.
    pub(super) fn name(&self, user: u32) -> String {
        let Notice { digest, task, tasks, port } = *self;
        let port = port.map_or(String::new(), |port| port.to_string());
        format!("consonance-{user}-{digest:032x}-{task}+{tasks}+{port}")
    }

    /// Reads the name of such a socket; `None` for other names.
    pub(super) fn read(name: &str, user: u32) -> Option<Notice> {
        let (digest, rest) = name.strip_prefix(&format!("consonance-{user}-"))?.split_once('-')?;
        let mut parts = rest.splitn(3, '+');
        let (task, tasks, port) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Notice {
            digest: u128::from_str_radix(digest, 16).ok()?,
            task: task.parse().ok()?,
            tasks: tasks.parse().ok()?,
            port: port.parse().ok(),
        })
    }
}

/// Whether the process at the other end of a link listens at the name of a task, as far as the
/// system tells. The index of the task may be that of a larger cluster.
pub(super) fn is_holder(options: &MeetingOptions, task: usize, link: &socket::Link) -> bool {
    let listener = socket::connect(&name(options, task)).ok().flatten();
    let holder = listener.and_then(|listener| socket::peer(&listener).ok());
    holder.is_some_and(|holder| holder.uid == socket::user() && holder.pid == link.pid)
}

/// Returns the process that listens at the name of a task.
pub(super) fn holder(options: &MeetingOptions, task: usize) -> Result<Option<socket::Peer>, MeetingError> {
    let name = || options.names[task].clone();
    let cannot = |source| system(&format!("ask who has the name of {}", name()), source);
    let Some(socket) = socket::connect(&self::name(options, task)).map_err(cannot)? else { return Ok(None) };
    let peer = socket::peer(&socket).map_err(cannot)?;
    match peer.uid == socket::user() {
        true => Ok(Some(peer)),
        false => Err(MeetingError::OtherUser { name: name(), pid: peer.pid, uid: peer.uid }),
    }
}

/// Returns random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], MeetingError> {
    let mut bytes = [0; N];
    // A request this small is filled completely.
    getrandom(&mut bytes[..], GetRandomFlags::empty()).map_err(|error| system("get random numbers", error.into()))?;
    Ok(bytes)
}
