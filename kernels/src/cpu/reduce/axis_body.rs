//! The bodies of every reduction along an axis: they combine rows in lanes, and narrow lanes (or
//! blocks) by the balanced tree.
//!
//! The choice of rows, lanes and blocks is the same for every type. It is in
//! [`axis`](crate::cpu::axis).

use super::{
    combine::Op,
    element::ElementCodec,
    fold::{combine, prefetch},
    simd::Simd,
};

/// Lanes of a block: 32 keep every register width from SSE2 to AVX-512 busy.
pub(crate) const LANES: usize = 32;

/// Lanes that are combined at a time: a subtree.
pub(crate) const GROUP: usize = 8;

/// Rows that are combined in registers before their accumulators are written: enough that the
/// accumulators cost little, and few enough that a core prefetches all of them.
const TOGETHER: usize = 4;

/// Rows of elements in memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: *const u8,
    /// Elements from the start of a row to the start of the next.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    /// Elements from the start of a tile to the start of the next: [`LANES`] where the columns of a
    /// row follow each other.
    pub(crate) pitch: usize,
    /// Lanes of each tile that are combined. Accumulators of the other lanes keep their values or,
    /// if fresh, get values without a meaning. Fewer than [`LANES`] only for a single row.
    pub(crate) lanes: usize,
    /// Prefetch distance, from the elements that are read, in bytes.
    pub(crate) ahead: usize,
}

impl Rows {
    /// Returns rows of whole tiles that follow each other.
    pub(crate) fn new(first: *const u8, stride: usize, rows: usize, ahead: usize) -> Rows {
        Rows { first, stride, rows, pitch: LANES, lanes: LANES, ahead }
    }
}

/// Computes `accumulators[i] = accumulators[i] ⊕ row 0[i] ⊕ row 1[i] ⊕ …` for `columns` elements. A
/// fresh accumulator begins as row 0's element.
///
/// # Safety
/// The machine has the instruction set `I`. `columns` is a multiple of [`LANES`]; there is a row;
/// rows are valid for reads, `accumulators` for reads and writes, of `columns`, and do not overlap.
#[inline(always)]
pub(crate) unsafe fn accumulate<R: ElementCodec, O: Op<R::Acc>, I: Simd>(
    mut rows: Rows,
    accumulators: *mut u8,
    columns: usize,
    mut fresh: bool,
) {
    let accumulators = accumulators.cast::<R::Acc>();
    // SAFETY: the caller's promises are the same.
    unsafe {
        if rows.lanes < LANES && !fresh {
            return some_lanes::<R, O, I>(rows, accumulators, columns);
        }
        while rows.rows > 0 {
            let met = rows.rows.min(TOGETHER);
            match met {
                // With a constant number the compiler unrolls the loop over the rows.
                TOGETHER => together::<R, O, I>(Rows { rows: TOGETHER, ..rows }, accumulators, columns, fresh),
                _ => together::<R, O, I>(Rows { rows: met, ..rows }, accumulators, columns, fresh),
            }
            rows.first = rows.first.wrapping_add(met * rows.stride * size_of::<R::Source>());
            rows.rows -= met;
            fresh = false;
        }
    }
}

/// Computes `results[i] = lane 0[i] ⊕ lane 1[i] ⊕ …` by the balanced tree, for `columns` elements
/// of [`GROUP`] lanes, which are combined in registers. Lane `j` begins at row `j`. Each lane has
/// `rows.rows` rows, the first `more` lanes one row more.
///
/// # Safety
/// The machine has the instruction set `I`. `columns` is a multiple of [`LANES`]; there is a row
/// for each lane; rows are valid for reads, `results` for writes, of `columns`, and do not overlap.
#[inline(always)]
pub(crate) unsafe fn lanes<R: ElementCodec, O: Op<R::Acc>, I: Simd>(
    rows: Rows,
    more: usize,
    results: *mut u8,
    columns: usize,
) {
    let results = results.cast::<R::Acc>();
    for at in (0..columns).step_by(LANES) {
        // SAFETY: the caller vouches for the tile of all rows and of the results, and for the
        // machine.
        unsafe {
            let left = four::<R, O, I>(rows, more, at, 0);
            let right = four::<R, O, I>(rows, more, at, GROUP / 2);
            results.add(at).cast::<[R::Acc; LANES]>().write_unaligned(combine::<R::Acc, O, LANES>(left, right));
        }
    }
}

