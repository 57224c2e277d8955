//! A formed group and its members.

use super::socket::Link;
use crate::shm::SharedFile;
use std::{os::fd::OwnedFd, sync::Arc};

/// A formed group.
#[derive(Debug)]
pub struct Formed {
    /// The number of the group, from 1: higher than the number of any earlier group of the job.
    pub generation: u64,
    /// A random number that no other group has.
    pub id: [u8; 16],
    /// The index of this process in `members`.
    pub me: usize,
    /// All members, in the order of their tasks. The list is the same on every member.
    pub members: Vec<Member>,
    /// The segment that the leader created for the group.
    pub segment: OwnedFd,
    /// For each member, the file that it [gave](super::Meeting::give), unless it is gone.
    pub given: Vec<Option<SharedFile>>,
    pub(super) links: Vec<MemberLink>,
}

/// A process of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The index of its task.
    pub task: usize,
    /// The process id. `None` if the process is in another PID namespace.
    pub pid: Option<u32>,
    /// The number of its replicas.
    pub replicas: usize,
}

/// The end of a member that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its process has ended, for any reason, without a packet.
    Ended,
    /// It has left the group: it forms a new one, or has closed its [`Meeting`](super::Meeting).
    Left,
}

/// The index of a member, and the link to it. `Err` if the member was gone when the group was
/// formed.
pub(super) type MemberLink = (usize, Result<Arc<Link>, Gone>);
