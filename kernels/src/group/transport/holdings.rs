//! Holdings of ranks that have different numbers of contributions to a reduction.

use crate::{
    cpu::{
        cache_hints::CacheHints,
        reduce::{Node, Part, Reducer, Shape, nodes},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, ReduceOp};
use std::ops::Range;

/// The parts that a rank shows of its contributions to a reduction.
pub struct OwnHoldings<'a> {
    /// The accumulators of the [nodes](crate::cpu::reduce::nodes) of all but the last, one node
    /// after the other.
    pub nodes: &'a [u8],
    /// The last one. A rank without contributions has room for the result here.
    pub last: Last<'a>,
}

/// A rank's last contribution to a reduction.
pub enum Last<'a> {
    /// The result takes its place.
    InPlace(HostBufMut<'a>),
    /// This rank receives nothing.
    ToRead(HostBuf<'a>),
}

/// The parts that each rank holds of a reduction to which ranks bring different numbers of
/// contributions: see [`Step::divided_holdings`](crate::group::Step::divided_holdings).
#[derive(Debug)]
pub struct Holdings {
    op: ReduceOp,
    dtype: DType,
    shape: Shape,
    /// The number of contributions of all ranks.
    leaves: u64,
    each: Vec<Holding>,
}

/// The parts that a rank holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    /// The number of nodes of all its contributions but the last.
    pub(super) nodes: usize,
    /// Whether it has a last contribution.
    pub(super) has_leaf: bool,
}

impl Holdings {
    /// Returns the holdings of ranks of which rank `r` has the contributions `runs[r]` of `0..of`:
    /// the nodes of all of these but the last, and the last one. `None` if the runs do not have
    /// each contribution once, or if there is none.
    pub fn new(reducer: &Reducer, of: usize, runs: impl Iterator<Item = Range<usize>>) -> Option<Holdings> {
        let (mut each, mut sources) = (Vec::new(), Vec::new());
        for run in runs {
            let last = (!run.is_empty()).then(|| run.end - 1);
            let first = last.map_or_else(Vec::new, |last| nodes(of, std::slice::from_ref(&(run.start..last))));
            each.push(Holding { nodes: first.len(), has_leaf: last.is_some() });
            sources.extend(first.into_iter().map(Node::kept));
            sources.extend(last.map(|last| Node { leaves: last..last + 1, part: Part::Elements }));
        }
        let (op, dtype) = (reducer.op(), reducer.input());
        Some(Holdings { op, dtype, shape: reducer.shape(of, &sources)?, leaves: of as u64, each })
    }

    /// Returns the operation, and the element type of the contributions.
    pub(in crate::group) fn reduces(&self) -> (ReduceOp, DType) {
        (self.op, self.dtype)
    }

    /// Returns what this rank holds.
    pub(super) fn of(&self, rank: usize) -> Holding {
        self.each[rank]
    }

    /// Returns the number of nodes that this rank has combined.
    pub(in crate::group) fn nodes(&self, rank: usize) -> usize {
        self.each[rank].nodes
    }

    /// Returns the number of nodes and contributions of all ranks.
    pub(super) fn sources(&self) -> usize {
        self.each.iter().map(|holding| holding.nodes + usize::from(holding.has_leaf)).sum()
    }

    /// Combines `count` elements of all ranks' nodes and contributions into each target.
    ///
    /// # Safety
    /// As [`Reducer::fold`], where nodes are accumulators. The sources are those of all ranks in
    /// rank order, the nodes of each before its contribution.
    pub(super) unsafe fn fold(&self, sources: &[*const u8], targets: &[*mut u8], count: usize, flow: CacheHints) {
        // SAFETY: the caller's promises are the same.
        unsafe { self.shape.run(sources, targets, count, Some(self.leaves), flow) }
    }
}
