//! The body of every reduction of several sources into one result: a tile of registers, folded over
//! the sources.
//!
//! The compiler vectorizes the loops over a tile's lanes and keeps the tiles in registers, so each
//! byte is read once and written once. A tile is 4 registers of accumulators: enough to hide the
//! latency of an addition, and few enough that 16 registers hold the three tiles that eight sources
//! need at a time.

use super::{
    combine::Op,
    element::{ElementCodec, Quotient},
    simd::Simd,
};
use std::{mem::MaybeUninit, ops::Range};

/// Number of sources whose tiles are combined in registers. An aligned group of this many sources
/// is a complete subtree of the canonical order.
const GROUP: usize = 8;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Levels of the tree above the groups: enough for the longest slice of sources, whose bytes fit an
/// `isize`.
const LEVELS: usize = 1 + (isize::MAX as usize / size_of::<*const u8>() / GROUP).ilog2() as usize;

/// Prefetch distance, from a tile to the tile that is prefetched meanwhile, in bytes: about as many
/// lines as a core can wait for at a time.
pub(super) const AHEAD_BYTES: usize = 512;

/// The last step of results, and the way to write them.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) quotient: Quotient,
    pub(crate) lines: Lines,
    pub(crate) ask: Ask,
}

impl Finish {
    /// Returns a finish that divides results by `divisor` and does not prefetch.
    pub(crate) fn in_turn(divisor: u64) -> Finish {
        Finish { quotient: Quotient::new(divisor), lines: Lines::InTurn, ask: Ask::ToRead }
    }
}

/// The way to read and write cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// As their tile is computed, without prefetches.
    InTurn,
    /// Prefetched, except those of the targets from index `past` on, which are written past the
    /// caches. In each of these targets the range begins at the start of a line.
    Ahead { past: usize },
}

/// The way to prefetch the lines of sources, if lines are prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// For reading.
    ToRead,
    /// For reading, except those of the source with this index: for writing, because this core
    /// writes there next.
    Taking(usize),
    /// Not as sources: each source is also a target, and prefetched as such.
    AsTargets,
}

/// Computes `targets[..][at] = sources[0][at] ⊕ sources[1][at] ⊕ …` in canonical order, for each
/// element `at` of `range`.
///
/// # Safety
/// The machine has the instruction set `I`. `range` has a multiple of `L` elements; in it, sources
/// are valid for reads and targets for writes. A target is disjoint from a source or equal to it.
/// There is a source.
#[inline(always)]
pub(crate) unsafe fn fold<R: ElementCodec, O: Op<R::Acc>, I: Simd, const L: usize>(
    sources: &[*const u8],
    targets: &[*mut u8],
    range: Range<usize>,
    finish: Finish,
) {
    // Most reductions have one group and skip the counter of `tree`: for data in the caches its
    // instructions take noticeable time.
    let few = sources.len() <= GROUP;
    let past = match finish.lines {
        Lines::InTurn => targets.len(),
        Lines::Ahead { past } => past.min(targets.len()),
    };
    let mut at = range.start;
    while at < range.end {
        if finish.lines != Lines::InTurn {
            for target in &targets[..past] {
                let tile = target.cast::<R::Target>().wrapping_add(at).cast_const();
                each_line::<_, L>(tile, AHEAD_BYTES, I::prefetch_to_write);
            }
            let asked = if finish.ask == Ask::AsTargets { 0 } else { sources.len() };
            for (index, source) in sources[..asked].iter().enumerate() {
                let tile = source.cast::<R::Source>().wrapping_add(at);
                match finish.ask == Ask::Taking(index) {
                    true => each_line::<_, L>(tile, AHEAD_BYTES, I::prefetch_to_write),
                    false => prefetch::<_, I, L>(tile, AHEAD_BYTES),
                }
            }
        }
        // SAFETY: the caller vouches for a tile at `at`.
        let tile = unsafe { if few { group::<R, O, I, L>(sources, at) } else { tree::<R, O, I, L>(sources, at) } };
        // SAFETY: the caller vouches for the machine.
        let result = unsafe { R::store::<I, L>(tile, finish.quotient) };
        for (index, target) in targets.iter().enumerate() {
            // SAFETY: the caller vouches for a tile at `at`; all its sources have been read.
            unsafe {
                let target = target.cast::<R::Target>().add(at);
                if index < past {
                    target.cast::<[R::Target; L]>().write_unaligned(result);
                } else {
                    I::stream(target, result);
                }
            }
        }
        at += L;
    }
    if past < targets.len() {
        I::fence();
    }
}

