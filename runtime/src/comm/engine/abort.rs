//! Aborts of a group from any thread.

use consonance_kernels::group::{Aborter, Reason};
use std::{fmt, sync::Arc, time::Duration};

/// Aborts an engine's group. No method waits. The [guide](crate::guide::engines) has an
/// implementation.
pub trait Abort: Send + Sync {
    /// Aborts the group and blames `culprit`, or this rank if it is `None`: every rank that waits
    /// in the group, or makes a later call in it, gets [`Error::Aborted`](crate::Error::Aborted).
    /// The first abort wins. `turn` is the number of a run or cross-replica call of a strategy with
    /// several workers, if there is one. An implementation only has to store it for
    /// [`ended_after`](Abort::ended_after).
    fn abort(&self, culprit: Option<usize>, turn: Option<u64>, reason: Reason);

    /// Returns whether the group was aborted.
    fn is_aborted(&self) -> bool;

    /// Returns whether the group was aborted in a turn after `turn`: a worker that is behind goes
    /// on until then. False if the abort has no turn, and by default.
    fn ended_after(&self, _turn: u64) -> bool {
        false
    }
}

/// A handle that aborts a group from any thread, without waiting.
#[derive(Clone)]
pub struct AbortHandle(Handle);

#[derive(Clone)]
enum Handle {
    /// Needs no allocation: a run takes a handle for each replica.
    Host(Aborter),
    Other(Arc<dyn Abort>),
}

impl AbortHandle {
    /// Aborts the group: see [`Abort::abort`].
    pub fn abort(&self, reason: Reason) {
        match &self.0 {
            Handle::Host(aborter) => aborter.abort(reason),
            Handle::Other(abort) => abort.abort(None, None, reason),
        }
    }

    /// Aborts the group in this turn.
    pub(crate) fn abort_in(&self, turn: u64, reason: Reason) {
        match &self.0 {
            Handle::Host(aborter) => aborter.abort_in(turn, reason),
            Handle::Other(abort) => abort.abort(None, Some(turn), reason),
        }
    }

    /// Aborts the group because `rank` missed a deadline of this rank, which has waited for
    /// `timeout`. Returns the rank that is blamed: `rank`, or the rank that holds it up.
    pub(crate) fn give_up(&self, rank: usize, timeout: Duration) -> usize {
        match &self.0 {
            Handle::Host(aborter) => aborter.give_up(rank, timeout),
            Handle::Other(abort) => {
                abort.abort(Some(rank), None, Reason::Deadline);
                rank
            }
        }
    }

    /// Returns the rank that holds up `rank`, which missed a deadline: itself, or the rank for
    /// which it waits in turn.
    pub(crate) fn held_up_by(&self, rank: usize) -> usize {
        match &self.0 {
            Handle::Host(aborter) => aborter.held_up_by(rank),
            Handle::Other(_) => rank,
        }
    }

    /// Returns whether the group was aborted.
    pub fn is_aborted(&self) -> bool {
        match &self.0 {
            Handle::Host(aborter) => aborter.aborted().is_some(),
            Handle::Other(abort) => abort.is_aborted(),
        }
    }

    /// Returns whether the group was aborted in a turn after `turn`.
    pub(crate) fn ended_after(&self, turn: u64) -> bool {
        match &self.0 {
            Handle::Host(aborter) => aborter.ended_after(turn),
            Handle::Other(abort) => abort.ended_after(turn),
        }
    }
}

impl From<Aborter> for AbortHandle {
    fn from(aborter: Aborter) -> AbortHandle {
        AbortHandle(Handle::Host(aborter))
    }
}

impl From<Arc<dyn Abort>> for AbortHandle {
    fn from(abort: Arc<dyn Abort>) -> AbortHandle {
        AbortHandle(Handle::Other(abort))
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AbortHandle(aborted: {})", self.is_aborted())
    }
}
