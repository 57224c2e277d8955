//! A tensor that is reduced along its middle axis: which rows, lanes and blocks are combined when.

use super::partial::Partial;
use crate::{
    cpu::{
        copy::copy_private,
        isa::Isa,
        reduce::{GROUP, Kernel, LANES, Rows},
    },
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, ReduceOp};
use std::{array, io, ptr};

/// Elements along the axis that are combined in lanes before blocks are combined.
const BLOCK: usize = 4096;

/// Rows of at least this many columns are combined column by column. Narrower rows are combined
/// with their neighbours, those of many blocks at once.
const WIDE: usize = LANES;

/// Limit on the rows per lane for eight lanes to be read in turn and combined in registers. The
/// machine's prefetchers lose track of more rows.
const FEW_ROWS: usize = 3;

/// Bytes of a row's part in a strip, if lanes of many rows are combined one after the other and
/// their accumulators have to stay in the first-level cache. It is a page, because prefetchers
/// start anew at each page.
const STRIP_BYTES: usize = if cfg!(test) { 512 } else { 4 << 10 };

/// Bytes of the accumulators that are computed at a time.
const CHUNK_BYTES: usize = if cfg!(test) { 1 << 10 } else { 16 << 10 };

/// Bytes of memory for a chunk, whose accumulators are written in whole tiles.
pub(super) const ROOM_BYTES: usize = CHUNK_BYTES + LANES * size_of::<u128>();

/// Limit on the bytes of the accumulators of a block's lanes for all columns of the block to be
/// read as one run: the size of the first-level cache.
const RUN_BYTES: usize = if cfg!(test) { 8 << 10 } else { 32 << 10 };

/// Bytes of the accumulators of the lanes of narrow blocks that are reduced at a time: half of the
/// first-level cache.
const NARROW_BYTES: usize = 16 << 10;

/// Prefetch distance in a run of elements, in bytes. It also reaches past the end of a page, where
/// the machine's own prefetchers stop. Half and twice the distance are slower.
const AHEAD_BYTES: usize = 2 << 10;

/// Rows whose distance is a multiple of this map to the same lines of the first-level cache.
const ALIAS_BYTES: usize = 4 << 10;

/// Blocks of a single column that are reduced at a time.
const TOGETHER: usize = 4;

/// Limit on the blocks that are combined at a time: a power of two, so that they are a subtree.
const FEW_BLOCKS: usize = 1024;

/// A row-major tensor of the shape `[outer, axis, inner]`. It is reduced to accumulators of the
/// shape `[outer, blocks, inner]`, and these to accumulators of the shape `[outer, inner]`.
#[derive(Clone, Copy)]
pub(super) struct Tensor<'a> {
    input: HostBuf<'a>,
    kernel: &'static Kernel,
    outer: usize,
    axis: usize,
    /// Elements of the kernel from one row to the next.
    inner: usize,
}

impl<'a> Tensor<'a> {
    /// Returns the tensor; `None` if the operation is not defined on the type, or the machine lacks
    /// the instruction set.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] if the accumulators have more bytes than there are addresses.
    /// An empty axis makes this possible: the elements of the tensor do not bound the other sizes.
    ///
    /// # Panics
    /// If the input does not have the number of elements that the shape says.
    pub(super) fn new(op: ReduceOp, input: HostBuf<'a>, shape: [usize; 3], isa: Isa) -> io::Result<Option<Tensor<'a>>> {
        let elements = if shape.contains(&0) { Some(0) } else { product(shape) };
        assert_eq!(elements, Some(input.count()), "elements of the shape {shape:?}, and of the input");
        let Some(kernel) = Kernel::new(op, input.dtype(), isa) else { return Ok(None) };
        // If there are no results, the other size may be any number.
        let [outer, axis, inner] = if shape[0] == 0 || shape[2] == 0 { [0, shape[1], 0] } else { shape };
        let row_bytes = product([inner, input.dtype().size()]).ok_or(io::ErrorKind::OutOfMemory)?;
        // For a kernel of bytes, each byte of a wider element is an element of the innermost axis.
        let tensor = Tensor { input, kernel, outer, axis, inner: row_bytes / kernel.source_bytes };
        let bytes = product([outer, tensor.blocks(), tensor.inner, kernel.acc_bytes.max(kernel.source_bytes)]);
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Some(tensor))
    }

