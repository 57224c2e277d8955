//! Reductions of a tensor along one axis, by several replicas, each of which has some of the elements.
//!
//! A [`Partial`] is what one replica's elements give, in the type that is computed in, so that [`finish`] rounds once however
//! the elements were split. The order is the spec's (`order.rs`): blocks of 4096 consecutive elements along the axis, of
//! which lane `j` takes the elements `j`, `j + 32`, …; lanes, blocks and replicas meet by the balanced tree.

use crate::{
    buffer::{Buf, Memory},
    isa::Isa,
    reduce::{Kernel, LANES, Rows},
};
use consonance_spec::{DType, ReduceOp};
use std::ptr;

/// Elements along the axis that are combined in lanes before they meet other blocks.
const BLOCK: usize = 4096;

/// Bytes of the accumulators of a block's lanes: a part of the second-level cache, so that a row is read in pieces of several
/// kilobytes. Pieces for the first-level cache are too short for the prefetchers: they made it half as fast.
/// (Tests have short rows.)
const ACCUMULATORS_BYTES: usize = if cfg!(test) { 16 << 10 } else { 128 << 10 };

/// One replica's reduction of a tensor along an axis, kept in the type that is computed in.
///
/// ```
/// use consonance_kernels::axis::{Partial, finish};
/// use consonance_spec::ReduceOp;
///
/// // A batch of two rows on one replica and of one row on another; the mean of the three.
/// let (two, one) = ([1.0f32, 10.0, 2.0, 20.0], [6.0f32, 60.0]);
/// let partials = [
///     Partial::new(ReduceOp::Mean, two[..].into(), 1, 2, 2).unwrap(),
///     Partial::new(ReduceOp::Mean, one[..].into(), 1, 1, 2).unwrap(),
/// ];
/// assert_eq!(finish(&partials, 3).as_buf().as_slice(), Some(&[3.0f32, 30.0][..]));
/// ```
pub struct Partial {
    op: ReduceOp,
    dtype: DType,
    kernel: &'static Kernel,
    /// How many results there are.
    count: usize,
    /// The accumulators, `count` of the kernel's.
    accumulators: Vec<u128>,
}

impl Partial {
    /// Reduces a row-major `[outer, axis, inner]` tensor along its middle axis; `None` if the operation is not defined on its
    /// type. An empty axis gives the operation's identity.
    ///
    /// # Panics
    /// If the input does not have `outer * axis * inner` elements.
    pub fn new(op: ReduceOp, input: Buf<'_>, outer: usize, axis: usize, inner: usize) -> Option<Partial> {
        Partial::with_isa(op, input, [outer, axis, inner], Isa::best())
    }

    /// [`new`](Partial::new) for the shape `[outer, axis, inner]`, in this instruction set; `None` also if the machine lacks it.
    ///
    /// # Panics
    /// If the input has not as many elements as the shape says.
    pub fn with_isa(op: ReduceOp, input: Buf<'_>, shape: [usize; 3], isa: Isa) -> Option<Partial> {
        let elements = shape.into_iter().try_fold(1usize, usize::checked_mul);
        assert_eq!(elements, Some(input.count()), "elements of the shape {shape:?}, and of the input");
        let kernel = Kernel::new(op, input.dtype(), isa)?;
        let [outer, axis, inner] = shape;
        // A kernel of bytes takes each byte of a wider element for an element of the innermost axis.
        let columns = inner * input.dtype().size() / kernel.source_bytes;
        let bytes = outer * columns * kernel.acc_bytes;
        let mut accumulators = vec![0u128; bytes.div_ceil(size_of::<u128>())];
        let result = accumulators.as_mut_ptr().cast::<u8>();
        // SAFETY: there are the shape's elements, and accumulators for its results, aligned for the widest.
        unsafe {
            if axis == 0 {
                (kernel.identity)(result, outer * columns);
            } else if columns > 0 {
                Tensor { kernel, axis, inner: columns }.all(input.as_ptr(), outer, result);
            }
        }
        Some(Partial { op, dtype: input.dtype(), kernel, count: outer * inner, accumulators })
    }

