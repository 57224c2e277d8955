//! Runs a kernel on any number of elements at any address: partial tiles at the ends, and whole
//! tiles between them, which may be written past the caches.

use super::{
    fold::{AHEAD_BYTES, Ask, Finish, LINE, Lines},
    kernel::{Fold, Kernel, SMALL_TILE_BYTES},
    nodes::Part,
};
use crate::cpu::{
    cache_hints::{CacheHints, Locality},
    prefetch::fetch_to_write,
};
use crate::tuning;
use std::{mem::MaybeUninit, ops::Range, ptr};

/// Limit on the sources whose partial small tiles are copied without an allocation.
const FEW: usize = 64;

/// A small tile of a source or target, whose elements are no larger than accumulators.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Tile([u8; SMALL_TILE_BYTES]);

/// A reduction with its operands.
struct Run<'a> {
    fold: Fold,
    small: Fold,
    tile: usize,
    small_tile: usize,
    source_bytes: usize,
    target_bytes: usize,
    divisor: u64,
    flow: CacheHints,
    /// Bytes that a larger reduction reads and writes, of which this one is a part; 0 without.
    of: usize,
    sources: &'a [*const u8],
    targets: &'a [*mut u8],
}

impl Kernel {
    /// Combines `sources` of `count` elements and writes the result to each target.
    ///
    /// # Safety
    /// There is a source. Sources are valid for reads of `count` elements, targets for writes of
    /// `count` results. A target is disjoint from each source or equal to it; equal only where an
    /// element and a result have the same size. Targets are disjoint from each other or equal.
    /// Until this returns, nobody else writes the sources or accesses the targets.
    pub(crate) unsafe fn reduce(
        &self,
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        divisor: u64,
        flow: CacheHints,
    ) {
        let bytes = (self.source_bytes, self.target_bytes);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.fold, self.small), bytes, sources, targets, count, (divisor, flow, 0)) }
    }

    /// [Reduces](Kernel::reduce) sources of accumulators, as a part of a reduction that reads and
    /// writes `of` bytes in all. 0 means no larger reduction.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(crate) unsafe fn finish(
        &self,
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        divisor: u64,
        of: usize,
    ) {
        let bytes = (self.acc_bytes, self.target_bytes);
        let past = if of < tuning::current().stream_bytes { usize::MAX } else { 0 };
        let how = (divisor, CacheHints { past, ..CacheHints::from(Locality::Near) }, 0);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.finish, self.small_finish), bytes, sources, targets, count, how) }
    }

    /// [Reduces](Kernel::reduce) sources of elements into accumulators.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(crate) unsafe fn keep(&self, sources: &[*const u8], target: *mut u8, count: usize) {
        let bytes = (self.source_bytes, self.acc_bytes);
        let how = (1, CacheHints::from(Locality::Near), 0);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.keep, self.small_keep), bytes, sources, &[target], count, how) }
    }

    /// [Reduces](Kernel::reduce) sources of accumulators into accumulators.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(crate) unsafe fn partial(&self, sources: &[*const u8], target: *mut u8, count: usize) {
        let bytes = (self.acc_bytes, self.acc_bytes);
        let how = (1, CacheHints::from(Locality::Near), 0);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.partial, self.small_partial), bytes, sources, &[target], count, how) }
    }

    /// Runs a step of a [`Shape`](super::Shape), as a part of a reduction that reads and writes
    /// `of` bytes in all. 0 means no larger reduction. Without a divisor the results stay
    /// accumulators.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(super) unsafe fn step(
        &self,
        from: Part,
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        divisor: Option<u64>,
        (flow, of): (CacheHints, usize),
    ) {
        let (functions, source_bytes) = match (from, divisor) {
            (Part::Elements, Some(_)) => ((self.fold, self.small), self.source_bytes),
            (Part::Elements, None) => ((self.keep, self.small_keep), self.source_bytes),
            (Part::Accumulators, Some(_)) => ((self.finish, self.small_finish), self.acc_bytes),
            (Part::Accumulators, None) => ((self.partial, self.small_partial), self.acc_bytes),
        };
        let target_bytes = if divisor.is_some() { self.target_bytes } else { self.acc_bytes };
        let how = (divisor.unwrap_or(1), flow, of);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run(functions, (source_bytes, target_bytes), sources, targets, count, how) }
    }

    /// Runs two functions of the kernel, one for large tiles and one for small tiles, on elements
    /// of `source_bytes` bytes and results of `target_bytes` bytes.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    unsafe fn run(
        &self,
        (fold, small): (Fold, Fold),
        (source_bytes, target_bytes): (usize, usize),
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        (divisor, flow, of): (u64, CacheHints, usize),
    ) {
        let Kernel { tile, small_tile, .. } = *self;
        let run =
            Run { fold, small, tile, small_tile, source_bytes, target_bytes, divisor, flow, of, sources, targets };
        // SAFETY: the caller's promises are the same.
        unsafe { run.all(count) }
    }
}

