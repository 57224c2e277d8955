//! Reductions in any shape of tree, a tile of the caches at a time.

use super::{
    Reducer,
    fold::LINE,
    nodes::{Node, Part},
    program::{Operand, Program, Step},
};
use crate::{
    cpu::cache_hints::{CacheHints, Locality},
    memory::{HostBuf, HostBufMut, make_valid},
};
use consonance_spec::ReduceOp;
use std::mem::MaybeUninit;

/// Bytes of a room: so few that the rooms and the tiles of some sources stay in a first-level
/// cache, and so many that a tile of 16-bit results is long enough to be written past the caches.
/// Tests have small rooms, so that few elements take several tiles.
const ROOM_BYTES: usize = if cfg!(test) { 512 } else { 8 << 10 };

/// A cache line of a room.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct RoomLine(#[expect(dead_code, reason = "it is written and read by kernels")] [u8; LINE]);

/// Lines of a room, and lines after it: rooms that begin at the same place in their pages would
/// make loads wait for stores to the other rooms.
const ROOM_LINES: usize = ROOM_BYTES / LINE + 5;

/// A reduction of the nodes of several owners, which together have each contribution once. The
/// result has the same bits as the [`Reducer`]'s over all contributions.
///
/// ```
/// use consonance_kernels::{cpu::reduce::{Node, Part, Reducer, Source}, memory::HostBufMut};
/// use consonance_spec::{DType, ReduceOp};
///
/// // One owner has the contributions 0 and 1 of 3, another the contribution 2.
/// let mean = Reducer::new(ReduceOp::Mean, DType::F32).unwrap();
/// let both = [Node { leaves: 0..1, part: Part::Elements }, Node { leaves: 1..2, part: Part::Elements }];
/// let mut first = vec![0; mean.accumulator_bytes(2)];
/// let (a, b) = ([1.0f32, 10.0], [2.0f32, 20.0]);
/// mean.shape(2, &both).unwrap().keep(&[Source::Elements(a[..].into()), Source::Elements(b[..].into())], &mut first);
///
/// let all = [Node { leaves: 0..2, part: Part::Accumulators }, Node { leaves: 2..3, part: Part::Elements }];
/// let (c, mut result) = ([6.0f32, 60.0], [0.0f32; 2]);
/// let sources = [Source::Accumulators(&first), Source::Elements(c[..].into())];
/// mean.shape(3, &all).unwrap().finish(&sources, &mut HostBufMut::from(&mut result[..]), 3);
/// assert_eq!(result, [3.0, 30.0]);
/// ```
#[derive(Debug)]
pub struct Shape {
    reducer: Reducer,
    /// The form of each source.
    parts: Vec<Part>,
    program: Program,
}