    /// The accumulators, for a process on the same host, which makes a partial of them [there](Partial::with_bytes).
    pub fn to_bytes(&self) -> Vec<u8> {
        self.accumulators.iter().flat_map(|accumulator| accumulator.to_ne_bytes()).collect()
    }

    /// Another replica's partial of the same operation, element type and number of results, from its [bytes](Partial::to_bytes).
    ///
    /// # Panics
    /// If there are not as many bytes as of this one.
    pub fn with_bytes(&self, bytes: &[u8]) -> Partial {
        let (accumulators, rest) = bytes.as_chunks();
        assert_eq!((accumulators.len(), rest.len()), (self.accumulators.len(), 0), "accumulators of two partials");
        let accumulators = accumulators.iter().map(|&accumulator| u128::from_ne_bytes(accumulator)).collect();
        Partial { accumulators, ..*self }
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
    let mut memory = Memory::zeroed(op.result(dtype).expect("a partial's operation is defined"), results);
    let elements = memory.as_buf().bytes() / kernel.target_bytes;
    let sources: Vec<*const u8> = partials.iter().map(|partial| partial.accumulators.as_ptr().cast()).collect();
    let target = memory.as_buf_mut().as_mut_ptr();
    let divisor = if op == ReduceOp::Mean { count } else { 1 };
    // SAFETY: each partial has an accumulator and the memory an element for each result; the memory is new.
    unsafe { kernel.finish(&sources, &[target], elements, divisor) }
    memory
}

/// A tensor that is reduced, slice by slice and in strips of columns.
#[derive(Clone, Copy)]
struct Tensor {
    kernel: &'static Kernel,
    /// Rows of a slice.
    axis: usize,
    /// Elements from a row to the next.
    inner: usize,
}

impl Tensor {
    /// Reduces `outer` slices of `axis > 0` rows of `inner > 0` elements.
    ///
    /// # Safety
    /// `source` is valid for reads of the elements, `result` for writes of `outer * inner` accumulators; they do not overlap.
    unsafe fn all(self, source: *const u8, outer: usize, result: *mut u8) {
        let Tensor { kernel, axis, inner } = self;
        let most = ACCUMULATORS_BYTES / (LANES * kernel.acc_bytes);
        // Strips of about the same width, of whole tiles; of an odd number of them, since lanes at a distance of a power of two
        // would fall on the same few lines of the first-level cache.
        let tiles = inner.div_ceil(inner.div_ceil(most)).div_ceil(LANES) | 1;
        let width = inner.min(tiles * LANES);
        let digits = axis.div_ceil(BLOCK).ilog2() as usize + 1;
        // Every accumulator is written before it is read.
        let mut scratch = Vec::<u128>::with_capacity(((LANES + digits) * width * kernel.acc_bytes).div_ceil(16));
        for slice in 0..outer {
            for first in (0..inner).step_by(width) {
                let columns = width.min(inner - first);
                // SAFETY: the strip is in the slice, its results are next to each other, and the scratch is large enough.
                unsafe {
                    let source = source.add((slice * axis * inner + first) * kernel.source_bytes);
                    let scratch = scratch.as_mut_ptr().cast::<u8>();
                    let total = self.strip(source, columns, scratch);
                    let result = result.add((slice * inner + first) * kernel.acc_bytes);
                    ptr::copy_nonoverlapping(total, result, columns * kernel.acc_bytes);
                }
            }
        }
    }

