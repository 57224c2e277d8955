//! Reductions of a tensor along one axis, by several replicas, each of which has some of the elements.
//!
//! A [`Partial`] is what one replica's elements give, in the type that is computed in, so that [`finish`] rounds once however
//! the elements were split. The order is the spec's (`order.rs`): blocks of 4096 consecutive elements along the axis, of
//! which lane `j` takes the elements `j`, `j + 32`, …; lanes, blocks and replicas meet by the balanced tree.
//!
//! Blocks are also what threads share: an [`Along`] is cut into parts, each some columns of some blocks.

use crate::{
    buffer::{Buf, Memory},
    isa::Isa,
    reduce::{Kernel, LANES, Rows},
};
use consonance_spec::{DType, ReduceOp, partition};
use std::{array, ptr};

/// Elements along the axis that are combined in lanes before they meet other blocks.
const BLOCK: usize = 4096;

/// Columns from which on rows meet column by column; the narrower ones of many blocks meet their neighbours at once.
const WIDE: usize = LANES;

/// Lanes of wide rows that are read before they meet: a subtree.
const GROUP: usize = 8;

/// Bytes of the accumulators of a strip's row: long enough for the prefetchers, and a group stays in the caches. (Tests have
/// short rows.)
const STRIP_BYTES: usize = if cfg!(test) { 512 } else { 8 << 10 };

/// Bytes of the accumulators of a block's lanes up to which all its columns are read as one run: the first-level cache.
const RUN_BYTES: usize = if cfg!(test) { 8 << 10 } else { 32 << 10 };

/// Bytes of the accumulators of the lanes of blocks that are reduced at a time: half of the first-level cache.
const NARROW_BYTES: usize = 16 << 10;

/// Bytes to what will be read soon in a run of elements: past a page, which the machine's own prefetchers do not look beyond.
const AHEAD_BYTES: usize = 4 << 10;

/// Blocks for each part from which on parts are cut between blocks; with fewer they would be uneven.
const BLOCKS_A_PART: usize = if cfg!(test) { 2 } else { 16 };

/// Blocks of a single column that are reduced at a time.
const TOGETHER: usize = 4;

/// Columns that parts are cut at otherwise: some cache lines.
const BORDER: usize = 128;

/// Blocks that meet at a time, where there are many: a power of two, so that they are a subtree.
const FEW_BLOCKS: usize = 1024;

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
    /// The accumulators, `count` of the kernel's.
    accumulators: Vec<u128>,
}

impl Partial {
    /// Reduces a row-major tensor of the shape `[outer, axis, inner]` along its middle axis; `None` if the operation is not
    /// defined on its type. An empty axis gives the operation's identity.
    ///
    /// # Panics
    /// If the input has not as many elements as the shape says.
    pub fn new(op: ReduceOp, input: Buf<'_>, shape: [usize; 3]) -> Option<Partial> {
        Along::new(op, input, shape).map(Along::alone)
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

/// A replica's reduction that several threads share: its [parts](Along::parts) may run anywhere, in any order, and all must have
/// run before it is [finished](Along::finish). The result has the same bits for any number of parts.
///
/// ```
/// use consonance_kernels::axis::{Along, finish};
/// use consonance_spec::ReduceOp;
///
/// let elements = vec![1i32; 3 * 100_000];
/// let mut sum = Along::new(ReduceOp::Sum, elements[..].into(), [3, 100_000, 1]).unwrap();
/// std::thread::scope(|scope| {
///     for part in sum.parts(2) {
///         scope.spawn(|| part.run());
///     }
/// });
/// assert_eq!(finish(&[sum.finish()], 100_000).as_buf().as_slice(), Some(&[100_000; 3][..]));
/// ```
pub struct Along<'a> {
    op: ReduceOp,
    tensor: Tensor<'a>,
    /// The accumulators of every block: a tensor of the shape `[outer, blocks, inner]`.
    values: Vec<u128>,
}

/// Some columns of some blocks, for one thread.
pub struct Part<'a> {
    tensor: Tensor<'a>,
    /// Accumulators before the first.
    first: usize,
    values: &'a mut [u8],
}