    pub(super) fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Returns the bytes of the tensor's elements.
    pub(super) fn bytes(&self) -> usize {
        self.input.bytes()
    }

    /// Returns the number of accumulators of a block.
    pub(super) fn inner(&self) -> usize {
        self.inner
    }

    /// Returns the number of blocks of a slice. An empty slice has one empty block.
    pub(super) fn blocks(&self) -> usize {
        self.axis.div_ceil(BLOCK).max(1)
    }

    /// Returns the number of accumulators of all blocks.
    pub(super) fn values(&self) -> usize {
        self.outer * self.blocks() * self.inner
    }

    /// Returns the number of results, which are elements of the tensor's type or of the mean's.
    pub(super) fn results(&self) -> usize {
        self.outer * self.inner * self.kernel.source_bytes / self.input.dtype().size()
    }

    /// Allocates memory for the accumulators of all blocks.
    ///
    /// # Errors
    /// The system's, if it has no memory.
    ///
    /// # Safety
    /// Nobody reads a byte before it is written.
    pub(super) unsafe fn room(&self) -> io::Result<HostMemory> {
        // SAFETY: the caller's promise is the same.
        unsafe { HostMemory::try_uninit(DType::U8, self.values() * self.kernel.acc_bytes) }
    }

    /// Combines the accumulators of all blocks of each slice.
    pub(super) fn partial(&self, op: ReduceOp, mut values: HostMemory) -> Partial {
        let Tensor { input, kernel, outer, inner, .. } = *self;
        let (blocks, row_bytes) = (self.blocks(), inner * kernel.acc_bytes);
        if blocks > 1 && values.count() > 0 {
            let start = values.as_buf_mut().as_mut_ptr();
            for slice in 0..outer {
                // SAFETY: a slice's blocks and its results are in `values`. The results of the
                // first slice are in place. Those of another end before its blocks, since each
                // slice before it has two at least.
                unsafe {
                    let source = start.add(slice * blocks * row_bytes);
                    self.meet(source, blocks);
                    if slice > 0 {
                        copy_private(source, start.add(slice * row_bytes), row_bytes);
                    }
                }
            }
            values = values.as_buf().slice(0..outer * row_bytes).into();
        }
        Partial { op, dtype: input.dtype(), kernel, count: self.results(), accumulators: values }
    }

    /// Returns how many accumulators of the range `at..end` are computed next: those of whole
    /// blocks, or of a strip of one block.
    pub(super) fn chunk(&self, at: usize, end: usize) -> usize {
        let Tensor { kernel, inner, .. } = *self;
        let (block, column, width) = (at / inner, at % inner, self.width());
        if inner > width {
            // Strips begin where prefetchers start.
            let (first, _) = self.rows(block);
            let over = self.at(first, column).addr() / kernel.source_bytes % width;
            (width - over).min(inner - column).min(end - at)
        } else if column == 0 && end - at >= inner {
            (CHUNK_BYTES / kernel.acc_bytes / inner).min((end - at) / inner) * inner
        } else {
            (inner - column).min(end - at)
        }
    }

    /// Computes a [chunk](Tensor::chunk) of the accumulators, `count` from `at` on.
    ///
    /// # Safety
    /// It is a chunk of this tensor, or of a tensor with as many slices, blocks and columns;
    /// `result` is valid for writes of [`ROOM_BYTES`], `scratch` of [its
    /// own](Tensor::scratch_bytes).
    pub(super) unsafe fn reduce(&self, at: usize, count: usize, result: *mut u8, scratch: *mut u8) {
        let Tensor { kernel, inner, .. } = *self;
        let (block, column) = (at / inner, at % inner);
        // SAFETY: the caller vouches for the chunk and for the memory.
        unsafe {
            if self.axis == 0 {
                return (kernel.identity)(result, count);
            }
            if column > 0 || count < inner {
                return self.wide(block, column, count, result, scratch);
            }
            let (mut done, blocks) = (0, count / inner);
            while done < blocks {
                let result = result.add(done * inner * kernel.acc_bytes);
                if inner < WIDE {
                    done += self.narrow(block + done, blocks - done, result, scratch);
                } else {
                    self.wide(block + done, 0, inner, result, scratch);
                    done += 1;
                }
            }
        }
    }

