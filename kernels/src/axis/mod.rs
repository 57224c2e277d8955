//! Reductions of a tensor along one axis, by several replicas, each of which has some of the elements.
//!
//! [`Along`] reduces the tensors of replicas that share memory. A [`Partial`] is what the elements of one replica give, for others
//! that do not, in the type that is computed in, so that [`finish`] rounds once however the elements were split.
//!
//! The order is the spec's (`order.rs`): blocks of 4096 consecutive elements along the axis, of which lane `j` takes the
//! elements `j`, `j + 32`, …; lanes, blocks and replicas meet by the balanced tree. Where no tensor has more than a block, its
//! accumulators never leave the caches: a chunk of each is made, and then that chunk of the results.

mod tensor;
#[cfg(test)]
mod tests;

use self::tensor::{ROOM_BYTES, Tensor};
use crate::{
    atomics::{AtomicU64, Ordering},
    buffer::{Buf, Memory},
    isa::Isa,
    reduce::Kernel,
};
use consonance_spec::{DType, ReduceOp, partition};
use std::{ops::Range, ptr, slice};

/// Rows of columns (blocks of a tensor, or results) for each part from which on parts are cut between them; with fewer they would
/// be uneven.
const ROWS_A_PART: usize = if cfg!(test) { 2 } else { 16 };

/// Columns that parts are cut at otherwise: some cache lines.
const BORDER: usize = 128;

/// One replica's reduction of a tensor along an axis, kept in the type that is computed in.
///
/// ```
/// use consonance_kernels::axis::{Partial, finish};
/// use consonance_spec::ReduceOp;
///
/// // A batch of two rows on one replica and of one row on another; the mean of the three.
/// let (two, one) = ([1.0f32, 10.0, 2.0, 20.0], [6.0f32, 60.0]);
/// let partials = [
///     Partial::new(ReduceOp::Mean, two[..].into(), [1, 2, 2]).unwrap(),
///     Partial::new(ReduceOp::Mean, one[..].into(), [1, 1, 2]).unwrap(),
/// ];
/// assert_eq!(finish(&partials, 3).as_buf().as_slice(), Some(&[3.0f32, 30.0][..]));
/// ```
pub struct Partial {
    op: ReduceOp,
    dtype: DType,
    kernel: &'static Kernel,
    /// How many results there are.
    count: usize,
    /// The bytes of the accumulators, `count` of the kernel's.
    accumulators: Memory,
}

impl Partial {
    /// Reduces a row-major tensor of the shape `[outer, axis, inner]` along its middle axis; `None` if the operation is not
    /// defined on its type. An empty axis gives the operation's identity.
    ///
    /// # Panics
    /// If the input has not as many elements as the shape says.
    pub fn new(op: ReduceOp, input: Buf<'_>, shape: [usize; 3]) -> Option<Partial> {
        let tensor = Tensor::new(op, input, shape, Isa::best())?;
        // SAFETY: the piece writes all of it.
        let mut blocks = unsafe { tensor.room() };
        let start = blocks.as_buf_mut().as_mut_ptr();
        Piece { tensors: slice::from_ref(&tensor), range: 0..tensor.values(), start, whole: None }.run();
        Some(tensor.partial(op, blocks))
    }

    /// The accumulators, for a process on the same host, which makes a partial of them [there](Partial::with_bytes).
    pub fn to_bytes(&self) -> Vec<u8> {
        self.accumulators.as_buf().as_bytes().to_vec()
    }

    /// Another replica's partial of the same operation, element type and number of results, from its [bytes](Partial::to_bytes).
    ///
    /// # Panics
    /// If there are not as many bytes as of this one.
    pub fn with_bytes(&self, bytes: &[u8]) -> Partial {
        assert_eq!(bytes.len(), self.accumulators.count(), "accumulators of two partials");
        Partial { accumulators: bytes.into(), ..*self }
    }
}

/// Combines the replicas' partials in canonical order, divides a mean by `count`, the number of elements that each result
/// comes from, and rounds once.
///
/// # Panics
/// If there are no partials, or if they differ in operation, element type or number of results.
pub fn finish(partials: &[Partial], count: u64) -> Memory {
    let first = partials.first().expect("a result of no partials");
    for partial in partials {
        let what = |partial: &Partial| (partial.op, partial.dtype, partial.count);
        assert_eq!(what(partial), what(first), "operation, element type and results of partials");
    }
    let Partial { op, dtype, kernel, count: results, .. } = *first;
    // SAFETY: all results are written below.
    let mut memory = unsafe { Memory::uninit(op.result(dtype).expect("a partial's operation is defined"), results) };
    let elements = memory.as_buf().bytes() / kernel.target_bytes;
    let sources: Vec<*const u8> = partials.iter().map(|partial| partial.accumulators.as_buf().as_ptr()).collect();
    let target = memory.as_buf_mut().as_mut_ptr();
    // SAFETY: each partial has an accumulator and the memory an element for each result; the memory is new.
    unsafe { kernel.finish(&sources, &[target], elements, divisor(op, count), 0) }
    memory
}

