//! How a group is ended from any thread.

use consonance_kernels::group::{Aborter, Reason};
use std::{fmt, sync::Arc};

/// Ends an engine's group. No method waits. The [guide](crate::guide::engines) has one.
pub trait Abort: Send + Sync {
    /// Ends the group in the name of `culprit`, by default this rank: every rank that waits in it,
    /// or calls anything in it later, gets [`Error::Aborted`](crate::Error::Aborted). The first to
    /// say so wins. `turn` counts the runs and cross-replica calls of a strategy with several
    /// workers, where there is one: to keep it for [`ended_after`](Abort::ended_after) is enough.
    fn abort(&self, culprit: Option<usize>, turn: Option<u64>, reason: Reason);

    /// Whether the group was ended.
    fn is_aborted(&self) -> bool;

    /// Whether the group was ended in a turn after this one: a worker that is behind goes on until
    /// then. False where the end has no turn, as by default.
    fn ended_after(&self, _turn: u64) -> bool {
        false
    }
}

/// A handle that ends a group from any thread, without waiting.
#[derive(Clone)]
pub struct AbortHandle(Handle);

#[derive(Clone)]
enum Handle {
    /// Without an allocation: a run asks for one for each replica.
    Host(Aborter),
    Other(Arc<dyn Abort>),
}

impl AbortHandle {
    /// Ends the group: see [`Abort::abort`].
    pub fn abort(&self, reason: Reason) {
        match &self.0 {
            Handle::Host(aborter) => aborter.abort(reason),
            Handle::Other(abort) => abort.abort(None, None, reason),
        }
    }

    /// Ends the group in this turn.
    pub(crate) fn abort_in(&self, turn: u64, reason: Reason) {
        match &self.0 {
            Handle::Host(aborter) => aborter.abort_in(turn, reason),
            Handle::Other(abort) => abort.abort(None, Some(turn), reason),
        }
    }

    /// Ends the group because `rank` did not come before a deadline of this one.
    pub(crate) fn give_up(&self, rank: usize) {
        match &self.0 {
            Handle::Host(aborter) => aborter.give_up(rank),
            Handle::Other(abort) => abort.abort(Some(rank), None, Reason::Deadline),
        }
    }

    /// Whether the group was ended.
    pub fn is_aborted(&self) -> bool {
        match &self.0 {
            Handle::Host(aborter) => aborter.aborted().is_some(),
            Handle::Other(abort) => abort.is_aborted(),
        }
    }

    /// Whether the group was ended in a turn after this one.
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
