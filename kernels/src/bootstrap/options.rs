//! Who meets, and at which names their processes listen.

use super::{
    error::{MeetingError, system},
    socket,
};

/// Who takes part in which job.
#[derive(Clone, Debug)]
pub struct MeetingOptions {
    /// The digest of the cluster and of the job: only processes with the same one meet.
    pub digest: u128,
    /// The layout of what the processes share: those of another one are refused.
    pub layout: u64,
    /// The index of this process's task.
    pub task: usize,
    /// The tasks of the cluster in words, for errors: at most
    /// [`MAX_TASKS`](super::message::MAX_TASKS).
    pub names: Vec<String>,
    /// The number of this process's replicas, from 1 to [`MAX_TASKS`](super::message::MAX_TASKS).
    pub replicas: usize,
}

/// The name at which the process of a task listens.
pub(super) fn name(options: &MeetingOptions, task: usize) -> String {
    format!("consonance-{}-{:032x}-{task}", socket::user(), options.digest)
}

/// Who listens at the name of a task.
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