impl<'a> Along<'a> {
    /// What [`Partial::new`] does, not yet done.
    ///
    /// # Panics
    /// As [`Partial::new`].
    pub fn new(op: ReduceOp, input: Buf<'a>, shape: [usize; 3]) -> Option<Along<'a>> {
        Along::with_isa(op, input, shape, Isa::best())
    }

    /// [`new`](Along::new), in this instruction set; `None` also if the machine lacks it.
    ///
    /// # Panics
    /// As [`Partial::new`].
    pub fn with_isa(op: ReduceOp, input: Buf<'a>, shape: [usize; 3], isa: Isa) -> Option<Along<'a>> {
        let elements = shape.into_iter().try_fold(1usize, usize::checked_mul);
        assert_eq!(elements, Some(input.count()), "elements of the shape {shape:?}, and of the input");
        let kernel = Kernel::new(op, input.dtype(), isa)?;
        let [outer, axis, inner] = shape;
        // A kernel of bytes takes each byte of a wider element for an element of the innermost axis.
        let inner = inner * input.dtype().size() / kernel.source_bytes;
        let tensor = Tensor { input, kernel, outer, axis, inner };
        let mut values = vec![0u128; tensor.value_bytes().div_ceil(size_of::<u128>())];
        if axis == 0 {
            // SAFETY: there are so many accumulators, aligned for the widest.
            unsafe { (kernel.identity)(values.as_mut_ptr().cast(), outer * inner) }
        }
        Some(Along { op, tensor, values })
    }

    /// At most so many parts, of about the same size.
    pub fn parts(&mut self, count: usize) -> Vec<Part<'_>> {
        let tensor = self.tensor;
        let Tensor { kernel, outer, axis, inner, .. } = tensor;
        let blocks = outer * tensor.blocks();
        if axis == 0 || blocks * inner == 0 {
            return Vec::new();
        }
        let unit = if blocks >= BLOCKS_A_PART * count { inner } else { BORDER };
        // SAFETY: the values have so many bytes, which are initialized; `u8` needs no alignment.
        let mut rest =
            unsafe { std::slice::from_raw_parts_mut(self.values.as_mut_ptr().cast::<u8>(), tensor.value_bytes()) };
        let mut parts = Vec::with_capacity(count);
        for index in 0..count {
            let range = partition::aligned_block(blocks * inner, unit, count, index);
            let (values, after) = rest.split_at_mut(range.len() * kernel.acc_bytes);
            rest = after;
            if !range.is_empty() {
                parts.push(Part { tensor, first: range.start, values });
            }
        }
        parts
    }

    /// The result, when all parts have run.
    pub fn finish(self) -> Partial {
        let Along { op, tensor, mut values } = self;
        let Tensor { input, kernel, outer, inner, .. } = tensor;
        let (blocks, row_bytes) = (tensor.blocks(), inner * kernel.acc_bytes);
        if blocks > 1 {
            let start = values.as_mut_ptr().cast::<u8>();
            for slice in 0..outer {
                // SAFETY: a slice's blocks, and its results, which do not come after them, are in the values.
                unsafe {
                    let source = start.add(slice * blocks * row_bytes);
                    tensor.meet(source, blocks);
                    ptr::copy(source, start.add(slice * row_bytes), row_bytes);
                }
            }
            values.truncate((outer * row_bytes).div_ceil(size_of::<u128>()));
        }
        let count = outer * inner * kernel.source_bytes / input.dtype().size();
        Partial { op, dtype: input.dtype(), kernel, count, accumulators: values }
    }

    /// The result, all by this thread.
    fn alone(mut self) -> Partial {
        self.parts(1).into_iter().for_each(Part::run);
        self.finish()
    }
}

impl Part<'_> {
    /// Reduces it.
    pub fn run(self) {
        let Part { tensor, first, values } = self;
        let Tensor { kernel, inner, .. } = tensor;
        let end = first + values.len() / kernel.acc_bytes;
        // Every accumulator is written before it is read.
        let mut scratch = Vec::<u128>::with_capacity(tensor.scratch_bytes().div_ceil(size_of::<u128>()));
        let scratch = scratch.as_mut_ptr().cast::<u8>();
        let mut at = first;
        while at < end {
            // SAFETY: the part begins with the accumulator `first` of a tensor that has `end` at least.
            unsafe {
                let result = values.as_mut_ptr().add((at - first) * kernel.acc_bytes);
                let (block, column) = (at / inner, at % inner);
                if inner >= WIDE || column > 0 || end - at < inner {
                    let columns = (inner - column).min(end - at);
                    tensor.wide(block, column, columns, result, scratch);
                    at += columns;
                } else {
                    at += inner * tensor.narrow(block, (end - at) / inner, result, scratch);
                }
            }
        }
    }
}