/// What a result that comes from so many elements is divided by.
fn divisor(op: ReduceOp, count: u64) -> u64 {
    if op == ReduceOp::Mean { count } else { 1 }
}

/// The reduction of the tensors of several replicas along an axis, and over the replicas, that several threads share: its
/// [parts](Along::parts) may run anywhere, in any order, and all must have run before it is [finished](Along::finish). The
/// result has the same bits for any number of parts.
///
/// ```
/// use consonance_kernels::axis::Along;
/// use consonance_spec::ReduceOp;
///
/// let (long, short) = (vec![1i32; 3 * 100_000], vec![1i32; 3 * 5]);
/// let tensors = [(long[..].into(), [3, 100_000, 1]), (short[..].into(), [3, 5, 1])];
/// let mut sum = Along::new(ReduceOp::Sum, &tensors).unwrap();
/// std::thread::scope(|scope| {
///     for part in sum.parts(2) {
///         scope.spawn(|| part.run());
///     }
/// });
/// assert_eq!(sum.finish().as_buf().as_slice(), Some(&[100_005; 3][..]));
/// ```
pub struct Along<'a> {
    op: ReduceOp,
    /// One at least.
    tensors: Vec<Tensor<'a>>,
    /// How many elements each result comes from.
    elements: u64,
    target: Target,
    /// Accumulators or results that are not yet written.
    unwritten: AtomicU64,
}

/// What is written first.
enum Target {
    /// The results, where no tensor has more than a block.
    Results(Memory),
    /// The accumulators of all blocks of each tensor.
    Blocks(Vec<Memory>),
}

/// What one thread does.
pub struct Part<'a> {
    pieces: Vec<Piece<'a>>,
    unwritten: &'a AtomicU64,
}

/// Some accumulators of the blocks of a tensor, or some results of all tensors.
struct Piece<'a> {
    tensors: &'a [Tensor<'a>],
    /// Which of them.
    range: Range<usize>,
    /// Where they are written, from the first one of the range on.
    start: *mut u8,
    /// For results, what means are divided by, and the bytes that the whole reduction reads and writes.
    whole: Option<(u64, usize)>,
}

// SAFETY: a piece alone writes its range of memory that outlives it, and nobody reads that before it has run.
unsafe impl Send for Piece<'_> {}