    /// Returns the largest number of columns of a strip that is cut for this tensor. A strip that
    /// is cut for another tensor, with other rows, may be as wide as a chunk.
    fn width(&self) -> usize {
        let most = self.chunk_columns();
        if self.has_few_rows() { most } else { most.min(STRIP_BYTES / self.kernel.source_bytes) }
    }

    /// Returns whether no lane has more than [`FEW_ROWS`] rows.
    fn has_few_rows(&self) -> bool {
        self.axis <= FEW_ROWS * LANES
    }

    /// Returns the largest number of columns of any strip.
    fn chunk_columns(&self) -> usize {
        CHUNK_BYTES / self.kernel.acc_bytes
    }

    /// Returns the number of accumulators from one row to the next in a strip of `columns` columns.
    /// It is an odd number of tiles, because rows at a distance of a power of two would map to the
    /// same few lines of the first-level cache.
    fn pitch(&self, columns: usize) -> usize {
        let tile = self.kernel.tile.max(LANES);
        (columns.div_ceil(tile) | 1) * tile
    }

    /// Returns the bytes of scratch memory that [`reduce`](Tensor::reduce) needs, with room for a
    /// tile at the end of a run.
    pub(super) fn scratch_bytes(&self) -> usize {
        let Kernel { tile, acc_bytes, .. } = *self.kernel;
        let strip = (GROUP + LANES / GROUP) * self.pitch(self.inner.min(self.chunk_columns()));
        (strip * acc_bytes).max(RUN_BYTES).max(NARROW_BYTES) + tile.max(LANES) * acc_bytes
    }

    /// Returns the first row of a block, counted over all slices, and the number of its rows.
    fn rows(&self, block: usize) -> (usize, usize) {
        let (slice, index) = (block / self.blocks(), block % self.blocks());
        (slice * self.axis + index * BLOCK, BLOCK.min(self.axis - index * BLOCK))
    }

    /// Returns the address of a column of a row.
    fn at(&self, row: usize, column: usize) -> *const u8 {
        self.input.as_ptr().wrapping_add((row * self.inner + column) * self.kernel.source_bytes)
    }

    /// Rounds `columns` up to whole tiles, unless those of row `last` would reach past the tensor.
    /// Nobody reads the results of the additional elements.
    fn in_tiles(&self, last: usize, column: usize, columns: usize) -> usize {
        let whole = columns.next_multiple_of(self.kernel.tile.max(LANES));
        if self.has(self.at(last, column), whole) { whole } else { columns }
    }

    /// Returns whether `count` elements from `source`, an address in the tensor, do not reach past
    /// its end.
    fn has(&self, source: *const u8, count: usize) -> bool {
        let end = self.input.as_ptr().addr() + self.input.bytes();
        source.addr() + count * self.kernel.source_bytes <= end
    }

