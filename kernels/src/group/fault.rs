//! Why a step failed.

use super::abort::Abort;
use crate::shm::call_log::Outcome;

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not all ranks made the same call. All of them get this fault, none has touched any memory,
    /// and the group still works. A rank that has gone on from a message is told by
    /// [`Endpoint::take_differing_late`](crate::group::Endpoint::take_differing_late) instead.
    Mismatch,
    /// This rank has left for good; every later step fails the same.
    Left(usize),
    /// These ranks had not come as far as this rank when the deadline passed. The group has ended.
    Missing(Vec<usize>),
    /// A rank has ended the group.
    Aborted(Abort),
    /// The system gave no memory to stage data for other processes. The group has ended.
    NoMemory {
        /// Bytes that were requested.
        bytes: usize,
        /// The system's error number.
        code: Option<i32>,
    },
    /// This rank wrote values that no correct rank writes: its process wrote where it must not. The
    /// group has ended.
    CorruptPeer(usize),
    /// This process has no memory for the data that all ranks announce. The group has ended.
    Oversize {
        /// The rank with the most data.
        rank: usize,
        /// Bytes of all ranks together.
        bytes: usize,
    },
    /// This process is a copy, made by `fork`, of the one that has the endpoint.
    Forked,
    /// No area is free for another group that is split off. All members of the new group get this
    /// fault, and the group still works.
    TooManyGroups,
}

impl Fault {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Fault::Mismatch => Outcome::Mismatch,
            Fault::Left(_) => Outcome::Left,
            Fault::Missing(_) => Outcome::Missing,
            Fault::Aborted(_)
            | Fault::NoMemory { .. }
            | Fault::CorruptPeer(_)
            | Fault::Oversize { .. }
            | Fault::Forked
            | Fault::TooManyGroups => Outcome::Aborted,
        }
    }
}
