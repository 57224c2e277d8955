//! The reduction of several replicas' tensors, in parts that threads share.

use super::{
    partial::{Partial, divisor, finish},
    tensor::{ROOM_BYTES, Tensor},
};
use crate::{
    cpu::{copy::copy_private, isa::Isa},
    memory::{HostBuf, HostMemory},
    sync::plain::{AtomicU64, Ordering},
};
use consonance_spec::{DType, ReduceOp, partition};
use std::{io, ops::Range, slice};

/// Minimum number of rows (of a tensor's blocks, or of results) for each part, if parts are cut
/// between rows. With fewer rows the parts would be uneven.
const ROWS_A_PART: usize = if cfg!(test) { 2 } else { 16 };

/// If parts are not cut between rows, they are cut at multiples of this many columns, which are
/// some cache lines.
const BORDER: usize = 128;

/// Limit on the parts, which are listed: more than the cores of any machine.
const MOST_PARTS: usize = 64 << 10;

impl Partial {
    /// Reduces a row-major tensor of the shape `[outer, axis, inner]` along its middle axis; `None`
    /// if the operation is not defined on its type. An empty axis gives the operation's identity;
    /// if there is none, the partial result is not one.
    ///
    /// # Errors
    /// The system's, if it has no memory for the result. An empty axis has a result of any size.
    ///
    /// # Panics
    /// If the input does not have the number of elements that the shape says.
    pub fn new(op: ReduceOp, input: HostBuf<'_>, shape: [usize; 3]) -> io::Result<Option<Partial>> {
        let Some(tensor) = Tensor::new(op, input, shape, Isa::best())? else { return Ok(None) };
        // SAFETY: the piece writes all of this memory.
        let mut blocks = unsafe { tensor.room()? };
        let start = blocks.as_buf_mut().as_mut_ptr();
        Piece { tensors: slice::from_ref(&tensor), range: 0..tensor.values(), start, whole: None }.run();
        Ok(Some(tensor.partial(op, blocks)))
    }
}

/// The reduction of the tensors of several replicas along an axis, and over the replicas. Several
/// threads share it: its [parts](Along::parts) may run on any thread, in any order. All must have
/// run before the reduction is [finished](Along::finish). The result has the same bits for any
/// number of parts.
///
/// ```
/// use consonance_kernels::cpu::axis::Along;
/// use consonance_spec::ReduceOp;
///
/// let (long, short) = (vec![1i32; 3 * 100_000], vec![1i32; 3 * 5]);
/// let tensors = [(long[..].into(), [3, 100_000, 1]), (short[..].into(), [3, 5, 1])];
/// let mut sum = Along::new(ReduceOp::Sum, &tensors)?.expect("integers have sums");
/// std::thread::scope(|scope| {
///     for part in sum.parts(2) {
///         scope.spawn(|| part.run());
///     }
/// });
/// assert_eq!(sum.finish()?.as_buf().as_slice(), Some(&[100_005; 3][..]));
/// # std::io::Result::Ok(())
/// ```
pub struct Along<'a> {
    op: ReduceOp,
    /// At least one.
    tensors: Vec<Tensor<'a>>,
    /// The number of elements that each result combines.
    elements: u64,
    target: Target,
    /// The number of accumulators or results that are not yet written.
    unwritten: AtomicU64,
}

/// The memory that the parts write.
enum Target {
    /// The results, where no tensor has more than a block.
    Results(HostMemory),
    /// The accumulators of all blocks of each tensor.
    Blocks(Vec<HostMemory>),
}

/// The work of one thread.
pub struct Part<'a> {
    pieces: Vec<Piece<'a>>,
    unwritten: &'a AtomicU64,
}

/// A range of the accumulators of a tensor's blocks, or of the results of all tensors.
struct Piece<'a> {
    tensors: &'a [Tensor<'a>],
    /// The range of accumulators or results.
    range: Range<usize>,
    /// The address of the first accumulator or result of the range.
    start: *mut u8,
    /// For results: the divisor of means, and the bytes that the whole reduction reads and writes.
    whole: Option<(u64, usize)>,
}

// SAFETY: only this piece writes its range, the memory outlives the piece, and nobody reads the
// range before the piece has run.
unsafe impl Send for Piece<'_> {}