/// A tensor that is reduced along its middle axis.
#[derive(Clone, Copy)]
struct Tensor<'a> {
    input: Buf<'a>,
    kernel: &'static Kernel,
    outer: usize,
    axis: usize,
    /// Elements of the kernel's from a row to the next.
    inner: usize,
}

impl Tensor<'_> {
    /// Blocks of a slice; of an empty one there is one, which is empty.
    fn blocks(self) -> usize {
        self.axis.div_ceil(BLOCK).max(1)
    }

    /// Bytes of the accumulators of all blocks.
    fn value_bytes(self) -> usize {
        self.outer * self.blocks() * self.inner * self.kernel.acc_bytes
    }

    /// Accumulators from a row of a strip to the next: an odd number of tiles, since rows at a distance of a power of two would
    /// fall on the same few lines of the first-level cache.
    fn pitch(self) -> usize {
        let most = STRIP_BYTES / self.kernel.acc_bytes;
        // Strips of about the same width, of whole tiles.
        let strip = self.inner.div_ceil(self.inner.div_ceil(most)).div_ceil(LANES);
        (strip | 1) * LANES
    }

    /// With room for a tile at the end of any row.
    fn scratch_bytes(self) -> usize {
        let strip = (GROUP + LANES / GROUP) * self.pitch();
        (strip * self.kernel.acc_bytes).max(RUN_BYTES).max(NARROW_BYTES) + LANES * self.kernel.acc_bytes
    }

    /// The first row of a block, counted over all slices, and how many it has.
    fn rows(self, block: usize) -> (usize, usize) {
        let (slice, index) = (block / self.blocks(), block % self.blocks());
        (slice * self.axis + index * BLOCK, BLOCK.min(self.axis - index * BLOCK))
    }

    /// The address of a column of a row.
    fn at(self, row: usize, column: usize) -> *const u8 {
        self.input.as_ptr().wrapping_add((row * self.inner + column) * self.kernel.source_bytes)
    }

    /// Reduces some columns of a block.
    ///
    /// # Safety
    /// The block and its columns exist; `result` is valid for writes of so many accumulators, `scratch` of its bytes.
    unsafe fn wide(self, block: usize, column: usize, columns: usize, result: *mut u8, scratch: *mut u8) {
        let Tensor { kernel, inner, .. } = self;
        let (first, rows) = self.rows(block);
        if rows <= GROUP {
            let sources: [*const u8; GROUP] = array::from_fn(|row| self.at(first + row, column));
            // SAFETY: the columns of the rows are in bounds, and are no results.
            return unsafe { kernel.keep(&sources[..rows], result, columns) };
        }
        if rows > LANES && columns == inner && LANES * inner * kernel.acc_bytes <= RUN_BYTES {
            let (run, rest) = (LANES * inner, rows % LANES);
            let lanes: [*const u8; LANES] =
                array::from_fn(|lane| scratch.wrapping_add(lane * inner * kernel.acc_bytes).cast_const());
            // SAFETY: the block is in bounds, and the accumulators of its lanes fit the scratch.
            return unsafe {
                (kernel.accumulate)(Rows::new(self.at(first, 0), run, rows / LANES, AHEAD_BYTES), scratch, run, true);
                self.run(first + rows - rest, rest * inner, scratch, false);
                kernel.partial(&lanes, result, inner);
            };
        }
        let pitch = self.pitch();
        for start in (0..columns).step_by(pitch) {
            // SAFETY: the strip is in the block.
            unsafe {
                let result = result.add(start * kernel.acc_bytes);
                self.strip((first, rows), (column + start, pitch.min(columns - start)), result, scratch);
            }
        }
    }

    /// Reduces one strip of a block, group by group of its lanes.
    ///
    /// # Safety
    /// As for [`wide`](Tensor::wide), with at most a pitch of columns.
    unsafe fn strip(
        self,
        (first, rows): (usize, usize),
        (column, columns): (usize, usize),
        result: *mut u8,
        scratch: *mut u8,
    ) {
        let Tensor { kernel, .. } = self;
        let row_bytes = self.pitch() * kernel.acc_bytes;
        let groups: [*mut u8; LANES / GROUP] = array::from_fn(|group| scratch.wrapping_add(group * row_bytes));
        let lanes: [*mut u8; GROUP] = array::from_fn(|lane| scratch.wrapping_add((groups.len() + lane) * row_bytes));
        let count = rows.min(LANES).div_ceil(GROUP);
        for (group, &total) in groups[..count].iter().enumerate() {
            let first = first + group * GROUP;
            let rows = rows - group * GROUP;
            // SAFETY: the strip is in the block; the scratch has room for a group, and for what groups give.
            unsafe {
                if rows <= LANES - group * GROUP {
                    let sources: [*const u8; GROUP] = array::from_fn(|row| self.at(first + row, column));
                    kernel.keep(&sources[..rows.min(GROUP)], total, columns);
                } else {
                    for (lane, &accumulators) in lanes.iter().enumerate() {
                        self.lane(first + lane, (rows - lane).div_ceil(LANES), column, columns, accumulators);
                    }
                    kernel.partial(&lanes.map(<*mut u8>::cast_const), total, columns);
                }
            }
        }
        // SAFETY: as above.
        unsafe { kernel.partial(&groups.map(<*mut u8>::cast_const)[..count], result, columns) }
    }

    /// Reduces some columns of one lane's rows: of `first`, `first + LANES`, ….
    ///
    /// # Safety
    /// There are so many rows and columns; `accumulators` is valid for reads and writes of as many, in whole tiles.
    unsafe fn lane(self, first: usize, rows: usize, column: usize, columns: usize, accumulators: *mut u8) {
        let Tensor { kernel, inner, .. } = self;
        let stride = LANES * inner;
        // The rows that are met next, or those of the next lane.
        let ahead = if rows > 8 { 4 * stride } else { inner } * kernel.source_bytes;
        let whole = columns - columns % LANES;
        let last = self.at(first + (rows - 1) * LANES, column + whole);
        // The last tile may read past the strip, where elements follow: nobody reads what becomes of those.
        let tiles = if self.has_tile(last) { columns.next_multiple_of(LANES) } else { whole };
        // SAFETY: the tiles are in bounds; the rest is.
        unsafe {
            (kernel.accumulate)(Rows::new(self.at(first, column), stride, rows, ahead), accumulators, tiles, true);
            if tiles < columns {
                for row in 0..rows {
                    let source = self.at(first + row * LANES, column + tiles);
                    self.part_of_a_tile(source, accumulators.add(tiles * kernel.acc_bytes), columns - tiles, row == 0);
                }
            }
        }
    }

    /// Reduces blocks of narrow rows, at most `most` from this one on; gives how many it has.
    ///
    /// # Safety
    /// There are so many blocks; `result` is valid for writes of all their columns, `scratch` of its bytes.
    unsafe fn narrow(self, block: usize, most: usize, result: *mut u8, scratch: *mut u8) -> usize {
        let Tensor { kernel, inner, axis, .. } = self;
        let (first, rows) = self.rows(block);
        let run = rows.min(LANES) * inner;
        // Blocks of as many rows, which follow each other without a gap: slices, or blocks of one.
        let alike = if axis <= BLOCK { most } else { (axis / BLOCK).saturating_sub(block % self.blocks()).max(1) };
        let blocks = most.min(alike).min((NARROW_BYTES / (run * kernel.acc_bytes)).max(1));
        // SAFETY: the blocks are in bounds, and their lanes fit the scratch.
        unsafe {
            if rows <= LANES {
                self.run(first, blocks * run, scratch, true);
            } else if inner == 1 {
                for index in (0..blocks).step_by(TOGETHER) {
                    let lanes = scratch.add(index * run * kernel.acc_bytes);
                    self.columns(first + index * rows, rows, TOGETHER.min(blocks - index), lanes);
                }
            } else {
                for index in 0..blocks {
                    let (first, rest) = (first + index * rows, rows % LANES);
                    let lanes = scratch.add(index * run * kernel.acc_bytes);
                    (kernel.accumulate)(Rows::new(self.at(first, 0), run, rows / LANES, AHEAD_BYTES), lanes, run, true);
                    self.run(first + rows - rest, rest * inner, lanes, false);
                }
            }
            (kernel.neighbours)(scratch, blocks, run / inner, inner);
            ptr::copy_nonoverlapping(scratch, result, blocks * inner * kernel.acc_bytes);
        }
        blocks
    }

    /// Reduces `blocks` blocks of `rows` single elements into lanes: each is a tile of its own.
    ///
    /// # Safety
    /// There are so many blocks, of [`LANES`] rows at least; `lanes` is valid for reads and writes of their accumulators.
    unsafe fn columns(self, first: usize, rows: usize, blocks: usize, lanes: *mut u8) {
        let Tensor { kernel, .. } = self;
        let source = Rows { pitch: rows, ..Rows::new(self.at(first, 0), LANES, rows / LANES, AHEAD_BYTES) };
        // SAFETY: the blocks are in bounds, and so are their last tiles where it is asked.
        unsafe {
            (kernel.accumulate)(source, lanes, blocks * LANES, true);
            let rest = rows % LANES;
            if rest == 0 {
                return;
            }
            let last = first + blocks * rows - rest;
            let whole = if self.has_tile(self.at(last, 0)) { blocks } else { blocks - 1 };
            let source = Rows { pitch: rows, lanes: rest, ..Rows::new(self.at(first + rows - rest, 0), 0, 1, 0) };
            (kernel.accumulate)(source, lanes, whole * LANES, false);
            if whole < blocks {
                self.run(last, rest, lanes.add(whole * LANES * kernel.acc_bytes), false);
            }
        }
    }

    /// `accumulators[i] = accumulators[i] ⊕ element[i]` for a run of elements from a row on; a fresh accumulator is the element.
    ///
    /// # Safety
    /// The elements are in bounds; `accumulators` is valid for reads and writes of as many, in whole tiles.
    unsafe fn run(self, row: usize, count: usize, accumulators: *mut u8, fresh: bool) {
        let Kernel { accumulate, source_bytes, acc_bytes, .. } = *self.kernel;
        let (source, whole) = (self.at(row, 0), count - count % LANES);
        // SAFETY: whole tiles are in bounds, and so is the rest.
        unsafe {
            accumulate(Rows::new(source, 0, 1, AHEAD_BYTES), accumulators, whole, fresh);
            if whole < count {
                let (source, accumulators) = (source.add(whole * source_bytes), accumulators.add(whole * acc_bytes));
                self.part_of_a_tile(source, accumulators, count - whole, fresh);
            }
        }
    }

    /// A [`run`](Tensor::run) of less than a tile; where a whole one would read past the tensor, from a copy.
    ///
    /// # Safety
    /// As for [`run`](Tensor::run).
    unsafe fn part_of_a_tile(self, source: *const u8, accumulators: *mut u8, count: usize, fresh: bool) {
        let Kernel { accumulate, source_bytes, .. } = *self.kernel;
        let rows = |first: *const u8| Rows { lanes: count, ..Rows::new(first, 0, 1, 0) };
        // SAFETY: the tile is in bounds, or the elements are, and fit a tile of the widest.
        unsafe {
            if self.has_tile(source) {
                return accumulate(rows(source), accumulators, LANES, fresh);
            }
            let mut elements = [0u128; LANES];
            let elements = elements.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(source, elements, count * source_bytes);
            accumulate(rows(elements), accumulators, LANES, fresh);
        }
    }

    /// Whether a tile at an address in the tensor does not reach past it.
    fn has_tile(self, source: *const u8) -> bool {
        let end = self.input.as_ptr().addr() + self.input.bytes();
        source.addr() + LANES * self.kernel.source_bytes <= end
    }

    /// Combines `rows` rows of accumulators by the balanced tree into the first; the others are scratch.
    ///
    /// # Safety
    /// `values` is valid for reads and writes of the rows.
    unsafe fn meet(self, values: *mut u8, rows: usize) {
        let Tensor { kernel, inner, .. } = self;
        if inner < WIDE {
            // SAFETY: the caller vouches for the rows.
            return unsafe { (kernel.neighbours)(values, 1, rows, inner) };
        }
        let row = |index: usize| values.wrapping_add(index * inner * kernel.acc_bytes);
        let mut distance = 1;
        while distance < rows {
            for first in (0..rows).step_by(distance * FEW_BLOCKS) {
                let after = rows.min(first + distance * FEW_BLOCKS);
                let sources: Vec<_> = (first..after).step_by(distance).map(|index| row(index).cast_const()).collect();
                // SAFETY: the rows are valid; the target is the first source.
                unsafe { kernel.partial(&sources, row(first), inner) }
            }
            distance *= FEW_BLOCKS;
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
    const AXES: [&[usize]; 16] = [
        &[0],
        &[1],
        &[7],
        &[10],
        &[24],
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

    /// `(outer, inner)`: tiles of lanes, narrow rows, rows that are one run, and strips (of more than one width).
    const AROUND: [(usize, usize); 12] =
        [(1, 1), (3, 1), (150, 1), (1, 2), (3, 7), (40, 9), (1, 16), (1, 33), (33, 50), (1, 140), (2, 700), (0, 3)];

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
        let alone = Isa::available().map(|isa| (isa, 1));
        let shared: &[usize] = if op == ReduceOp::Sum { &[2, 3, 8] } else { &[3] };
        for (isa, parts) in alone.chain(shared.iter().map(|&parts| (Isa::best(), parts))) {
            let partial = |(tensor, axis): (&Vec<T>, &usize)| {
                let mut along = Along::with_isa(op, tensor[..].into(), [outer, *axis, inner], isa).unwrap();
                along.parts(parts).into_iter().rev().for_each(Part::run);
                along.finish()
            };
            let partials: Vec<Partial> = tensors.iter().zip(axes).map(partial).collect();
            let result = finish(&partials, axes.iter().sum::<usize>() as u64);
            let result: Vec<u64> = match op {
                ReduceOp::Mean => result.as_buf().as_slice::<T::Mean>().unwrap().iter().map(|e| e.key()).collect(),
                _ => result.as_buf().as_slice::<T>().unwrap().iter().map(|e| e.key()).collect(),
            };
            assert_eq!(result, expected, "{op} of {} in {isa}, {parts} parts: [{outer}, {axes:?}, {inner}]", T::DTYPE);
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
