//! The body of every reduction along an axis: lanes of a block, lanes to a block's result, blocks to the whole.
//!
//! The order is the spec's: blocks of [`BLOCK`] consecutive elements, of which lane `j` takes the elements `j`, `j + LANES`, …;
//! lanes and blocks meet by the balanced tree.

use super::{combine::Op, fold::combine, level::Level, row::{Plain, Row}};

/// Lanes of a block: 32 keep every register width from SSE2 to AVX-512 busy.
const LANES: usize = 32;

/// Elements along the axis that are combined in lanes before they meet other blocks.
const BLOCK: usize = 4096;

/// Bytes of the accumulators of all lanes: half of a usual first-level cache.
const ACCUMULATORS_BYTES: usize = 16 << 10;

/// A row-major tensor of `[outer, axis, inner]` elements.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) outer: usize,
    pub(crate) axis: usize,
    pub(crate) inner: usize,
}

/// Reduces `source` along its middle axis into `outer * inner` accumulators.
///
/// # Safety
/// The machine has the instruction set `I`; `source` is valid for reads of the shape's elements, `result` for writes of
/// `outer * inner` of `R::Acc`, aligned; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn along<R: Row, O: Op<R::Acc>, I: Level>(source: *const u8, shape: Shape, result: *mut u8) {
    let Shape { outer, axis, inner } = shape;
    let (source, result) = (source.cast::<R::Source>(), result.cast::<R::Acc>());
    if axis == 0 {
        for at in 0..outer * inner {
            // SAFETY: `at` is one of the accumulators.
            unsafe { result.add(at).write(O::IDENTITY) }
        }
        return;
    }
    if inner == 1 {
        for at in 0..outer {
            // SAFETY: row `at` of the source and accumulator `at` are in bounds.
            unsafe { result.add(at).write(contiguous::<R, O, I>(source.add(at * axis), axis)) }
        }
        return;
    }
    let columns = inner.min((ACCUMULATORS_BYTES / (LANES * size_of::<R::Acc>())).max(1));
    let digits = axis.div_ceil(BLOCK).ilog2() as usize + 1;
    let mut scratch = Vec::<R::Acc>::with_capacity((LANES + digits) * columns);
    for at in 0..outer {
        for first in (0..inner).step_by(columns) {
            let columns = columns.min(inner - first);
            // SAFETY: the columns lie in slice `at` of the source and of the result; the scratch is large enough.
            unsafe {
                let strip = Strip { source: source.add(at * axis * inner + first), axis, inner, columns };
                strided::<R, O, I>(strip, scratch.as_mut_ptr(), result.add(at * inner + first));
            }
        }
    }
}

/// The result of `count > 0` consecutive elements.
///
/// # Safety
/// As for [`along`].
#[inline(always)]
unsafe fn contiguous<R: Row, O: Op<R::Acc>, I: Level>(source: *const R::Source, count: usize) -> R::Acc {
    let mut digits = [O::IDENTITY; usize::BITS as usize];
    let mut depth = 0;
    for (index, start) in (0..count).step_by(BLOCK).enumerate() {
        let length = BLOCK.min(count - start);
        // SAFETY: the block is within the elements.
        let mut value = unsafe { block::<R, O, I>(source.add(start), length) };
        let carries = if start + length == count { depth } else { index.trailing_ones() as usize };
        for _ in 0..carries {
            depth -= 1;
            value = O::combine(digits[depth], value);
        }
        digits[depth] = value;
        depth += 1;
    }
    digits[0]
}

/// The result of a block of `1..=BLOCK` consecutive elements; the lanes are a tile of registers.
///
/// # Safety
/// As for [`along`].
#[inline(always)]
unsafe fn block<R: Row, O: Op<R::Acc>, I: Level>(source: *const R::Source, count: usize) -> R::Acc {
    let whole = count - count % LANES;
    let mut lanes = [O::IDENTITY; LANES];
    if whole > 0 {
        // SAFETY: the first `LANES` elements are in bounds.
        let mut tile = unsafe { R::load::<I, LANES>(source) };
        for at in (LANES..whole).step_by(LANES) {
            // SAFETY: `at + LANES <= whole`.
            tile = combine::<R::Acc, O, LANES>(tile, unsafe { R::load::<I, LANES>(source.add(at)) });
        }
        lanes = ordered::<R>(tile);
    }
    if whole < count {
        // SAFETY: the elements from `whole` on are in bounds, and fewer than `LANES`.
        let tail = unsafe { load_part::<R, I>(source.add(whole), count - whole) };
        for lane in 0..count - whole {
            lanes[lane] = if whole > 0 { O::combine(lanes[lane], tail[lane]) } else { tail[lane] };
        }
    }
    let used = count.min(LANES);
    let mut distance = 1;
    while distance < used {
        for lane in (0..used - distance).step_by(2 * distance) {
            lanes[lane] = O::combine(lanes[lane], lanes[lane + distance]);
        }
        distance *= 2;
    }
    lanes[0]
}

/// Some columns of a slice: rows of `inner` elements, of which the first `columns` are reduced.
#[derive(Clone, Copy)]
struct Strip<S> {
    source: *const S,
    axis: usize,
    inner: usize,
    columns: usize,
}

