//! The ranks of a group that are left after a loss.

use super::letter::Generation;
use consonance_kernels::group::Reason;

/// The reason why the ranks that are left begin no group.
#[derive(Debug)]
pub(super) enum NotBegun {
    /// Others take this rank for lost.
    Lost,
    /// More ranks are lost than was known.
    MoreLost,
}

/// The group of the ranks that are left, as one of them begins it.
pub(super) struct Remaining {
    pub(super) generation: Generation,
    /// Its members, by their ranks in the whole group.
    pub(super) members: Vec<usize>,
    /// The members before.
    pub(super) earlier: Vec<usize>,
    /// All ranks that the group has lost, and why: [`Reason::Leave`] or [`Reason::Death`].
    pub(super) lost: Vec<(usize, Reason)>,
}