/// Combines a tile of four lanes, from lane `first` on.
///
/// # Safety
/// As for [`lanes`].
#[inline(always)]
unsafe fn four<R: ElementCodec, O: Op<R::Acc>, I: Simd>(
    rows: Rows,
    more: usize,
    at: usize,
    first: usize,
) -> [R::Acc; LANES] {
    // SAFETY: the caller's promises are the same.
    unsafe {
        let left = lane::<R, O, I>(rows, more, at, first);
        let left = combine::<R::Acc, O, LANES>(left, lane::<R, O, I>(rows, more, at, first + 1));
        let right = lane::<R, O, I>(rows, more, at, first + 2);
        let right = combine::<R::Acc, O, LANES>(right, lane::<R, O, I>(rows, more, at, first + 3));
        combine::<R::Acc, O, LANES>(left, right)
    }
}

/// Combines a tile of the rows of one lane.
///
/// # Safety
/// As for [`lanes`].
#[inline(always)]
unsafe fn lane<R: ElementCodec, O: Op<R::Acc>, I: Simd>(
    rows: Rows,
    more: usize,
    at: usize,
    lane: usize,
) -> [R::Acc; LANES] {
    let mut row = rows.first.cast::<R::Source>().wrapping_add(lane * rows.stride + at);
    // SAFETY: the caller vouches for the rows and for the machine.
    unsafe {
        let mut tile = R::load_ordered::<I, LANES>(row);
        for _ in 1..rows.rows + usize::from(lane < more) {
            row = row.wrapping_add(LANES * rows.stride);
            tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(row));
        }
        tile
    }
}

/// [Accumulates](accumulate) few rows, which are combined in registers tile by tile.
///
/// # Safety
/// As for [`accumulate`].
#[inline(always)]
unsafe fn together<R: ElementCodec, O: Op<R::Acc>, I: Simd>(
    rows: Rows,
    accumulators: *mut R::Acc,
    columns: usize,
    fresh: bool,
) {
    let Rows { first, stride, pitch, ahead, rows, .. } = rows;
    let mut source = first.cast::<R::Source>();
    for at in (0..columns).step_by(LANES) {
        // SAFETY: the caller vouches for the rows and accumulators of the tile, and for the
        // machine.
        unsafe {
            let accumulators = accumulators.add(at).cast::<[R::Acc; LANES]>();
            prefetch::<R::Source, I, LANES>(source, ahead);
            let mut tile = R::load_ordered::<I, LANES>(source);
            if !fresh {
                tile = combine::<R::Acc, O, LANES>(accumulators.read_unaligned(), tile);
            }
            let mut row = source;
            for _ in 1..rows {
                row = row.wrapping_add(stride);
                prefetch::<R::Source, I, LANES>(row, ahead);
                tile = combine::<R::Acc, O, LANES>(tile, R::load_ordered::<I, LANES>(row));
            }
            accumulators.write_unaligned(tile);
        }
        source = source.wrapping_add(pitch);
    }
}

/// Bytes of a tile of the widest accumulators.
const TILE_BYTES: usize = LANES * size_of::<u128>();

/// A mask with all bits of the first half of its bytes, and no others. A part of the mask chooses
/// as many bytes as it has of the first half. The mask is static: if made on demand, it would be
/// stored in parts and loaded whole, which takes longer than the rest of the work.
static CHOSEN: [u8; 2 * TILE_BYTES] = {
    let mut bytes = [0; 2 * TILE_BYTES];
    let mut at = 0;
    while at < TILE_BYTES {
        bytes[at] = !0;
        at += 1;
    }
    bytes
};

