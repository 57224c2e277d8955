//! Failures in a warp, before the threads of its lanes are known.

use crate::{
    fault::FaultKind,
    memory::{Refusal, Stamp},
};

/// A failure of a step.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FaultKind,
    pub(crate) step: usize,
    pub(crate) lane: u32,
    pub(crate) address: Option<u64>,
    pub(crate) other: Option<Party>,
    pub(crate) detail: String,
}

/// The other side of a failure.
#[derive(Debug)]
pub(crate) enum Party {
    /// The access with this stamp.
    Access(Stamp),
    /// A thread of the same block.
    Thread { warp: u32, lane: u32, step: usize },
}

impl Failure {
    pub(crate) fn new(kind: FaultKind, step: usize, lane: u32, detail: impl Into<String>) -> Failure {
        Failure { kind, step, lane, address: None, other: None, detail: detail.into() }
    }

    pub(crate) fn at(mut self, address: u64) -> Failure {
        self.address = Some(address);
        self
    }

    pub(crate) fn with(mut self, other: Party) -> Failure {
        self.other = Some(other);
        self
    }
}

/// The reason why an access of one lane fails.
#[derive(Debug)]
pub(crate) enum AccessFailure {
    Refused(FaultKind),
    Race(Stamp),
    /// A write to what `ld.global.nc` read, or the other way round.
    ReadOnly(Stamp),
}

impl From<Refusal> for AccessFailure {
    fn from(refusal: Refusal) -> AccessFailure {
        AccessFailure::Refused(refusal.into())
    }
}

impl From<FaultKind> for AccessFailure {
    fn from(kind: FaultKind) -> AccessFailure {
        AccessFailure::Refused(kind)
    }
}

impl From<Stamp> for AccessFailure {
    fn from(stamp: Stamp) -> AccessFailure {
        AccessFailure::Race(stamp)
    }
}