    /// Reduces the first `columns` columns of a slice; gives the address of their results, in the scratch.
    ///
    /// Blocks meet as a binary counter carries, where each digit is a finished subtree.
    ///
    /// # Safety
    /// As for [`all`](Tensor::all); `scratch` holds rows of `columns` accumulators: the lanes, and a digit for each doubling of
    /// the blocks.
    unsafe fn strip(self, source: *const u8, columns: usize, scratch: *mut u8) -> *const u8 {
        let Tensor { kernel, axis, inner } = self;
        let row_bytes = columns * kernel.acc_bytes;
        // SAFETY: the digits follow the lanes.
        let digit = |depth: usize| unsafe { scratch.add((LANES + depth) * row_bytes) };
        let mut depth = 0;
        for (index, start) in (0..axis).step_by(BLOCK).enumerate() {
            let rows = BLOCK.min(axis - start);
            // SAFETY: the block is in the slice; a digit and the lanes are apart; the digits up to `depth` are written.
            unsafe {
                self.block(source.add(start * inner * kernel.source_bytes), rows, columns, scratch);
                if rows == axis {
                    return scratch;
                }
                ptr::copy_nonoverlapping(scratch, digit(depth), row_bytes);
                let carries = if start + rows == axis { depth } else { index.trailing_ones() as usize };
                for _ in 0..carries {
                    depth -= 1;
                    (kernel.tree)(digit(depth), 2, columns);
                }
            }
            depth += 1;
        }
        digit(0)
    }

    /// Reduces a block of rows into the first of the lanes.
    ///
    /// # Safety
    /// As for [`strip`](Tensor::strip).
    unsafe fn block(self, source: *const u8, rows: usize, columns: usize, lanes: *mut u8) {
        let Tensor { kernel, inner, .. } = self;
        // SAFETY: row `row` is in the slice.
        let at = |row: usize| unsafe { source.add(row * inner * kernel.source_bytes) };
        // SAFETY: the rows are in the slice and their lanes in the scratch; a row meets the lane that it belongs to.
        unsafe {
            if columns < inner {
                for row in 0..rows {
                    self.meet(at(row), lanes.add(row % LANES * columns * kernel.acc_bytes), columns, row < LANES);
                }
            } else if columns > 1 {
                // Rows without a gap are one run of elements, and their lanes one run of accumulators.
                for row in (0..rows).step_by(LANES) {
                    self.meet(at(row), lanes, LANES.min(rows - row) * columns, row == 0);
                }
            } else {
                // The lanes are one tile, which stays in registers.
                let whole = rows / LANES;
                if whole > 0 {
                    (kernel.accumulate)(Rows { first: source, stride: LANES, rows: whole }, lanes, LANES, true);
                }
                self.meet(at(whole * LANES), lanes, rows % LANES, whole == 0);
            }
            (kernel.tree)(lanes, rows.min(LANES), columns);
        }
    }