/// Combines the tiles at `at` of all sources. Groups are combined as a binary counter carries: each
/// digit is a finished subtree.
///
/// # Safety
/// As for [`fold`].
#[inline(always)]
unsafe fn tree<R: ElementCodec, O: Op<R::Acc>, I: Simd, const L: usize>(
    sources: &[*const u8],
    at: usize,
) -> [R::Acc; L] {
    let mut digits = [const { MaybeUninit::<[R::Acc; L]>::uninit() }; LEVELS];
    let mut depth = 0;
    let mut rest = sources;
    for index in 0usize.. {
        let (sources, after) = rest.split_at(rest.len().min(GROUP));
        // SAFETY: the caller vouches for the sources.
        let mut tile = unsafe { group::<R, O, I, L>(sources, at) };
        let carries = if after.is_empty() { depth } else { index.trailing_ones() as usize };
        for _ in 0..carries {
            depth -= 1;
            // SAFETY: the digits below `depth` were written, and a counter has as many digits as it
            // carries.
            tile = combine::<R::Acc, O, L>(unsafe { digits[depth].assume_init() }, tile);
        }
        if after.is_empty() {
            return tile;
        }
        digits[depth].write(tile);
        depth += 1;
        rest = after;
    }
    unreachable!("some group is the last")
}

/// Combines the tiles at `at` of one to eight sources, in registers.
///
/// # Safety
/// As for [`fold`], with at most [`GROUP`] sources.
#[inline(always)]
unsafe fn group<R: ElementCodec, O: Op<R::Acc>, I: Simd, const L: usize>(
    sources: &[*const u8],
    at: usize,
) -> [R::Acc; L] {
    let count = sources.len();
    // SAFETY: the indices are below `count`; the caller vouches for the tiles.
    unsafe {
        let mut tile = pair::<R, O, I, L>(sources, 0, at);
        if count > 2 {
            tile = combine::<R::Acc, O, L>(tile, pair::<R, O, I, L>(sources, 2, at));
        }
        if count > 4 {
            let mut right = pair::<R, O, I, L>(sources, 4, at);
            if count > 6 {
                right = combine::<R::Acc, O, L>(right, pair::<R, O, I, L>(sources, 6, at));
            }
            tile = combine::<R::Acc, O, L>(tile, right);
        }
        tile
    }
}

/// Combines the tiles at `at` of source `index` and, if there is one, of the next source.
///
/// # Safety
/// As for [`group`], with `index < sources.len()`.
#[inline(always)]
unsafe fn pair<R: ElementCodec, O: Op<R::Acc>, I: Simd, const L: usize>(
    sources: &[*const u8],
    index: usize,
    at: usize,
) -> [R::Acc; L] {
    // SAFETY: the indices are in bounds; the caller vouches for the tiles.
    unsafe {
        let left = R::load::<I, L>(sources.get_unchecked(index).cast::<R::Source>().add(at));
        if index + 1 == sources.len() {
            return left;
        }
        let right = R::load::<I, L>(sources.get_unchecked(index + 1).cast::<R::Source>().add(at));
        combine::<R::Acc, O, L>(left, right)
    }
}

/// Prefetches the lines of the tile that is `ahead` bytes after `tile`. They need not exist.
#[inline(always)]
pub(crate) fn prefetch<T, I: Simd, const L: usize>(tile: *const T, ahead: usize) {
    each_line::<T, L>(tile, ahead, I::prefetch);
}

#[inline(always)]
fn each_line<T, const L: usize>(tile: *const T, ahead: usize, ask: impl Fn(*const u8)) {
    for line in (0..size_of::<[T; L]>()).step_by(LINE) {
        ask(tile.cast::<u8>().wrapping_add(ahead + line));
    }
}

/// Combines two tiles lane by lane.
#[inline(always)]
pub(crate) fn combine<A: Copy, O: Op<A>, const L: usize>(a: [A; L], b: [A; L]) -> [A; L] {
    let mut tile = a;
    for lane in 0..L {
        tile[lane] = O::combine(a[lane], b[lane]);
    }
    tile
}