/// [Accumulates](accumulate) the first lanes of each tile of one row. Chooses bytes, because the
/// compiler does not vectorize a choice between widened elements.
///
/// # Safety
/// As for [`accumulate`], with accumulators that are not fresh.
#[inline(always)]
unsafe fn some_lanes<R: ElementCodec, O: Op<R::Acc>, I: Simd>(rows: Rows, accumulators: *mut R::Acc, columns: usize) {
    let Rows { first, pitch, lanes, .. } = rows;
    // SAFETY: an accumulator is a number, for which any bits are valid; a tile of accumulators is
    // not longer than either half.
    let chosen = unsafe {
        CHOSEN.as_ptr().add(TILE_BYTES - lanes * size_of::<R::Acc>()).cast::<[R::Acc; LANES]>().read_unaligned()
    };
    let mut source = first.cast::<R::Source>();
    for at in (0..columns).step_by(LANES) {
        // SAFETY: the caller vouches for the row and accumulators of the tile, and for the machine;
        // no accumulator is wider than a `u128`.
        unsafe {
            let accumulators = accumulators.add(at).cast::<[R::Acc; LANES]>();
            let met = combine::<R::Acc, O, LANES>(accumulators.read_unaligned(), R::load_ordered::<I, LANES>(source));
            let (before, after) = (accumulators.cast::<u8>(), (&raw const met).cast::<u8>());
            let chosen = (&raw const chosen).cast::<u8>();
            for byte in 0..size_of::<[R::Acc; LANES]>() {
                let chosen = *chosen.add(byte);
                *before.add(byte) = *before.add(byte) & !chosen | *after.add(byte) & chosen;
            }
        }
        source = source.wrapping_add(pitch);
    }
}

/// Combines the `rows` rows of each of `slices` slices by the balanced tree; the results follow
/// each other at the front, the rest is scratch. Meant for rows of few columns: there is no gap
/// between neighbouring rows, so pairs of all slices are combined at once.
///
/// # Safety
/// `values` is valid for reads and writes of `slices * rows * columns` accumulators, aligned.
#[inline(always)]
pub(crate) unsafe fn neighbours<A: Copy, O: Op<A>>(values: *mut u8, slices: usize, rows: usize, columns: usize) {
    let values = values.cast::<A>();
    let mut rows = rows;
    while rows > 1 {
        let half = rows / 2;
        let odd = rows % 2;
        if odd == 1 && columns == 1 && rows < LANES {
            // SAFETY: the caller vouches for the values.
            return unsafe { transposed::<A, O>(values, slices, rows) };
        }
        // Without odd rows, the pairs of all slices follow each other like those of one.
        let (apart, pairs) = if odd == 1 { (slices, half) } else { (1, slices * half) };
        for slice in 0..apart {
            // SAFETY: a slice and its results, which do not come after it, are in bounds.
            unsafe {
                let source = values.add(slice * rows * columns);
                let target = values.add(slice * (half + odd) * columns);
                self::pairs::<A, O>(source, target, pairs, columns);
                std::ptr::copy(source.add(2 * half * columns), target.add(half * columns), odd * columns);
            }
        }
        rows = rows.div_ceil(2);
    }
}

/// [`neighbours`] for slices of fewer than [`LANES`] single accumulators. Slices become columns.
///
/// # Safety
/// As for [`neighbours`], with fewer rows than [`LANES`].
#[inline(always)]
unsafe fn transposed<A: Copy, O: Op<A>>(values: *mut A, slices: usize, rows: usize) {
    if slices == 0 {
        return;
    }
    // SAFETY: a slice is in bounds, and has a row.
    let mut tiles = [[unsafe { values.read() }; LANES]; LANES];
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

/// Columns of narrow rows that are combined at a time.
const PART: usize = 8;

/// Computes `target row[i] = source row[2i] ⊕ source row[2i + 1]` for `count` rows of `columns`
/// accumulators.
///
/// # Safety
/// The source is valid for reads, the target for writes; the target does not begin after the
/// source.
#[inline(always)]
unsafe fn pairs<A: Copy, O: Op<A>>(source: *const A, target: *mut A, count: usize, columns: usize) {
    let mut done = 0;
    if columns == 1 {
        while done + LANES <= count {
            // SAFETY: `LANES` pairs from `done` are in bounds; they are read before their results
            // are written.
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

/// Writes the operation's identity to `count` accumulators, or zeros if it has none. Zeros stand
/// for no result: the caller refuses them
/// ([`has_identity`](consonance_spec::ReduceOp::has_identity)).
///
/// # Safety
/// `accumulators` is valid for writes of `count`, aligned.
pub(crate) unsafe fn identity<A: Copy, O: Op<A>>(accumulators: *mut u8, count: usize) {
    let accumulators = accumulators.cast::<A>();
    // SAFETY: the caller vouches for the accumulators, which are numbers: all bits zero is a value.
    unsafe {
        match O::IDENTITY {
            Some(identity) => (0..count).for_each(|at| accumulators.add(at).write(identity)),
            None => accumulators.write_bytes(0, count),
        }
    }
}
