//! A kernel on any number of elements at any address: parts of tiles at the ends, and stores past the caches between them.

use super::{
    fold::{AHEAD_BYTES, Finish, LINE, Lines, MAX_SOURCES},
    kernel::{Fold, Kernel, SMALL_TILE_BYTES},
};
use crate::copy::fetch_to_write;
use std::{mem::MaybeUninit, ops::Range, ptr};

/// Bytes that a reduction reads and writes from which on it writes past the caches, more than the last one holds. Such a store
/// does not read the line that it fills: where memory is the limit that gains up to a half (one core and two on an idle machine),
/// where a core's own buffers are it neither gains nor loses. Below, where lines are still in the last cache, it was measured to
/// take 1.4 to 1.8 times as long. (Tests write past the caches sooner.)
pub(super) const STREAM_BYTES: usize = if cfg!(test) { 1 << 20 } else { 48 << 20 };

/// Where the data of a reduction are, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    /// In this core's own caches, unless they are too many.
    Near,
    /// In other cores' caches, or in memory.
    Far,
    /// As before; and this core writes next where the source of this index is.
    Taken(usize),
}

impl Distance {
    /// How many bytes are read and written, at the least, by a reduction that asks for lines before it needs them: the machine's own
    /// prefetchers end at each page, and fetch no line for writing. Between 2 ranks on two cores, an all-reduce takes 0.9
    /// of the time at 256 KiB, and 0.76 to 0.84 from 1 MiB on. In a core's own caches it takes 1.1 to 1.3 times as long.
    pub(super) fn ahead_bytes(self) -> usize {
        match self {
            Distance::Near => 1 << 20,
            Distance::Far => 64 << 10,
            Distance::Taken(_) => 0,
        }
    }
}

/// Sources of a part of a small tile that are copied without an allocation.
const FEW: usize = 64;

/// A small tile of sources or targets, neither of which are larger than accumulators.
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
    distance: Distance,
    /// The bytes that all reads and writes which this is a part of.
    of: usize,
    sources: &'a [*const u8],
    targets: &'a [*mut u8],
}

impl Kernel {
    /// Combines `sources` of `count` elements and writes the result to each target.
    ///
    /// # Safety
    /// There is a source. Sources are valid for reads of `count` elements, targets for writes of `count` results. A target is
    /// disjoint from each source or equal to it; equal only where an element and a result have the same size. Targets are
    /// disjoint from each other or equal. Nobody else writes the sources or touches the targets meanwhile.
    pub(crate) unsafe fn reduce(
        &self,
        sources: &[*const u8],
        targets: &[*mut u8],
        count: usize,
        divisor: u64,
        distance: Distance,
    ) {
        let bytes = (self.source_bytes, self.target_bytes);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.fold, self.small), bytes, sources, targets, count, (divisor, distance, 0)) }
    }

    /// [`reduce`](Kernel::reduce) of sources of accumulators, as part of something that reads and writes `of` bytes if
    /// that is more than it does itself.
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
        let how = (divisor, Distance::Near, of);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.finish, self.small_finish), bytes, sources, targets, count, how) }
    }

    /// [`reduce`](Kernel::reduce) into accumulators.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(crate) unsafe fn keep(&self, sources: &[*const u8], target: *mut u8, count: usize) {
        let bytes = (self.source_bytes, self.acc_bytes);
        // SAFETY: the caller's promises are the same.
        unsafe { self.run((self.keep, self.small_keep), bytes, sources, &[target], count, (1, Distance::Near, 0)) }
    }

    /// [`reduce`](Kernel::reduce) of sources of accumulators into accumulators.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(crate) unsafe fn partial(&self, sources: &[*const u8], target: *mut u8, count: usize) {
        let bytes = (self.acc_bytes, self.acc_bytes);
        // SAFETY: the caller's promises are the same.
        unsafe {
            self.run((self.partial, self.small_partial), bytes, sources, &[target], count, (1, Distance::Near, 0))
        }
    }

    /// Runs a kernel, of large tiles and of small ones, on elements and results of so many bytes.
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
        (divisor, distance, of): (u64, Distance, usize),
    ) {
        let Kernel { tile, small_tile, .. } = *self;
        let run =
            Run { fold, small, tile, small_tile, source_bytes, target_bytes, divisor, distance, of, sources, targets };
        // SAFETY: the caller's promises are the same.
        unsafe { run.all(count) }
    }
}

