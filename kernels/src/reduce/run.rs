//! A kernel on any number of elements at any address: parts of tiles at the ends, and stores past the caches between them.

use super::{
    fold::{Finish, MAX_SOURCES},
    kernel::{Fold, Kernel},
};
use std::{mem::MaybeUninit, ops::Range, ptr};

/// Bytes of a cache line, to which stores past the caches are aligned.
const LINE: usize = 64;

/// Bytes that a reduction reads and writes from which on it writes past the caches: a usual second-level cache several times
/// over, so that the result would not be found there anyway. Such a store does not read the line that it fills.
const STREAM_BYTES: usize = 8 << 20;

/// Sources of a part of a tile that are copied without an allocation.
const FEW: usize = 8;

/// The largest tile of sources, accumulators or targets.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([u8; 256]);

/// A reduction with its operands.
struct Run<'a> {
    fold: Fold,
    tile: usize,
    source_bytes: usize,
    target_bytes: usize,
    divisor: u64,
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
    pub(crate) unsafe fn reduce(&self, sources: &[*const u8], targets: &[*mut u8], count: usize, divisor: u64) {
        let Kernel { fold, tile, source_bytes, target_bytes, .. } = *self;
        // SAFETY: the caller's promises are the same.
        unsafe { Run { fold, tile, source_bytes, target_bytes, divisor, sources, targets }.all(count) }
    }

    /// [`reduce`](Kernel::reduce) of sources of accumulators.
    ///
    /// # Safety
    /// As for [`reduce`](Kernel::reduce).
    pub(crate) unsafe fn finish(&self, sources: &[*const u8], targets: &[*mut u8], count: usize, divisor: u64) {
        let Kernel { finish: fold, tile, acc_bytes: source_bytes, target_bytes, .. } = *self;
        // SAFETY: the caller's promises are the same.
        unsafe { Run { fold, tile, source_bytes, target_bytes, divisor, sources, targets }.all(count) }
    }
}

impl Run<'_> {
    /// # Safety
    /// As for [`Kernel::reduce`].
    unsafe fn all(&self, count: usize) {
        assert!(self.sources.len() <= MAX_SOURCES, "{} sources of a reduction", self.sources.len());
        let aligning = self.elements_to_align(count);
        let head = aligning.unwrap_or(0).min(count);
        let tail = count - (count - head) % self.tile;
        let finish = Finish { divisor: self.divisor, stream: aligning.is_some() };
        // SAFETY: the ranges are parts of `0..count`, the middle one a multiple of a tile, the others less than one; they are
        // disjoint, so that no range reads what another one wrote.
        unsafe {
            self.part(0..head);
            (self.fold)(self.sources, self.targets, head..tail, finish);
            self.part(tail..count);
        }
    }

    /// How many elements come before the first line of the targets, if they should be written past the caches: there are many
    /// bytes, all targets begin alike, and none of them is a source, whose line is in the cache already.
    fn elements_to_align(&self, count: usize) -> Option<usize> {
        let bytes = count * (self.sources.len() * self.source_bytes + self.targets.len() * self.target_bytes);
        if bytes < STREAM_BYTES {
            return None;
        }
        let over = self.targets.first()?.addr() % LINE;
        let alike = self.targets.iter().all(|target| target.addr() % LINE == over);
        let apart = self.targets.iter().all(|target| !self.sources.contains(&target.cast_const()));
        (alike && apart).then(|| (LINE - over) % LINE / self.target_bytes)
    }

    /// Reduces less than a tile, by way of whole ones.
    ///
    /// # Safety
    /// As for [`Kernel::reduce`], of the elements in `range`, which is shorter than a tile.
    unsafe fn part(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let sources = self.sources.len();
        // SAFETY: the caller's promises are the same.
        unsafe {
            if sources <= FEW {
                let mut tiles = [const { MaybeUninit::uninit() }; FEW];
                self.padded(range, &mut tiles[..sources], &mut [ptr::null(); FEW][..sources]);
            } else {
                let mut tiles = Vec::with_capacity(sources);
                self.padded(range, &mut tiles.spare_capacity_mut()[..sources], &mut vec![ptr::null(); sources]);
            }
        }
    }

    /// Reduces the elements in `range`, copied into tiles that zeros fill up; `pointers` are room for the tiles' addresses.
    ///
    /// # Safety
    /// As for [`part`](Run::part).
    unsafe fn padded(&self, range: Range<usize>, tiles: &mut [MaybeUninit<Tile>], pointers: &mut [*const u8]) {
        for ((source, tile), pointer) in self.sources.iter().zip(tiles).zip(&mut *pointers) {
            let tile = tile.write(Tile::ZERO);
            let bytes = range.len() * self.source_bytes;
            // SAFETY: the elements in `range` are in the source, and fewer than fit a tile.
            unsafe { ptr::copy_nonoverlapping(source.add(range.start * self.source_bytes), tile.0.as_mut_ptr(), bytes) }
            *pointer = tile.0.as_ptr();
        }
        let mut result = Tile::ZERO;
        let finish = Finish { divisor: self.divisor, stream: false };
        // SAFETY: one tile of each source and of the result, which no source overlaps.
        unsafe { (self.fold)(pointers, &[result.0.as_mut_ptr()], 0..self.tile, finish) }
        for target in self.targets {
            let bytes = range.len() * self.target_bytes;
            // SAFETY: the elements in `range` are in the target.
            unsafe { ptr::copy_nonoverlapping(result.0.as_ptr(), target.add(range.start * self.target_bytes), bytes) }
        }
    }
}

impl Tile {
    const ZERO: Tile = Tile([0; 256]);
}