impl<'a> Along<'a> {
    /// Prepares the reduction of row-major tensors of the shapes `[outer, axis, inner]` along their
    /// middle axis; `None` if the operation is not defined on their type. An empty axis gives the
    /// operation's identity; an operation without one gets no empty axis.
    ///
    /// # Errors
    /// The system's, if it has no memory for the results. An empty axis has results of any size.
    ///
    /// # Panics
    /// If there are no tensors, if a tensor does not have the number of elements that its shape
    /// says, or if tensors differ in type, `outer` or `inner`.
    pub fn new(op: ReduceOp, tensors: &[(HostBuf<'a>, [usize; 3])]) -> io::Result<Option<Along<'a>>> {
        Along::with_isa(op, tensors, Isa::best())
    }

    /// Does as [`new`](Along::new), in the instruction set `isa`; `None` also if the machine lacks
    /// it.
    ///
    /// # Errors
    /// As [`new`](Along::new).
    ///
    /// # Panics
    /// As [`new`](Along::new).
    pub fn with_isa(op: ReduceOp, tensors: &[(HostBuf<'a>, [usize; 3])], isa: Isa) -> io::Result<Option<Along<'a>>> {
        let &(first, [outer, _, inner]) = tensors.first().expect("a reduction of no tensors");
        for (input, shape) in tensors {
            assert_eq!(
                (input.dtype(), shape[0], shape[2]),
                (first.dtype(), outer, inner),
                "types and shapes of tensors"
            );
        }
        // The sum can wrap only if there are no results.
        let elements = tensors.iter().fold(0u64, |all, (_, [_, axis, _])| all.wrapping_add(*axis as u64));
        let tensors = tensors.iter().map(|&(input, shape)| Tensor::new(op, input, shape, isa));
        let Some(tensors) = tensors.collect::<io::Result<Option<Vec<Tensor<'_>>>>>()? else { return Ok(None) };
        let Some(result) = op.result(first.dtype()) else { return Ok(None) };
        // SAFETY: the parts write all of the memory before any of it is read; `finish` asserts
        // this.
        let (target, unwritten) = unsafe {
            if tensors.iter().all(|tensor| tensor.blocks() == 1) {
                (Target::Results(HostMemory::try_uninit(result, tensors[0].results())?), tensors[0].values())
            } else {
                let blocks = tensors.iter().map(|tensor| tensor.room()).collect::<io::Result<_>>()?;
                (Target::Blocks(blocks), tensors.iter().map(|tensor| tensor.values()).sum())
            }
        };
        Ok(Some(Along { op, tensors, elements, target, unwritten: AtomicU64::new(unwritten as u64) }))
    }

    /// Cuts the reduction into at most `count` parts of about the same size. All of them must run,
    /// whatever parts of an earlier call have done.
    pub fn parts(&mut self, count: usize) -> Vec<Part<'_>> {
        let Along { op, tensors, elements, target, unwritten } = self;
        let mut pieces: Vec<Vec<Piece<'_>>> = (0..count.min(MOST_PARTS)).map(|_| Vec::new()).collect();
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

    /// Returns the result.
    ///
    /// # Errors
    /// The system's, if it has no memory for the result.
    ///
    /// # Panics
    /// If some of the last [parts](Along::parts) have not run.
    pub fn finish(self) -> io::Result<HostMemory> {
        let Along { op, tensors, elements, target, unwritten } = self;
        assert_eq!(unwritten.into_inner(), 0, "what parts have not written");
        match target {
            Target::Results(results) => Ok(results),
            Target::Blocks(blocks) => {
                let partials = tensors.iter().zip(blocks).map(|(tensor, blocks)| tensor.partial(op, blocks));
                finish(&partials.collect::<Vec<_>>(), elements)
            }
        }
    }
}

/// Cuts the accumulators of a tensor, or the results of all tensors, into a piece for each thread.
/// Returns the number of accumulators or results.
fn deal<'a>(
    tensors: &'a [Tensor<'a>],
    memory: &'a mut HostMemory,
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
    /// Computes this part on the current thread, and writes it.
    pub fn run(self) {
        self.pieces.iter().for_each(Piece::run);
        let written: usize = self.pieces.iter().map(|piece| piece.range.len()).sum();
        // A thread that finds nothing unwritten also sees what was written.
        self.unwritten.fetch_sub(written as u64, Ordering::Release);
    }
}

impl Piece<'_> {
    fn run(&self) {
        let Piece { tensors, ref range, start, whole } = *self;
        let (tensor, kernel) = (tensors[0], tensors[0].kernel());
        let most = tensors.iter().map(Tensor::scratch_bytes).max().expect("there is a tensor");
        // SAFETY: every accumulator is written before it is read.
        let mut scratch = unsafe { HostMemory::uninit(DType::U8, most + tensors.len() * ROOM_BYTES) };
        let scratch = scratch.as_buf_mut().as_mut_ptr();
        let source = |index: usize| scratch.wrapping_add(most + index * ROOM_BYTES);
        let sources: Vec<*const u8> = (0..tensors.len()).map(|index| source(index).cast_const()).collect();
        let (mut at, mut target) = (range.start, start);
        while at < range.end {
            let count = tensor.chunk(at, range.end);
            // SAFETY: the chunk is in the range, which starts at `start`; if results are computed,
            // all tensors have the same number of accumulators.
            unsafe {
                for (index, tensor) in tensors.iter().enumerate() {
                    tensor.reduce(at, count, source(index), scratch);
                }
                if let Some((divisor, of)) = whole {
                    kernel.finish(&sources, &[target], count, divisor, of);
                    target = target.add(count * kernel.target_bytes);
                } else {
                    copy_private(source(0), target, count * kernel.acc_bytes);
                    target = target.add(count * kernel.acc_bytes);
                }
            }
            at += count;
        }
    }
}
