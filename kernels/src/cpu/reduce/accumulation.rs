//! The contributions of one owner, combined as they come.

use super::{
    Reducer, Shape,
    nodes::{Node, Part, nodes},
};
use crate::{
    cpu::{
        cache_hints::{CacheHints, Locality},
        copy::copy_own,
    },
    memory::{HostBuf, HostMemory},
};
use std::ops::Range;

/// A run of contributions, combined as far as the canonical order allows.
///
/// Only the values of the run's [nodes] are kept. A contribution is read once, and combined with
/// the last nodes in the memory of the first of these.
///
/// ```
/// use consonance_kernels::{cpu::reduce::{Accumulation, Reducer}, memory::HostMemory};
/// use consonance_spec::{DType, ReduceOp};
///
/// // The contributions 0, 1 and 2 of 4.
/// let sum = Reducer::new(ReduceOp::Sum, DType::F32).unwrap();
/// let bytes = Accumulation::bytes(&sum, 2, 0..3, 4).unwrap();
/// let mut run = Accumulation::new(sum, 2, 0..3, 4, HostMemory::zeroed(DType::U8, bytes));
/// run.add([1.0f32, 2.0][..].into());
/// run.add([10.0f32, 20.0][..].into());
/// run.add([100.0f32, 200.0][..].into());
/// assert_eq!(run.nodes(), [0..2, 2..3]);
/// assert_eq!(run.values(), [11.0f32, 22.0, 100.0, 200.0].map(f32::to_ne_bytes).as_flattened());
/// ```
#[derive(Debug)]
pub struct Accumulation {
    reducer: Reducer,
    /// Elements of a contribution.
    count: usize,
    run: Range<usize>,
    /// The number of contributions of all owners.
    of: usize,
    /// The number of contributions that were added.
    added: usize,
    /// The nodes of these.
    nodes: Vec<Range<usize>>,
    /// The accumulators of each node, one node after the other.
    memory: HostMemory,
    /// The ways to add the first contributions, kept for the next time.
    plans: Vec<Plan>,
}

/// The way to add a contribution: it ends a node, which it is combined to with the last nodes.
#[derive(Debug)]
struct Plan {
    /// The number of nodes that stay as they are.
    kept: usize,
    node: Range<usize>,
    /// The reduction of the other nodes and the contribution to this node.
    shape: Shape,
}

/// The number of contributions up to which the nodes are counted after each, and the ways to add
/// them are kept.
const FEW: usize = 1024;

impl Accumulation {
    /// Returns the bytes of memory that an owner of these contributions needs; `None` if no memory
    /// has so many.
    pub fn bytes(reducer: &Reducer, count: usize, run: Range<usize>, of: usize) -> Option<usize> {
        let held = |end: usize| nodes(of, std::slice::from_ref(&(run.start..end))).len();
        let most = match run.len() {
            0..FEW => (run.start..run.end).map(|leaf| held(leaf + 1)).max().unwrap_or(0),
            // A law of the spec.
            leaves => 2 * leaves.saturating_add(2).ilog2() as usize - 1,
        };
        let bytes = count.checked_mul(reducer.accumulator_bytes(1))?.checked_mul(most)?;
        (bytes <= isize::MAX as usize).then_some(bytes)
    }

    /// Begins a run of contributions of `count` elements, in `memory` of bytes.
    ///
    /// # Panics
    /// If the memory has not the [bytes](Accumulation::bytes) that it needs, or if the run is not
    /// one of `0..of`.
    pub fn new(reducer: Reducer, count: usize, run: Range<usize>, of: usize, memory: HostMemory) -> Accumulation {
        assert!(run.is_empty() || run.end <= of, "contributions {run:?} of {of}");
        let bytes = Accumulation::bytes(&reducer, count, run.clone(), of);
        assert_eq!(Some(memory.as_buf().bytes()), bytes, "bytes of an accumulation");
        Accumulation { reducer, count, run, of, added: 0, nodes: Vec::new(), memory, plans: Vec::new() }
    }

    /// Returns the operation.
    pub fn reducer(&self) -> &Reducer {
        &self.reducer
    }

    /// Returns the number of elements of a contribution.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the contributions of this owner.
    pub fn run(&self) -> Range<usize> {
        self.run.clone()
    }

    /// Returns the number of contributions of all owners.
    pub fn of(&self) -> usize {
        self.of
    }

