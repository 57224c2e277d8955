//! The options of a meeting, what it reports, and the socket names at which the processes listen.

use super::{
    error::{MeetingError, system},
    message::Hello,
    socket,
};
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
    /// [`MAX_TASKS`](super::message::MAX_TASKS) of them.
    pub names: Vec<String>,
    /// The number of this process's replicas, from 1 to [`MAX_TASKS`](super::message::MAX_TASKS).
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
