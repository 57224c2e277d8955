//! The two bodies of every reduction along an axis: rows meet in lanes, and narrow lanes (or blocks) meet by the balanced tree.
//!
//! All that is the same for every type, which rows, which lanes, which blocks, is in [`axis`](crate::axis).

use super::{
    combine::Op,
    fold::{combine, prefetch},
    level::Level,
    row::Row,
};

/// Lanes of a block: 32 keep every register width from SSE2 to AVX-512 busy.
pub(crate) const LANES: usize = 32;

/// Rows of elements in memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: *const u8,
    /// Elements from the start of a row to the start of the next.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    /// Elements from the start of a tile to the start of the next: [`LANES`] where the columns of a row follow each other.
    pub(crate) pitch: usize,
    /// Lanes of each tile that meet; the others are left as they are. Fewer than all only of one row.
    pub(crate) lanes: usize,
    /// Bytes from what is read to what will be read soon, for which memory is asked.
    pub(crate) ahead: usize,
}

impl Rows {
    /// Whole rows.
    pub(crate) fn new(first: *const u8, stride: usize, rows: usize, ahead: usize) -> Rows {
        Rows { first, stride, rows, pitch: LANES, lanes: LANES, ahead }
    }
}

/// `accumulators[i] = accumulators[i] ⊕ row 0[i] ⊕ row 1[i] ⊕ …` for `columns` elements; a fresh accumulator is row 0's element.
///
/// A tile meets four rows in registers, then goes back to the first-level cache: the compiler keeps tiles in registers in
/// straight code, but not from one round of a loop to the next.
///
/// # Safety
/// The machine has the instruction set `I`. `columns` is a multiple of [`LANES`]; there is a row; rows are valid for reads,
/// `accumulators` for reads and writes, of `columns`, and do not overlap.
#[inline(always)]
pub(crate) unsafe fn accumulate<R: Row, O: Op<R::Acc>, I: Level>(
    rows: Rows,
    accumulators: *mut u8,
    columns: usize,
    fresh: bool,
) {
    let Rows { first, stride, rows, pitch, lanes, ahead } = rows;
    let (source, accumulators) = (first.cast::<R::Source>(), accumulators.cast::<R::Acc>());
    let (mut begin, mut end) = (0, rows.min(fresh as usize + 4));
    while begin < rows {
        let mut tile_source = source.wrapping_add(begin * stride);
        for at in (0..columns).step_by(LANES) {
            // SAFETY: the caller vouches for the rows and accumulators of the tile, and for the machine.
            unsafe {
                let accumulators = accumulators.add(at).cast::<[R::Acc; LANES]>();
                let (mut source, mut row) = (tile_source, begin);
                tile_source = tile_source.wrapping_add(pitch);
                if fresh && row == 0 {
                    prefetch::<R::Source, I, LANES>(source, ahead);
                    accumulators.write_unaligned(R::load_ordered::<I, LANES>(source));
                    source = source.wrapping_add(stride);
                    row = 1;
                } else if lanes < LANES {
                    let tile = accumulators.read_unaligned();
                    let met = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(source));
                    accumulators.write_unaligned(select(tile, met, lanes));
                    continue;
                }
                while row < end {
                    let mut tile = accumulators.read_unaligned();
                    let steps = if row + 4 <= end { 4 } else { 1 };
                    prefetch::<R::Source, I, LANES>(source, ahead);
                    tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(source));
                    if steps == 4 {
                        let (second, third) = (source.wrapping_add(stride), source.wrapping_add(2 * stride));
                        let fourth = source.wrapping_add(3 * stride);
                        prefetch::<R::Source, I, LANES>(second, ahead);
                        tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(second));
                        prefetch::<R::Source, I, LANES>(third, ahead);
                        tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(third));
                        prefetch::<R::Source, I, LANES>(fourth, ahead);
                        tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(fourth));
                    }
                    accumulators.write_unaligned(tile);
                    row += steps;
                    source = source.wrapping_add(steps * stride);
                }
            }
        }
        (begin, end) = (end, rows.min(end + 4));
    }
}

/// The first lanes of `after`, the others of `before`.
#[inline(always)]
fn select<A: Copy>(before: [A; LANES], after: [A; LANES], lanes: usize) -> [A; LANES] {
    let mut tile = before;
    for lane in 0..LANES {
        tile[lane] = if lane < lanes { after[lane] } else { before[lane] };
    }
    tile
}