/// Reduces the rows of a strip, in the order of memory, into `columns` accumulators.
///
/// # Safety
/// As for [`along`]; `scratch` is valid for the lanes and for a digit for each doubling of the blocks, of `columns` each.
#[inline(always)]
unsafe fn strided<R: Row, O: Op<R::Acc>, I: Level>(strip: Strip<R::Source>, scratch: *mut R::Acc, result: *mut R::Acc) {
    let Strip { source, axis, inner, columns } = strip;
    // SAFETY: the digits follow the lanes.
    let digit = |depth: usize| unsafe { scratch.add((LANES + depth) * columns) };
    let mut depth = 0;
    for (index, start) in (0..axis).step_by(BLOCK).enumerate() {
        let rows = BLOCK.min(axis - start);
        // SAFETY: the rows from `start` on are within the strip.
        unsafe { strided_block::<R, O, I>(Strip { source: source.add(start * inner), axis: rows, ..strip }, scratch) };
        let carries = if start + rows == axis { depth } else { index.trailing_ones() as usize };
        for _ in 0..carries {
            depth -= 1;
            // SAFETY: the digits below `depth` are written; a digit and the lanes do not overlap.
            unsafe {
                meet::<Plain<R::Acc>, O, I>(digit(depth), scratch, columns);
                std::ptr::copy_nonoverlapping(digit(depth), scratch, columns);
            }
        }
        // SAFETY: the digit is in the scratch.
        unsafe { std::ptr::copy_nonoverlapping(scratch, digit(depth), columns) };
        depth += 1;
    }
    // SAFETY: the one digit left is written; the result holds `columns` accumulators.
    unsafe { std::ptr::copy_nonoverlapping(digit(0), result, columns) }
}

/// Reduces a block of `axis` rows into the first of its lanes, of `columns` accumulators each.
///
/// # Safety
/// As for [`strided`].
#[inline(always)]
unsafe fn strided_block<R: Row, O: Op<R::Acc>, I: Level>(strip: Strip<R::Source>, lanes: *mut R::Acc) {
    let Strip { source, axis: rows, inner, columns } = strip;
    // Rows without a gap are one run of elements, and the lanes one run of accumulators.
    let rows_at_once = if columns == inner { LANES } else { 1 };
    for row in (0..rows).step_by(rows_at_once) {
        let count = rows_at_once.min(rows - row) * columns;
        // SAFETY: the rows are in the strip and their lanes in the scratch.
        unsafe {
            let (source, lanes) = (source.add(row * inner), lanes.add(row % LANES * columns));
            if row < LANES { fill::<R, I>(lanes, source, count) } else { meet::<R, O, I>(lanes, source, count) }
        }
    }
    let used = rows.min(LANES);
    let mut distance = 1;
    while distance < used {
        for lane in (0..used - distance).step_by(2 * distance) {
            // SAFETY: both lanes are used ones, and differ.
            unsafe {
                let (left, right) = (lanes.add(lane * columns), lanes.add((lane + distance) * columns));
                meet::<Plain<R::Acc>, O, I>(left, right, columns);
            }
        }
        distance *= 2;
    }
}

/// `accumulators[i] = source[i]`, widened.
///
/// # Safety
/// The machine has the instruction set; both are valid for `count` elements and do not overlap.
#[inline(always)]
unsafe fn fill<R: Row, I: Level>(accumulators: *mut R::Acc, source: *const R::Source, count: usize) {
    for at in (0..count).step_by(LANES) {
        let length = LANES.min(count - at);
        // SAFETY: `length` elements from `at` on are in bounds.
        unsafe {
            let tile = load_part::<R, I>(source.add(at), length);
            std::ptr::copy_nonoverlapping(tile.as_ptr(), accumulators.add(at), length);
        }
    }
}

/// `accumulators[i] = accumulators[i] ⊕ source[i]`.
///
/// # Safety
/// The machine has the instruction set; both are valid for `count` elements and do not overlap.
#[inline(always)]
unsafe fn meet<R: Row, O: Op<R::Acc>, I: Level>(accumulators: *mut R::Acc, source: *const R::Source, count: usize) {
    let whole = count - count % LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: `at + LANES <= whole`.
        unsafe {
            let target = accumulators.add(at).cast::<[R::Acc; LANES]>();
            target.write(combine::<R::Acc, O, LANES>(target.read(), ordered::<R>(R::load::<I, LANES>(source.add(at)))));
        }
    }
    if whole < count {
        // SAFETY: the elements from `whole` on are in bounds, and fewer than `LANES`.
        unsafe {
            let tail = load_part::<R, I>(source.add(whole), count - whole);
            for (lane, value) in tail[..count - whole].iter().enumerate() {
                let target = accumulators.add(whole + lane);
                target.write(O::combine(target.read(), *value));
            }
        }
    }
}

/// `count <= LANES` elements in order; the lanes after them hold any values.
///
/// # Safety
/// The machine has the instruction set; `source` is valid for reads of `count` elements.
#[inline(always)]
unsafe fn load_part<R: Row, I: Level>(source: *const R::Source, count: usize) -> [R::Acc; LANES] {
    if count == LANES {
        // SAFETY: there are `LANES` elements.
        return ordered::<R>(unsafe { R::load::<I, LANES>(source) });
    }
    // SAFETY: the padding is initialised, as zeros, which every type of element allows; `count` elements fit.
    unsafe {
        let mut padded = std::mem::zeroed::<[R::Source; LANES]>();
        std::ptr::copy_nonoverlapping(source, padded.as_mut_ptr(), count);
        ordered::<R>(R::load::<I, LANES>(padded.as_ptr()))
    }
}

/// A tile with element `e` in lane `e`.
#[inline(always)]
fn ordered<R: Row>(tile: [R::Acc; LANES]) -> [R::Acc; LANES] {
    let mut ordered = tile;
    for element in 0..LANES {
        ordered[element] = tile[R::lane(element, LANES)];
    }
    ordered
}