impl Run<'_> {
    /// # Safety
    /// As for [`Kernel::reduce`].
    unsafe fn all(&self, count: usize) {
        assert!(self.sources.len() <= MAX_SOURCES, "{} sources of a reduction", self.sources.len());
        let bytes = count * (self.sources.len() * self.source_bytes + self.targets.len() * self.target_bytes);
        let bytes = bytes.max(self.of);
        let aligning = if bytes < STREAM_BYTES { None } else { self.elements_to_align() };
        let head = aligning.unwrap_or(0).min(count);
        let tail = count - rest(count - head, self.tile);
        let lines = match aligning {
            Some(_) => Lines::PastCaches,
            None if bytes >= self.distance.ahead_bytes() => Lines::Ahead,
            None => Lines::InTurn,
        };
        let taken = if lines == Lines::Ahead { self.take(count) } else { None };
        let finish = Finish { divisor: self.divisor, lines, taken };
        // SAFETY: the ranges are parts of `0..count`, the middle one a multiple of a tile, the others less than one; they are
        // disjoint, so that no range reads what another one wrote.
        unsafe {
            self.part(0..head);
            (self.fold)(self.sources, self.targets, head..tail, finish);
            self.part(tail..count);
        }
    }

    /// The source whose lines are asked for as some that are written next; its first ones at once.
    fn take(&self, count: usize) -> Option<u8> {
        let Distance::Taken(taken) = self.distance else { return None };
        let first = AHEAD_BYTES.min(count * self.source_bytes);
        fetch_to_write(self.sources[taken], first);
        u8::try_from(taken).ok()
    }

    /// How many elements come before the first line of the targets, if they can be written past the caches: all targets begin
    /// alike, and none of them is a source, whose line is in the cache already.
    fn elements_to_align(&self) -> Option<usize> {
        let over = self.targets.first()?.addr() % LINE;
        let alike = self.targets.iter().all(|target| target.addr() % LINE == over);
        let apart = self.targets.iter().all(|target| !self.sources.contains(&target.cast_const()));
        (alike && apart).then(|| (LINE - over) % LINE / self.target_bytes)
    }

    /// Reduces less than a tile.
    ///
    /// # Safety
    /// As for [`Kernel::reduce`], of the elements in `range`.
    unsafe fn part(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let whole = range.end - rest(range.len(), self.small_tile);
        let finish = Finish::in_turn(self.divisor);
        // SAFETY: the caller's promises are the same; the first range is a multiple of a small tile, the other less than one.
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

    /// Reduces the elements in `range`, copied into small tiles that zeros fill up; `pointers` are room for the tiles' addresses.
    ///
    /// # Safety
    /// As for [`part`](Run::part), with less than a small tile.
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
        // SAFETY: one small tile of each source and of the result, which no source overlaps.
        unsafe { (self.small)(pointers, &[result.0.as_mut_ptr()], 0..self.small_tile, finish) }
        for target in self.targets {
            let bytes = range.len() * self.target_bytes;
            // SAFETY: the elements in `range` are in the target.
            unsafe { ptr::copy_nonoverlapping(result.0.as_ptr(), target.add(range.start * self.target_bytes), bytes) }
        }
    }
}

/// What is left of `count` elements after as many tiles as there are: a division would take as long as some of those.
fn rest(count: usize, tile: usize) -> usize {
    debug_assert!(tile.is_power_of_two());
    count & (tile - 1)
}

impl Tile {
    const ZERO: Tile = Tile([0; SMALL_TILE_BYTES]);
}
