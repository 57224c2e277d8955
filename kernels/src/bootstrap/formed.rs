//! A group that was formed, and its members.

use super::socket::Link;
use std::{os::fd::OwnedFd, sync::Arc};

/// A group that was formed.
#[derive(Debug)]
pub struct Formed {
    /// Its number: higher than that of any group of the job before, from 1.
    pub generation: u64,
    /// A random number that no other group has.
    pub id: [u8; 16],
    /// The index of this process in `members`.
    pub me: usize,
    /// All members, in the order of their tasks: the same on each of them.
    pub members: Vec<Member>,
    /// What the leader made to be shared.
    pub segment: OwnedFd,
    pub(super) links: Vec<MemberLink>,
}

/// A process of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The index of its task.
    pub task: usize,
    /// The number of the process; nothing if it is in another namespace of processes.
    pub pid: Option<u32>,
    /// The number of its replicas.
    pub replicas: usize,
}

/// How a member is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its process has ended, in whatever way, and said nothing before.
    Ended,
    /// It has left the group: it forms a new one, or has closed its [`Meeting`](super::Meeting).
    Left,
}

/// The link to a member of a group; nothing, if it was gone when the group was formed.
pub(super) type MemberLink = (usize, Result<Arc<Link>, Gone>);