    /// Returns the number of contributions that were added.
    pub fn added(&self) -> usize {
        self.added
    }

    /// Begins the run again.
    pub fn clear(&mut self) {
        self.added = 0;
        self.nodes.clear();
    }

    /// Returns the nodes of the contributions that were added.
    pub fn nodes(&self) -> &[Range<usize>] {
        &self.nodes
    }

    /// Returns the accumulators of the [nodes](Accumulation::nodes), one node after the other.
    pub fn values(&self) -> &[u8] {
        let bytes = self.nodes.len() * self.reducer.accumulator_bytes(self.count);
        &self.memory.as_buf().as_bytes()[..bytes]
    }

    /// Joins runs of the same contributions, of which as many were added: their elements follow
    /// each other. This run begins again with what they have.
    ///
    /// # Panics
    /// If the parts are not runs of these contributions, or do not have the same number of them, or
    /// if their counts are not this one's together.
    pub fn join(&mut self, parts: &[&Accumulation]) {
        let first = parts.first().expect("a run of no parts");
        let is = |part: &Accumulation| (part.reducer.op(), part.reducer.input, part.run.clone(), part.of);
        assert!(parts.iter().all(|part| is(part) == is(self) && part.added == first.added), "parts of {:?}", is(self));
        assert_eq!(parts.iter().map(|part| part.count).sum::<usize>(), self.count, "elements of the parts");
        (self.added, self.nodes) = (first.added, first.nodes.clone());
        let mut rest = self.memory.as_buf_mut().into_mut_slice::<u8>().expect("memory of bytes");
        for node in 0..self.nodes.len() {
            for part in parts {
                let bytes = part.reducer.accumulator_bytes(part.count);
                let (target, after) = rest.split_at_mut(bytes);
                copy_own(part.values()[node * bytes..][..bytes].into(), &mut target.into());
                rest = after;
            }
        }
    }

    /// Adds the next contribution.
    ///
    /// # Panics
    /// If all were added, or if the contribution has another count or element type.
    pub fn add(&mut self, contribution: HostBuf<'_>) {
        assert!(self.added < self.run.len(), "a contribution after the last of {:?}", self.run);
        let is = (contribution.dtype(), contribution.count());
        assert_eq!(is, (self.reducer.input, self.count), "a contribution's element type and count");
        if self.plans.len() == self.added && self.added < FEW {
            self.plans.push(self.plan());
        }
        let made;
        let Plan { kept, node, shape } = match self.plans.get(self.added) {
            Some(plan) => plan,
            None => {
                made = self.plan();
                &made
            }
        };
        let kept = *kept;
        let bytes = self.reducer.accumulator_bytes(self.count);
        let mut memory = self.memory.as_buf_mut();
        let memory = memory.as_mut_ptr();
        // SAFETY: `bytes` says that the memory has room for as many nodes as there are at a time.
        let place = |node: usize| unsafe { memory.add(node * bytes) };
        let mut sources: Vec<*const u8> = Vec::with_capacity(self.nodes.len() - kept + 1);
        sources.extend((kept..self.nodes.len()).map(|node| place(node).cast_const()));
        sources.push(contribution.as_ptr());
        // SAFETY: the contribution has `count` elements, each node as many accumulators. The target
        // is the first node that is a source, or the place after all nodes. The memory is exclusive
        // and so apart from the contribution.
        unsafe { shape.run(&sources, &[place(kept)], self.count, None, CacheHints::from(Locality::Near)) }
        self.nodes.truncate(kept);
        self.nodes.push(node.clone());
        self.added += 1;
    }

    /// Returns the way to add the next contribution.
    fn plan(&self) -> Plan {
        let leaf = self.run.start + self.added;
        // The contribution ends one node. This has the last of the nodes before, and those in front
        // of them are as before.
        let node = nodes(self.of, std::slice::from_ref(&(self.run.start..leaf + 1))).pop().expect("it has a leaf");
        let kept = self.nodes.partition_point(|before| before.start < node.start);
        let inside = |leaves: &Range<usize>| leaves.start - node.start..leaves.end - node.start;
        let mut parts: Vec<Node> = self.nodes[kept..].iter().map(|leaves| Node::kept(inside(leaves))).collect();
        parts.push(Node { leaves: inside(&(leaf..leaf + 1)), part: Part::Elements });
        let shape = self.reducer.shape(node.len(), &parts).expect("the nodes of a node");
        Plan { kept, node, shape }
    }
}
