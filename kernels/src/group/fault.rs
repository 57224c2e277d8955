//! Why a step did not happen.

use super::abort::Abort;
use crate::shm::call_log::Outcome;

/// Why a step did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not all ranks called the same. All of them see this, none has touched any memory, and the
    /// group still works.
    Mismatch,
    /// This rank has left for good, so that every later step ends the same.
    Left(usize),
    /// These ranks had not come this far when the deadline passed. The group has ended.
    Missing(Vec<usize>),
    /// The group had been ended by a rank.
    Aborted(Abort),
    /// The system gave no memory to put data up for other processes. The group has ended.
    NoMemory {
        /// How much it was asked for.
        bytes: usize,
        /// The system's own number of the error.
        code: Option<i32>,
    },
    /// What this rank says of its call cannot be: its process wrote where it must not. The group
    /// has ended.
    CorruptPeer(usize),
    /// This process has no memory for as much data as this rank says that it brings. The group has
    /// ended.
    Oversize {
        /// The rank that brings the most.
        rank: usize,
        /// Bytes that all ranks together bring.
        bytes: usize,
    },
    /// This process is a copy, made by `fork`, of the one that has the endpoint.
    Forked,
    /// As many groups are split off as there is room for. All members of the new one see this, and
    /// the group still works.
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
