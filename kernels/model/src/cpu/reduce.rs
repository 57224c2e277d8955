//! The model's only reduction: the sum of u64.

#[path = "../../../src/cpu/reduce/nodes.rs"]
mod nodes;

pub use nodes::{Node, Part, nodes};

use super::cache_hints::{CacheHints, Locality};
use crate::watched_memory;
use consonance_spec::{DType, ReduceOp};

#[derive(Clone, Copy)]
pub struct Reducer;

impl Reducer {
    pub(crate) const SMALL_BYTES: usize = 16;

    pub(crate) fn op(&self) -> ReduceOp {
        ReduceOp::Sum
    }

    pub(crate) fn input(&self) -> DType {
        DType::U64
    }

    pub(crate) fn output(&self) -> DType {
        DType::U64
    }

    pub(crate) fn accumulator_bytes(&self, count: usize) -> usize {
        8 * count
    }

    /// Returns the sum of nodes in any shape of tree.
    pub(crate) fn shape(&self, _: usize, _: &[Node]) -> Option<Shape> {
        Some(Shape)
    }

    /// # Safety
    /// Sources are valid for reads and targets for writes of `count` elements. None of them
    /// overlap, except that a source may be a target.
    pub(crate) unsafe fn fold(&self, sources: &[*const u8], targets: &[*mut u8], count: usize, _: CacheHints) {
        let mut sum = vec![0u64; count];
        for source in sources {
            watched_memory::read(*source, count * 8);
            for (index, sum) in sum.iter_mut().enumerate() {
                // SAFETY: the caller ensures that the source is valid for reads; payloads need not
                // be aligned.
                *sum = sum.wrapping_add(unsafe { source.cast::<u64>().add(index).read_unaligned() });
            }
        }
        for target in targets {
            watched_memory::write(*target, count * 8);
            // SAFETY: the caller ensures that the target is valid for writes.
            unsafe { std::ptr::copy_nonoverlapping(sum.as_ptr().cast(), *target, count * 8) }
        }
    }

    /// # Safety
    /// As for [`fold`](Reducer::fold).
    pub(crate) unsafe fn fold_small(&self, sources: &[*const u8], target: *mut u8, count: usize) {
        // SAFETY: the caller ensures the same conditions.
        unsafe { self.fold(sources, &[target], count, CacheHints::from(Locality::Near)) }
    }
}

#[derive(Debug)]
pub(crate) struct Shape;

impl Shape {
    /// # Safety
    /// As for [`Reducer::fold`].
    pub(crate) unsafe fn run(
        &self,
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        _: Option<u64>,
        flow: CacheHints,
    ) {
        // SAFETY: the caller ensures the same conditions.
        unsafe { Reducer.fold(sources, targets, count, flow) }
    }
}