impl Run<'_> {
    /// # Safety
    /// As for [`Kernel::reduce`].
    unsafe fn all(&self, count: usize) {
        let bytes = count * (self.sources.len() * self.source_bytes + self.targets.len() * self.target_bytes);
        let bytes = bytes.max(self.of);
        let tuning = tuning::current();
        let past = match self.flow.past {
            usize::MAX if bytes >= tuning.stream_bytes => 0,
            past => past,
        };
        let is_long = count * self.target_bytes >= tuning.least_stream_bytes;
        let aligning = if is_long { self.elements_to_align(past) } else { None };
        let head = aligning.unwrap_or(0).min(count);
        let tail = count - rest(count - head, self.tile);
        let lines = match aligning {
            Some(_) => Lines::Ahead { past },
            None if bytes >= self.flow.from.ahead_bytes() => Lines::Ahead { past: usize::MAX },
            None => Lines::InTurn,
        };
        let ask = if lines == Lines::InTurn { Ask::ToRead } else { self.ask(count) };
        let finish = Finish { lines, ask, ..Finish::in_turn(self.divisor) };
        // SAFETY: the ranges are parts of `0..count`, the middle one a multiple of a tile, the
        // others less than a tile; they are disjoint, so no range reads what another range wrote.
        unsafe {
            self.part(0..head);
            (self.fold)(self.sources, self.targets, head..tail, finish);
            self.part(tail..count);
        }
    }

    /// Returns how the lines of sources are prefetched. Prefetches the first lines of a taken
    /// source at once.
    fn ask(&self, count: usize) -> Ask {
        let Locality::Taken(taken) = self.flow.from else {
            let are_targets = self.sources.iter().all(|source| self.targets.contains(&source.cast_mut()));
            return if are_targets { Ask::AsTargets } else { Ask::ToRead };
        };
        fetch_to_write(self.sources[taken], AHEAD_BYTES.min(count * self.source_bytes));
        Ask::Taking(taken)
    }

    /// Returns how many elements come before the first whole line of the targets from index `past`
    /// on, if these can be written past the caches: there is at least one, all begin at the same
    /// offset in a line, a multiple of an element's size, and none is a source, whose lines are in
    /// the cache already.
    fn elements_to_align(&self, past: usize) -> Option<usize> {
        let targets = self.targets.get(past..)?;
        let over = targets.first()?.addr() % LINE;
        let alike = targets.iter().all(|target| target.addr() % LINE == over);
        let apart = targets.iter().all(|target| !self.sources.contains(&target.cast_const()));
        let whole = over.is_multiple_of(self.target_bytes);
        (alike && whole && apart).then(|| (LINE - over) % LINE / self.target_bytes)
    }

    /// Reduces fewer elements than a tile has.
    ///
    /// # Safety
    /// As for [`Kernel::reduce`], of the elements in `range`.
    unsafe fn part(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let whole = range.end - rest(range.len(), self.small_tile);
        let finish = Finish::in_turn(self.divisor);
        // SAFETY: the caller's promises are the same; the first range is a multiple of a small
        // tile, the other range less than a small tile.
        unsafe {
            (self.small)(self.sources, self.targets, range.start..whole, finish);
            if whole == range.end {
                return;
            }
            let sources = self.sources.len();
            if sources <= FEW {
                let mut tiles = [const { MaybeUninit::uninit() }; FEW];
                self.padded(whole..range.end, &mut tiles[..sources], &mut [ptr::null(); FEW][..sources]);
            } else {
                let mut tiles = Vec::with_capacity(sources);
                let tiles = &mut tiles.spare_capacity_mut()[..sources];
                self.padded(whole..range.end, tiles, &mut vec![ptr::null(); sources]);
            }
        }
    }

    /// Reduces the elements in `range`. They are copied into small tiles, which zeros fill up.
    /// `pointers` is room for the addresses of the tiles.
    ///
    /// # Safety
    /// As for [`part`](Run::part), with fewer elements than a small tile has.
    unsafe fn padded(&self, range: Range<usize>, tiles: &mut [MaybeUninit<Tile>], pointers: &mut [*const u8]) {
        for ((source, tile), pointer) in self.sources.iter().zip(tiles).zip(&mut *pointers) {
            let tile = tile.write(Tile::ZERO);
            let bytes = range.len() * self.source_bytes;
            // SAFETY: the elements in `range` are in the source, and fewer than fit a tile.
            unsafe { ptr::copy_nonoverlapping(source.add(range.start * self.source_bytes), tile.0.as_mut_ptr(), bytes) }
            *pointer = tile.0.as_ptr();
        }
        let mut result = Tile::ZERO;
        let finish = Finish::in_turn(self.divisor);
        // SAFETY: each source and the result has one small tile; no source overlaps the result.
        unsafe { (self.small)(pointers, &[result.0.as_mut_ptr()], 0..self.small_tile, finish) }
        for target in self.targets {
            let bytes = range.len() * self.target_bytes;
            // SAFETY: the elements in `range` are in the target.
            unsafe { ptr::copy_nonoverlapping(result.0.as_ptr(), target.add(range.start * self.target_bytes), bytes) }
        }
    }
}

/// Returns how many of `count` elements are left after the whole tiles. Masks, because a division
/// would take as long as several tiles.
fn rest(count: usize, tile: usize) -> usize {
    debug_assert!(tile.is_power_of_two());
    count & (tile - 1)
}

impl Tile {
    const ZERO: Tile = Tile([0; SMALL_TILE_BYTES]);
}