/// Combines the `rows` rows of each of `slices` slices by the balanced tree; the results follow each other at the front, the rest
/// is scratch. For rows of few columns, whose neighbours meet without a gap, those of all slices at once.
///
/// # Safety
/// `values` is valid for reads and writes of `slices * rows * columns` accumulators, aligned.
#[inline(always)]
pub(crate) unsafe fn neighbours<A: Copy, O: Op<A>>(values: *mut u8, slices: usize, rows: usize, columns: usize) {
    let values = values.cast::<A>();
    let mut rows = rows;
    while rows > 1 {
        let half = rows / 2;
        if rows.is_multiple_of(2) {
            // SAFETY: the slices' rows follow each other.
            unsafe { pairs::<A, O>(values, values, slices * half, columns) }
        } else if columns == 1 && rows < LANES {
            // SAFETY: the caller vouches for the values.
            return unsafe { transposed::<A, O>(values, slices, rows) };
        } else {
            for slice in 0..slices {
                // SAFETY: a slice and its results, which do not come after it, are in bounds.
                unsafe {
                    let source = values.add(slice * rows * columns);
                    let target = values.add(slice * (half + 1) * columns);
                    pairs::<A, O>(source, target, half, columns);
                    std::ptr::copy(source.add(2 * half * columns), target.add(half * columns), columns);
                }
            }
        }
        rows = rows.div_ceil(2);
    }
}

/// [`neighbours`] of less than a tile of single accumulators a slice: slices become columns.
///
/// # Safety
/// As for [`neighbours`], with fewer rows than [`LANES`].
#[inline(always)]
unsafe fn transposed<A: Copy, O: Op<A>>(values: *mut A, slices: usize, rows: usize) {
    let mut tiles = [[O::IDENTITY; LANES]; LANES];
    for first in (0..slices).step_by(LANES) {
        let count = LANES.min(slices - first);
        for (row, tile) in tiles[..rows].iter_mut().enumerate() {
            for (column, value) in tile[..count].iter_mut().enumerate() {
                // SAFETY: the slices from `first` to `first + count` are in bounds.
                *value = unsafe { values.add((first + column) * rows + row).read() };
            }
        }
        let mut distance = 1;
        while distance < rows {
            for left in (0..rows - distance).step_by(2 * distance) {
                tiles[left] = combine::<A, O, LANES>(tiles[left], tiles[left + distance]);
            }
            distance *= 2;
        }
        // SAFETY: results do not come after what has been read.
        unsafe { std::ptr::copy_nonoverlapping(tiles[0].as_ptr(), values.add(first), count) }
    }
}

/// Columns of narrow rows that meet at a time.
const PART: usize = 8;

/// `target row[i] = source row[2i] ⊕ source row[2i + 1]` for `count` rows of `columns` accumulators.
///
/// # Safety
/// The source is valid for reads, the target for writes; the target does not begin after the source.
#[inline(always)]
unsafe fn pairs<A: Copy, O: Op<A>>(source: *const A, target: *mut A, count: usize, columns: usize) {
    let mut done = 0;
    if columns == 1 {
        while done + LANES <= count {
            // SAFETY: `LANES` pairs from `done` are in bounds; they are read before their results are written.
            unsafe {
                let pairs = source.add(2 * done).cast::<[[A; 2]; LANES]>().read_unaligned();
                let mut tile = [pairs[0][0]; LANES];
                for lane in 0..LANES {
                    tile[lane] = O::combine(pairs[lane][0], pairs[lane][1]);
                }
                target.add(done).cast::<[A; LANES]>().write_unaligned(tile);
            }
            done += LANES;
        }
    }
    let whole = columns - columns % PART;
    for row in done..count {
        // SAFETY: the rows are in bounds, and read before their result is written.
        unsafe {
            let (left, result) = (source.add(2 * row * columns), target.add(row * columns));
            for column in (0..whole).step_by(PART) {
                let left = left.add(column);
                let right = left.add(columns).cast::<[A; PART]>().read_unaligned();
                let part = combine::<A, O, PART>(left.cast::<[A; PART]>().read_unaligned(), right);
                result.add(column).cast::<[A; PART]>().write_unaligned(part);
            }
            for column in whole..columns {
                let left = left.add(column);
                result.add(column).write(O::combine(left.read(), left.add(columns).read()));
            }
        }
    }
}

/// Writes the result of no elements to `count` accumulators.
///
/// # Safety
/// `accumulators` is valid for writes of `count`, aligned.
pub(crate) unsafe fn identity<A: Copy, O: Op<A>>(accumulators: *mut u8, count: usize) {
    for at in 0..count {
        // SAFETY: `at` is one of the accumulators.
        unsafe { accumulators.cast::<A>().add(at).write(O::IDENTITY) }
    }
}
