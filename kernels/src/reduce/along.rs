//! The two bodies of every reduction along an axis: rows meet in lanes, and lanes (or blocks) meet by the balanced tree.
//!
//! All that is the same for every type, which rows, which lanes, which blocks, is in [`axis`](crate::axis).

use super::{combine::Op, fold::combine, level::Level, row::Row};

/// Lanes of a block: 32 keep every register width from SSE2 to AVX-512 busy.
pub(crate) const LANES: usize = 32;

/// Rows of elements in memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: *const u8,
    /// Elements from the start of a row to the start of the next.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

/// `accumulators[i] = accumulators[i] ⊕ row 0[i] ⊕ row 1[i] ⊕ …` for `columns` elements; a fresh accumulator is row 0's element.
///
/// A tile goes through four rows in registers, then back to the first-level cache: the compiler keeps tiles in registers in
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
    let Rows { first, stride, rows } = rows;
    let (source, accumulators) = (first.cast::<R::Source>(), accumulators.cast::<R::Acc>());
    for at in (0..columns).step_by(LANES) {
        // SAFETY: the caller vouches for the rows and accumulators from `at` to `at + LANES`, and for the machine.
        unsafe {
            let accumulators = accumulators.add(at).cast::<[R::Acc; LANES]>();
            let row_at = |row: usize| source.add(row * stride + at);
            if fresh {
                accumulators.write_unaligned(R::load_ordered::<I, LANES>(row_at(0)));
            }
            let mut row = fresh as usize;
            while row < rows {
                let mut tile = accumulators.read_unaligned();
                tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(row_at(row)));
                if row + 4 <= rows {
                    tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(row_at(row + 1)));
                    tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(row_at(row + 2)));
                    tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(row_at(row + 3)));
                    row += 3;
                }
                accumulators.write_unaligned(tile);
                row += 1;
            }
        }
    }
}

/// Combines `count` rows of `columns` accumulators by the balanced tree into the first of them; the others are scratch.
///
/// # Safety
/// `rows` is valid for reads and writes of `count * columns` accumulators, aligned.
#[inline(always)]
pub(crate) unsafe fn tree<A: Copy, O: Op<A>>(rows: *mut u8, count: usize, columns: usize) {
    let rows = rows.cast::<A>();
    if columns == 1 {
        // SAFETY: the rows are single accumulators, one after the other.
        return tree_of_one(unsafe { std::slice::from_raw_parts_mut(rows, count) }, O::combine);
    }
    let row = |index: usize| rows.wrapping_add(index * columns);
    let whole = columns - columns % LANES;
    // The columns of a tile are done before the next ones, and stay in the first-level cache until then.
    for at in (0..whole).step_by(LANES) {
        for (left, right) in meetings(count) {
            // SAFETY: both rows are below `count`, and a tile of either is in bounds.
            unsafe {
                let left = row(left).add(at).cast::<[A; LANES]>();
                let right = row(right).add(at).cast::<[A; LANES]>().read();
                left.write(combine::<A, O, LANES>(left.read(), right));
            }
        }
    }
    for at in whole..columns {
        for (left, right) in meetings(count) {
            // SAFETY: both rows are below `count`, and the column is in bounds.
            unsafe {
                let left = row(left).add(at);
                left.write(O::combine(left.read(), row(right).add(at).read()));
            }
        }
    }
}

/// The pairs that meet in the balanced tree over `count`, in a possible order; the first of a pair takes the result.
#[inline(always)]
fn meetings(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let distances = std::iter::successors(Some(1), |distance| Some(2 * distance)).take_while(move |&d| d < count);
    distances.flat_map(move |distance| (0..count - distance).step_by(2 * distance).map(move |at| (at, at + distance)))
}

/// [`tree`] of rows of one column: neighbours meet and move together.
#[inline(always)]
fn tree_of_one<A: Copy>(values: &mut [A], combine: impl Fn(A, A) -> A) {
    let mut count = values.len();
    while count > 1 {
        for pair in 0..count / 2 {
            values[pair] = combine(values[2 * pair], values[2 * pair + 1]);
        }
        if count % 2 == 1 {
            values[count / 2] = values[count - 1];
        }
        count = count.div_ceil(2);
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