    /// `accumulators[i] = accumulators[i] ⊕ source[i]` for any number of elements; a fresh accumulator is the element.
    ///
    /// # Safety
    /// `source` is valid for reads of `count` elements, `accumulators` for reads and writes; they do not overlap.
    unsafe fn meet(self, source: *const u8, accumulators: *mut u8, count: usize, fresh: bool) {
        let Kernel { accumulate, source_bytes, acc_bytes, .. } = *self.kernel;
        let row = |first: *const u8| Rows { first, stride: 0, rows: 1 };
        let whole = count - count % LANES;
        // SAFETY: whole tiles are in bounds.
        unsafe { accumulate(row(source), accumulators, whole, fresh) }
        if whole == count {
            return;
        }
        // Part of a tile goes by way of a whole one, which zeros fill up.
        let (mut elements, mut tile) = ([0u128; LANES], [0u128; LANES]);
        let (elements, tile) = (elements.as_mut_ptr().cast::<u8>(), tile.as_mut_ptr().cast::<u8>());
        // SAFETY: elements and accumulators from `whole` on are in bounds and fit a tile of the widest.
        unsafe {
            let accumulators = accumulators.add(whole * acc_bytes);
            ptr::copy_nonoverlapping(source.add(whole * source_bytes), elements, (count - whole) * source_bytes);
            ptr::copy_nonoverlapping(accumulators, tile, (count - whole) * acc_bytes);
            accumulate(row(elements), tile, LANES, fresh);
            ptr::copy_nonoverlapping(tile, accumulators, (count - whole) * acc_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::sample::{Sample, samples};
    use consonance_spec::{
        for_each_dtype,
        order::{fold, fold_along},
    };

    /// Sizes along the axis at the edges of lanes and blocks: of one replica, and of several.
    const AXES: [&[usize]; 13] = [
        &[0],
        &[1],
        &[31],
        &[32],
        &[33],
        &[164],
        &[4095],
        &[4096],
        &[4097],
        &[8193],
        &[12300],
        &[0, 5, 0],
        &[33, 4100, 1, 64, 7],
    ];

    /// `(outer, inner)`: one tile of lanes, rows that follow each other, and strips (of more than one width).
    const AROUND: [(usize, usize); 9] = [(1, 1), (3, 1), (1, 2), (3, 7), (1, 16), (1, 33), (1, 140), (2, 700), (0, 3)];

    /// The result at each place beside the axis, as the spec has it.
    fn expected<T: Sample<Mean: Sample>>(op: ReduceOp, tensors: &[Vec<T>], outer: usize, inner: usize) -> Vec<u64> {
        let column = |tensor: &[T], place: usize| -> Vec<T> {
            let axis = tensor.len() / (outer * inner);
            let (slice, column) = (place / inner, place % inner);
            (0..axis).map(|row| tensor[(slice * axis + row) * inner + column]).collect()
        };
        let element = |place: usize| {
            let columns: Vec<Vec<T>> = tensors.iter().map(|tensor| column(tensor, place)).collect();
            let count = columns.iter().map(Vec::len).sum();
            if op == ReduceOp::Mean {
                let total = |column: &Vec<T>| column.iter().map(|element| element.total()).collect::<Vec<_>>();
                let totals: Vec<T::Total> =
                    columns.iter().map(|column| fold_along(&total(column), T::add).unwrap_or_default()).collect();
                return T::quotient(fold(&totals, T::add).unwrap(), count).key();
            }
            let combine = |a, b| T::combine(op, a, b);
            let widen = |column: &Vec<T>| column.iter().map(|element| element.widen()).collect::<Vec<_>>();
            let partials: Vec<T::Acc> = columns
                .iter()
                .map(|column| fold_along(&widen(column), combine).unwrap_or_else(|| T::identity(op)))
                .collect();
            T::finish(op, fold(&partials, combine).unwrap(), count).key()
        };
        (0..outer * inner).map(element).collect()
    }

    fn check<T: Sample<Mean: Sample>>(op: ReduceOp, axes: &[usize], outer: usize, inner: usize) {
        let tensor = |(replica, axis): (usize, &usize)| samples::<T>(replica as u64, outer * axis * inner);
        let tensors: Vec<Vec<T>> = axes.iter().enumerate().map(tensor).collect();
        let expected = expected(op, &tensors, outer, inner);
        for isa in Isa::available() {
            let partial = |(tensor, axis): (&Vec<T>, &usize)| {
                Partial::with_isa(op, tensor[..].into(), [outer, *axis, inner], isa).unwrap()
            };
            let partials: Vec<Partial> = tensors.iter().zip(axes).map(partial).collect();
            let result = finish(&partials, axes.iter().sum::<usize>() as u64);
            let result: Vec<u64> = match op {
                ReduceOp::Mean => result.as_buf().as_slice::<T::Mean>().unwrap().iter().map(|e| e.key()).collect(),
                _ => result.as_buf().as_slice::<T>().unwrap().iter().map(|e| e.key()).collect(),
            };
            assert_eq!(result, expected, "{op} of {} in {isa}: [{outer}, {axes:?}, {inner}]", T::DTYPE);
        }
    }

    fn check_type<T: Sample<Mean: Sample>>() {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.result(T::DTYPE).is_some()) {
            for (outer, inner) in AROUND {
                // Strips of several blocks are many elements, so that one operation has to do for them.
                let most = if op == ReduceOp::Sum { 600_000 } else { 40_000 };
                for axes in AXES.iter().filter(|axes| outer * inner * axes.iter().sum::<usize>() < most) {
                    check::<T>(op, axes, outer, inner);
                }
            }
        }
    }

    macro_rules! check_types {
        ($(($type:ty, $variant:ident, $name:literal, $class:ident))*) => { $(check_type::<$type>();)* };
    }

    #[test]
    fn every_reduction_along_an_axis_has_the_bits_of_the_spec() {
        for_each_dtype!(check_types);
    }
}
