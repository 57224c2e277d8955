//! The arguments of a rank in a step in which a block of every buffer is private to each rank.

use crate::{
    cpu::reduce::Reducer,
    group::plan::{StepKind, Targets},
};
use consonance_spec::Signature;

/// The arguments of a rank in such a step: see [`Step::divided`](crate::group::Step::divided).
#[derive(Clone, Copy)]
pub(in crate::group) struct Divided<'a> {
    pub(in crate::group) signature: &'a Signature,
    pub(in crate::group) reducer: &'a Reducer,
    pub(in crate::group) targets: Targets,
    pub(in crate::group) input: *const u8,
    /// Elements of each buffer.
    pub(in crate::group) count: usize,
    /// Null where this rank has no buffer for the result.
    pub(in crate::group) output: *mut u8,
}

impl Divided<'_> {
    pub(super) fn kind(&self) -> StepKind {
        StepKind::divided(self.reducer, self.targets)
    }

    /// Returns the bytes of the input.
    pub(super) fn bytes(&self) -> usize {
        self.count * self.reducer.input().size()
    }

    /// Returns the bytes of the whole result.
    pub(super) fn output_bytes(&self) -> usize {
        self.count * self.reducer.output().size()
    }
}