/// A source of a [`Shape`]: the value of a node.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A contribution.
    Elements(HostBuf<'a>),
    /// The accumulators that [`Shape::keep`] made, in this process or in another one of the same
    /// build.
    Accumulators(&'a [u8]),
}

impl Reducer {
    /// Returns the bytes of the accumulators of `count` elements.
    pub fn accumulator_bytes(&self, count: usize) -> usize {
        self.elements(count) * self.kernel.acc_bytes
    }

    /// Returns the reduction of `n` contributions whose sources are the given nodes, in any order;
    /// `None` if these do not have each contribution once, if one of them is no node of the
    /// canonical tree, or if elements are said to be several contributions.
    ///
    /// The canonical tree of a node depends only on how many contributions it has. So the nodes
    /// inside a node are a shape, too, if the node's first contribution is numbered 0.
    pub fn shape(&self, n: usize, nodes: &[Node]) -> Option<Shape> {
        let program = Program::new(n, nodes, self.kernel.is_plain)?;
        Some(Shape { reducer: *self, parts: nodes.iter().map(|node| node.part).collect(), program })
    }
}

impl Shape {
    /// Combines the sources, divides a mean by `divisor`, and rounds once.
    ///
    /// # Panics
    /// If the sources are not as many as the nodes, or not stored like them, or if a count or an
    /// element type is not the target's or the reducer's.
    pub fn finish(&self, sources: &[Source<'_>], target: &mut HostBufMut<'_>, divisor: u64) {
        let count = target.count();
        assert_eq!(target.dtype(), self.reducer.output, "the target's element type");
        let sources = self.checked(sources, count);
        let (start, bytes) = (target.as_mut_ptr(), target.bytes());
        // SAFETY: the types and counts are those of the sources and the target; the target is
        // exclusive, so it overlaps no source. It is made valid at the end: accumulators of bool
        // are bytes, and any bytes may be passed as such.
        unsafe {
            self.run(&sources, &[start], count, Some(divisor), CacheHints::from(Locality::Near));
            make_valid(self.reducer.output, start, bytes);
        }
    }

    /// Combines the sources to the accumulators of a node.
    ///
    /// # Panics
    /// As [`finish`](Shape::finish), or if the target has no room for a whole number of elements.
    pub fn keep(&self, sources: &[Source<'_>], target: &mut [u8]) {
        let count = target.len() / self.reducer.accumulator_bytes(1);
        assert_eq!(target.len(), self.reducer.accumulator_bytes(count), "bytes of accumulators");
        let sources = self.checked(sources, count);
        // SAFETY: the types and counts are those of the sources and the target; the target is
        // exclusive, so it overlaps no source.
        unsafe { self.run(&sources, &[target.as_mut_ptr()], count, None, CacheHints::from(Locality::Near)) }
    }

    /// Returns the addresses of sources of `count` elements.
    fn checked(&self, sources: &[Source<'_>], count: usize) -> Vec<*const u8> {
        assert_eq!(sources.len(), self.parts.len(), "the sources of a shape");
        let checked = |(source, &part): (&Source<'_>, &Part)| match source {
            Source::Elements(buf) => {
                let is = (Part::Elements, buf.dtype(), buf.count());
                assert_eq!(is, (part, self.reducer.input, count), "a source's part, element type and count");
                buf.as_ptr()
            }
            Source::Accumulators(bytes) => {
                let is = (Part::Accumulators, bytes.len());
                assert_eq!(is, (part, self.reducer.accumulator_bytes(count)), "a source's part and bytes");
                bytes.as_ptr()
            }
        };
        sources.iter().zip(&self.parts).map(checked).collect()
    }

    /// Combines `sources`, and writes the result to each of `targets`: elements, of means divided
    /// by the divisor, or accumulators if there is no divisor.
    ///
    /// # Safety
    /// The sources are as many as the nodes, and stored like them. Each is valid for reads of
    /// `count` elements or accumulators, each target for writes of `count` results. A target is
    /// disjoint from a source or equal to it; equal only where an element of the source has the
    /// size of a result. Targets are disjoint from each other or equal. Until this returns, nobody
    /// else writes the sources or accesses the targets.
    pub(crate) unsafe fn run(
        &self,
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        divisor: Option<u64>,
        flow: CacheHints,
    ) {
        debug_assert_eq!(sources.len(), self.parts.len());
        let Reducer { kernel, op, .. } = self.reducer;
        let divisor = divisor.map(|divisor| if op == ReduceOp::Mean { divisor } else { 1 });
        let target_bytes = if divisor.is_some() { kernel.target_bytes } else { kernel.acc_bytes };
        let count = self.reducer.elements(count);
        let read: usize = self.parts.iter().map(|&part| self.bytes(part)).sum();
        let of = count * (read + targets.len() * target_bytes);
        if let [step] = &self.program.steps[..]
            && step.takes_sources_in_order()
        {
            let how = (CacheHints { from: locality(flow.from, step), past: flow.past }, of);
            // SAFETY: the caller vouches for the sources and targets.
            return unsafe { kernel.step(step.from, sources, targets, count, divisor, how) };
        }
        let mut memory: Vec<MaybeUninit<RoomLine>> = Vec::with_capacity(self.program.rooms * ROOM_LINES);
        let rooms: *mut u8 = memory.as_mut_ptr().cast();
        // SAFETY: a room has its lines in the memory.
        let room = |room: usize| unsafe { rooms.add(room * ROOM_LINES * LINE) };
        let mut pointers: Vec<*const u8> = Vec::with_capacity(sources.len());
        let mut to: Vec<*mut u8> = Vec::with_capacity(targets.len());
        // A program of one step has no room, and needs no tiles. Otherwise all tiles but the first
        // begin with a line of the first target.
        let tile = if self.program.rooms == 0 { usize::MAX } else { ROOM_BYTES / kernel.acc_bytes };
        let over = targets.first().map_or(0, |target| target.addr() % LINE / target_bytes);
        let (mut at, mut end) = (0, tile.saturating_sub(over).min(count));
        while at < count {
            for step in &self.program.steps {
                pointers.clear();
                pointers.extend(step.operands.iter().map(|operand| match operand {
                    Operand::Source(source) => {
                        let offset = at * self.bytes(self.parts[*source]);
                        // SAFETY: the source has the elements of the tile.
                        unsafe { sources[*source].add(offset) }
                    }
                    Operand::Room(number) => room(*number).cast_const(),
                }));
                let from = locality(flow.from, step);
                // SAFETY: the caller vouches for the sources and targets; rooms are this call's
                // own and as long as the longest tile, and a step reads what earlier steps wrote.
                unsafe {
                    match step.room {
                        Some(number) => {
                            let how = (CacheHints { from, past: 1 }, of);
                            kernel.step(step.from, &pointers, &[room(number)], end - at, None, how);
                        }
                        None => {
                            to.clear();
                            to.extend(targets.iter().map(|target| target.add(at * target_bytes)));
                            let how = (CacheHints { from, past: flow.past }, of);
                            kernel.step(step.from, &pointers, &to, end - at, divisor, how);
                        }
                    }
                }
            }
            (at, end) = (end, end.saturating_add(tile).min(count));
        }
    }

    /// Returns the bytes of an element that is stored as `part`.
    fn bytes(&self, part: Part) -> usize {
        match part {
            Part::Elements => self.reducer.kernel.source_bytes,
            Part::Accumulators => self.reducer.kernel.acc_bytes,
        }
    }
}

/// Returns the hint for the operands of a step.
fn locality(from: Locality, step: &Step) -> Locality {
    match from {
        Locality::Taken(source) => {
            let taken = step.operands.iter().position(|operand| *operand == Operand::Source(source));
            taken.map_or(Locality::Far, Locality::Taken)
        }
        Locality::Near | Locality::Far => from,
    }
}