impl<'a> Along<'a> {
    /// Of row-major tensors of the shapes `[outer, axis, inner]` along their middle axis, not yet done; `None` if the operation is
    /// not defined on their type. An empty axis gives the operation's identity.
    ///
    /// # Panics
    /// If there are no tensors, if one has not as many elements as its shape says, or if they differ in type, `outer` or `inner`.
    pub fn new(op: ReduceOp, tensors: &[(Buf<'a>, [usize; 3])]) -> Option<Along<'a>> {
        Along::with_isa(op, tensors, Isa::best())
    }

    /// [`new`](Along::new), in this instruction set; `None` also if the machine lacks it.
    ///
    /// # Panics
    /// As [`new`](Along::new).
    pub fn with_isa(op: ReduceOp, tensors: &[(Buf<'a>, [usize; 3])], isa: Isa) -> Option<Along<'a>> {
        let &(first, [outer, _, inner]) = tensors.first().expect("a reduction of no tensors");
        for (input, shape) in tensors {
            assert_eq!(
                (input.dtype(), shape[0], shape[2]),
                (first.dtype(), outer, inner),
                "types and shapes of tensors"
            );
        }
        // It wraps where there are no results only.
        let elements = tensors.iter().fold(0u64, |all, (_, [_, axis, _])| all.wrapping_add(*axis as u64));
        let tensors = tensors.iter().map(|&(input, shape)| Tensor::new(op, input, shape, isa));
        let tensors: Vec<Tensor<'_>> = tensors.collect::<Option<_>>()?;
        // SAFETY: all is written by parts before any of it is read, which `finish` asserts.
        let (target, unwritten) = unsafe {
            if tensors.iter().all(|tensor| tensor.blocks() == 1) {
                (Target::Results(Memory::uninit(op.result(first.dtype())?, outer * inner)), tensors[0].values())
            } else {
                let blocks = tensors.iter().map(|tensor| tensor.room()).collect();
                (Target::Blocks(blocks), tensors.iter().map(|tensor| tensor.values()).sum())
            }
        };
        Some(Along { op, tensors, elements, target, unwritten: AtomicU64::new(unwritten as u64) })
    }

    /// At most so many parts, of about the same size. Nothing remains of parts that were made before.
    pub fn parts(&mut self, count: usize) -> Vec<Part<'_>> {
        let Along { op, tensors, elements, target, unwritten } = self;
        let mut pieces: Vec<Vec<Piece<'_>>> = (0..count).map(|_| Vec::new()).collect();
        let all: usize = match target {
            Target::Results(results) => {
                let inputs: usize = tensors.iter().map(Tensor::bytes).sum();
                let whole = (divisor(*op, *elements), inputs + results.as_buf().bytes());
                deal(tensors, results, Some(whole), &mut pieces)
            }
            Target::Blocks(blocks) => tensors
                .iter()
                .zip(blocks)
                .map(|(tensor, blocks)| deal(slice::from_ref(tensor), blocks, None, &mut pieces))
                .sum(),
        };
        *unwritten.get_mut() = all as u64;
        let unwritten = &*unwritten;
        pieces.into_iter().filter(|pieces| !pieces.is_empty()).map(|pieces| Part { pieces, unwritten }).collect()
    }

    /// The result.
    ///
    /// # Panics
    /// If some of the last [parts](Along::parts) have not run.
    pub fn finish(self) -> Memory {
        let Along { op, tensors, elements, target, unwritten } = self;
        assert_eq!(unwritten.into_inner(), 0, "what parts have not written");
        match target {
            Target::Results(results) => results,
            Target::Blocks(blocks) => {
                let partials = tensors.iter().zip(blocks).map(|(tensor, blocks)| tensor.partial(op, blocks));
                finish(&partials.collect::<Vec<_>>(), elements)
            }
        }
    }
}

/// Cuts what tensors give together into a piece for each thread; gives how much that is.
fn deal<'a>(
    tensors: &'a [Tensor<'a>],
    memory: &'a mut Memory,
    whole: Option<(u64, usize)>,
    pieces: &mut [Vec<Piece<'a>>],
) -> usize {
    let tensor = tensors[0];
    let (values, inner) = (tensor.values(), tensor.inner());
    if values == 0 {
        return 0;
    }
    let bytes = memory.as_buf().bytes() / values;
    let start = memory.as_buf_mut().as_mut_ptr();
    let unit = if values >= ROWS_A_PART * pieces.len() * inner { inner } else { BORDER };
    let count = pieces.len();
    for (index, pieces) in pieces.iter_mut().enumerate() {
        let range = partition::aligned_block(values, unit, count, index);
        if !range.is_empty() {
            pieces.push(Piece { tensors, start: start.wrapping_add(range.start * bytes), range, whole });
        }
    }
    values
}

impl Part<'_> {
    /// Reduces the elements that it comes from, on this thread, and writes what they give.
    pub fn run(self) {
        self.pieces.iter().for_each(Piece::run);
        let written: usize = self.pieces.iter().map(|piece| piece.range.len()).sum();
        // Whoever finds nothing unwritten also sees what was written.
        self.unwritten.fetch_sub(written as u64, Ordering::Release);
    }
}

impl Piece<'_> {
    fn run(&self) {
        let Piece { tensors, ref range, start, whole } = *self;
        let (tensor, kernel) = (tensors[0], tensors[0].kernel());
        let most = tensors.iter().map(Tensor::scratch_bytes).max().expect("there is a tensor");
        // SAFETY: every accumulator is written before it is read.
        let mut scratch = unsafe { Memory::uninit(DType::U8, most + tensors.len() * ROOM_BYTES) };
        let scratch = scratch.as_buf_mut().as_mut_ptr();
        let source = |index: usize| scratch.wrapping_add(most + index * ROOM_BYTES);
        let sources: Vec<*const u8> = (0..tensors.len()).map(|index| source(index).cast_const()).collect();
        let (mut at, mut target) = (range.start, start);
        while at < range.end {
            let count = tensor.chunk(at, range.end);
            // SAFETY: the chunk is in the range, which starts at `start`; tensors whose results are asked for have as many.
            unsafe {
                for (index, tensor) in tensors.iter().enumerate() {
                    tensor.reduce(at, count, source(index), scratch);
                }
                if let Some((divisor, of)) = whole {
                    kernel.finish(&sources, &[target], count, divisor, of);
                    target = target.add(count * kernel.target_bytes);
                } else {
                    ptr::copy_nonoverlapping(source(0), target, count * kernel.acc_bytes);
                    target = target.add(count * kernel.acc_bytes);
                }
            }
            at += count;
        }
    }
}