    /// Reduces some columns of a block, at most as many as a strip has.
    ///
    /// # Safety
    /// The block and its columns exist; `result` is valid for writes of `columns` accumulators in
    /// whole tiles, `scratch` of its [bytes](Tensor::scratch_bytes).
    unsafe fn wide(&self, block: usize, column: usize, columns: usize, result: *mut u8, scratch: *mut u8) {
        let Tensor { kernel, inner, .. } = *self;
        let (first, rows) = self.rows(block);
        if rows <= GROUP || rows <= LANES && columns == inner {
            let start = self.at(first, column);
            let sources: [*const u8; LANES] =
                array::from_fn(|row| start.wrapping_add(row * inner * kernel.source_bytes));
            let columns = self.in_tiles(first + rows - 1, column, columns);
            // SAFETY: the columns of the rows are in bounds, and do not overlap the result.
            return unsafe { kernel.keep(&sources[..rows], result, columns) };
        }
        if rows > LANES && columns == inner && LANES * inner * kernel.acc_bytes <= RUN_BYTES {
            let (run, rest) = (LANES * inner, rows % LANES);
            let lanes: [*const u8; LANES] =
                array::from_fn(|lane| scratch.wrapping_add(lane * inner * kernel.acc_bytes).cast_const());
            // SAFETY: the block is in bounds, and the accumulators of its lanes fit the scratch,
            // whose end has room for a tile.
            return unsafe {
                (kernel.accumulate)(Rows::new(self.at(first, 0), run, rows / LANES, AHEAD_BYTES), scratch, run, true);
                self.run(first + rows - rest, rest * inner, scratch, false);
                (kernel.identity)(scratch.add(run * kernel.acc_bytes), kernel.tile);
                kernel.partial(&lanes, result, inner.next_multiple_of(kernel.tile));
            };
        }
        // SAFETY: the strip is in the block.
        unsafe { self.strip((first, rows), (column, columns), result, scratch) }
    }

