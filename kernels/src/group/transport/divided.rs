//! The arguments of a rank in a step in which a block of every buffer is private to each rank.

use super::holdings::Holdings;
use crate::{
    cpu::{cache_hints::CacheHints, reduce::Reducer},
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
    /// The contents of all ranks' buffers, if an input is not one contribution.
    pub(in crate::group) holdings: Option<&'a Holdings>,
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

    /// Returns the bytes of the contributions of `ranks` ranks.
    pub(super) fn read_bytes(&self, ranks: usize) -> usize {
        self.holdings.map_or(ranks * self.bytes(), |holdings| holdings.sources() * self.bytes())
    }

    /// Adds the addresses of the elements from `start` on of what `peer` contributes, whose buffers
    /// begin at `input` and `output`.
    pub(super) fn add_sources(
        &self,
        sources: &mut Vec<*const u8>,
        peer: usize,
        (input, output): (*const u8, *mut u8),
        start: usize,
    ) {
        let offset = start * self.reducer.input().size();
        let Some(holdings) = self.holdings else { return sources.push(input.wrapping_add(offset)) };
        let holding = holdings.of(peer);
        let (node, first) = (self.reducer.accumulator_bytes(self.count), self.reducer.accumulator_bytes(start));
        sources.extend((0..holding.nodes).map(|place| input.wrapping_add(place * node + first)));
        if holding.has_leaf {
            sources.push(output.cast_const().wrapping_add(offset));
        }
    }

    /// Combines `count` elements of all sources into each target.
    ///
    /// # Safety
    /// As [`Reducer::fold`]. The sources are those of all ranks, in rank order.
    pub(super) unsafe fn fold(&self, sources: &[*const u8], targets: &[*mut u8], count: usize, flow: CacheHints) {
        // SAFETY: the caller's promises are the same: a shape has the sources of its holdings.
        unsafe {
            match self.holdings {
                None => self.reducer.fold(sources, targets, count, flow),
                Some(holdings) => holdings.fold(sources, targets, count, flow),
            }
        }
    }
}
