//! The two bodies of every reduction along an axis: rows meet in lanes, and lanes (or blocks) meet by the balanced tree.
//!
//! All that is the same for every type, which rows, which lanes, which blocks, is in [`axis`](crate::axis).

use super::{
    combine::Op,
    fold::combine,
    level::Level,
    row::{Row, Widened},
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
            let accumulators = accumulators.add(at);
            let load = |row: usize| source.add(row * stride + at);
            if fresh {
                store_ordered::<R>(R::load::<I, LANES>(load(0)), accumulators);
            }
            let mut row = fresh as usize;
            while row < rows {
                let mut tile = Widened::<R>::load::<I, LANES>(accumulators);
                tile = combine::<R::Acc, O, LANES>(tile, R::load::<I, LANES>(load(row)));
                if row + 4 <= rows {
                    tile = combine::<R::Acc, O, LANES>(tile, R::load::<I, LANES>(load(row + 1)));
                    tile = combine::<R::Acc, O, LANES>(tile, R::load::<I, LANES>(load(row + 2)));
                    tile = combine::<R::Acc, O, LANES>(tile, R::load::<I, LANES>(load(row + 3)));
                    row += 3;
                }
                store_ordered::<R>(tile, accumulators);
                row += 1;
            }
        }
    }
}

/// Writes a tile with element `e` in place `e`.
///
/// # Safety
/// `target` is valid for writes of a tile.
#[inline(always)]
unsafe fn store_ordered<R: Row>(tile: [R::Acc; LANES], target: *mut R::Acc) {
    let mut ordered = tile;
    for element in 0..LANES {
        ordered[element] = tile[R::lane(element, LANES)];
    }
    // SAFETY: the caller vouches for the target.
    unsafe { target.cast::<[R::Acc; LANES]>().write_unaligned(ordered) }
}

/// Combines `count` rows of `columns` accumulators by the balanced tree into the first of them; the others are scratch.
///
/// # Safety
/// `rows` is valid for reads and writes of `count * columns` accumulators, aligned.
#[inline(always)]
pub(crate) unsafe fn tree<A: Copy, O: Op<A>>(rows: *mut u8, count: usize, columns: usize) {
    let rows = rows.cast::<A>();
    let mut distance = 1;
    while distance < count {
        for row in (0..count - distance).step_by(2 * distance) {
            // SAFETY: both rows are below `count`, and differ.
            let (left, right) = unsafe {
                (
                    std::slice::from_raw_parts_mut(rows.add(row * columns), columns),
                    std::slice::from_raw_parts(rows.add((row + distance) * columns), columns),
                )
            };
            for (left, right) in left.iter_mut().zip(right) {
                *left = O::combine(*left, *right);
            }
        }
        distance *= 2;
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