    /// Reduces one strip of a block, one group of lanes after the other.
    ///
    /// # Safety
    /// As for [`wide`](Tensor::wide).
    unsafe fn strip(
        &self,
        (first, rows): (usize, usize),
        (column, columns): (usize, usize),
        result: *mut u8,
        scratch: *mut u8,
    ) {
        let Tensor { kernel, inner, .. } = *self;
        let row_bytes = self.pitch(columns) * kernel.acc_bytes;
        let groups: [*mut u8; LANES / GROUP] = array::from_fn(|group| scratch.wrapping_add(group * row_bytes));
        let lanes: [*mut u8; GROUP] = array::from_fn(|lane| scratch.wrapping_add((groups.len() + lane) * row_bytes));
        let count = rows.min(LANES).div_ceil(GROUP);
        let columns = self.in_tiles(first + rows - 1, column, columns);
        for (group, &total) in groups[..count].iter().enumerate() {
            let lane = group * GROUP;
            let (first, rows) = (first + lane, rows - lane);
            // SAFETY: the strip is in the block; the scratch has room for the lanes of a group, and
            // for the totals of all groups, in whole tiles.
            unsafe {
                if lane + rows <= LANES {
                    let rows = rows.min(GROUP);
                    let sources: [*const u8; GROUP] = array::from_fn(|row| self.at(first + row, column));
                    kernel.keep(&sources[..rows], total, columns);
                } else if self.has_few_rows() && columns.is_multiple_of(LANES) {
                    let source = Rows::new(self.at(first, column), inner, rows / LANES, 0);
                    (kernel.lanes)(source, rows % LANES, total, columns);
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

    /// Reduces some columns of one lane's rows `first`, `first + LANES`, ….
    ///
    /// # Safety
    /// The rows and columns exist; `accumulators` is valid for reads and writes of `columns`
    /// accumulators, in whole tiles.
    unsafe fn lane(&self, first: usize, rows: usize, column: usize, columns: usize, accumulators: *mut u8) {
        let Tensor { kernel, inner, .. } = *self;
        let stride = LANES * inner;
        // Prefetches the rows that this lane combines next, or those of the next lane. But if these
        // would evict each other from the cache, and elements need no widening, the machine's own
        // prefetchers do better.
        let row_bytes = inner * kernel.source_bytes;
        let ahead = match rows {
            _ if row_bytes.is_multiple_of(ALIAS_BYTES) && kernel.source_bytes == kernel.acc_bytes => 0,
            9.. => LANES * 4 * row_bytes,
            _ => row_bytes,
        };
        let tiles = columns - columns % LANES;
        // SAFETY: the tiles and the rest are in bounds.
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

    /// Reduces blocks of narrow rows, at most `most` from `block` on. Returns how many it has
    /// reduced.
    ///
    /// # Safety
    /// The blocks exist; `result` is valid for writes of all their columns, `scratch` of its
    /// [bytes](Tensor::scratch_bytes).
    unsafe fn narrow(&self, block: usize, most: usize, result: *mut u8, scratch: *mut u8) -> usize {
        let Tensor { kernel, inner, axis, .. } = *self;
        let (first, rows) = self.rows(block);
        let run = rows.min(LANES) * inner;
        // Blocks with the same number of rows, which follow each other without a gap: whole slices,
        // or blocks of one slice.
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
            copy_private(scratch, result, blocks * inner * kernel.acc_bytes);
        }
        blocks
    }

    /// Reduces `blocks` blocks of `rows` single elements into lanes. The lanes of each block are a
    /// tile.
    ///
    /// # Safety
    /// The blocks exist and have at least [`LANES`] rows; `lanes` is valid for reads and writes of
    /// their accumulators.
    unsafe fn columns(&self, first: usize, rows: usize, blocks: usize, lanes: *mut u8) {
        let Tensor { kernel, .. } = *self;
        let source = Rows { pitch: rows, ..Rows::new(self.at(first, 0), LANES, rows / LANES, AHEAD_BYTES) };
        // SAFETY: the blocks are in bounds; `has` tells whether the last tile of the last block is,
        // too.
        unsafe {
            (kernel.accumulate)(source, lanes, blocks * LANES, true);
            let rest = rows % LANES;
            if rest == 0 {
                return;
            }
            let last = first + blocks * rows - rest;
            let whole = if self.has(self.at(last, 0), LANES) { blocks } else { blocks - 1 };
            let source = Rows { pitch: rows, lanes: rest, ..Rows::new(self.at(first + rows - rest, 0), 0, 1, 0) };
            (kernel.accumulate)(source, lanes, whole * LANES, false);
            if whole < blocks {
                self.run(last, rest, lanes.add(whole * LANES * kernel.acc_bytes), false);
            }
        }
    }

    /// Computes `accumulators[i] = accumulators[i] ⊕ element[i]` for a run of `count` elements from
    /// the start of a row on. A fresh accumulator becomes the element.
    ///
    /// # Safety
    /// The elements are in bounds; `accumulators` is valid for reads and writes of `count`
    /// accumulators, in whole tiles.
    unsafe fn run(&self, row: usize, count: usize, accumulators: *mut u8, fresh: bool) {
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

    /// Does as [`run`](Tensor::run), for less than a tile. Reads a copy of the elements if a whole
    /// tile would reach past the tensor.
    ///
    /// # Safety
    /// As for [`run`](Tensor::run).
    unsafe fn part_of_a_tile(&self, source: *const u8, accumulators: *mut u8, count: usize, fresh: bool) {
        let Kernel { accumulate, source_bytes, .. } = *self.kernel;
        let rows = |first: *const u8| Rows { lanes: count, ..Rows::new(first, 0, 1, 0) };
        // SAFETY: the tile is in bounds; or the elements are, and they fit a tile of the widest
        // type.
        unsafe {
            if self.has(source, LANES) {
                return accumulate(rows(source), accumulators, LANES, fresh);
            }
            let mut elements = [0u128; LANES];
            let elements = elements.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(source, elements, count * source_bytes);
            accumulate(rows(elements), accumulators, LANES, fresh);
        }
    }

    /// Combines `rows` rows of accumulators by the balanced tree into the first row. The other rows
    /// are scratch.
    ///
    /// # Safety
    /// `values` is valid for reads and writes of the rows.
    unsafe fn meet(&self, values: *mut u8, rows: usize) {
        let Tensor { kernel, inner, .. } = *self;
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

/// Returns the product of sizes; `None` if it is no number.
fn product<const COUNT: usize>(sizes: [usize; COUNT]) -> Option<usize> {
    sizes.into_iter().try_fold(1usize, usize::checked_mul)
}
