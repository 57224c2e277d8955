//! The data that a rank stages in a window, and their slot.

use crate::group::slot_swap;
use std::ops::Range;

/// The use of a staging slot.
///
/// Ranks that do not make the same call stage their data before they know it, each as its own call
/// requires. Swapped data therefore use the slots for results, not those for data: no rank writes
/// results before all agree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::group) enum Use {
    /// Data whose windows take `room` bytes each. Windows use the parts of a slot in turn: a cache
    /// line is written again only when it has left the caches of the rank that read it.
    Data { room: usize },
    /// Data in slots that two ranks swap.
    SwappedData,
    /// Results.
    Results,
}

impl Use {
    pub(in crate::group) fn data(swaps: bool, room: usize) -> Use {
        if swaps { Use::SwappedData } else { Use::Data { room } }
    }

    /// Returns the index of the slot for this use in window `window`.
    pub(in crate::group) fn slot(self, window: u64) -> usize {
        (if matches!(self, Use::Data { .. }) { 0 } else { 2 }) + (window & 1) as usize
    }

    /// Returns the offset of window `window` in the slot, of which windows use `moving_bytes` bytes
    /// in turn.
    pub(in crate::group) fn start(self, window: u64, moving_bytes: usize) -> usize {
        match self {
            Use::Data { room } => (window >> 1) as usize % (moving_bytes / room).max(1) * room,
            _ => 0,
        }
    }

    /// Returns the rank in whose staging `rank` has that slot.
    pub(in crate::group) fn place(self, rank: usize, window: u64) -> usize {
        if self == Use::SwappedData { slot_swap::place(rank, window) } else { rank }
    }
}

/// The data that a rank stages in a step.
#[derive(Clone, Copy)]
pub(in crate::group) struct Load<'a> {
    pub(in crate::group) input: *const u8,
    pub(in crate::group) bytes: usize,
    pub(in crate::group) blocks: Blocks<'a>,
    /// The block that no other rank reads.
    pub(in crate::group) kept: Option<usize>,
    /// Bytes of a block in the first window, and in each later one.
    pub(in crate::group) first: usize,
    pub(in crate::group) later: usize,
    /// Bytes from the slice of a block in a window to that of the next.
    pub(in crate::group) stride: usize,
    pub(in crate::group) slot: Use,
}

/// The blocks of a rank's data, one after the other.
#[derive(Clone, Copy)]
pub(in crate::group) enum Blocks<'a> {
    /// So many blocks of equal size.
    Equal(usize),
    /// Blocks with these counts of elements of `size` bytes.
    Ragged { counts: &'a [usize], size: usize },
}

impl Blocks<'_> {
    pub(in crate::group) fn count(self) -> usize {
        match self {
            Blocks::Equal(count) => count,
            Blocks::Ragged { counts, .. } => counts.len(),
        }
    }

    /// Returns the bytes of block `index` of `bytes` bytes of data.
    fn bytes(self, index: usize, bytes: usize) -> usize {
        match self {
            Blocks::Equal(count) => bytes / count,
            Blocks::Ragged { counts, size } => counts[index] * size,
        }
    }
}

impl Load<'_> {
    /// Returns the slice of each block that others read in window `window`, if it is staged: its
    /// place among the slices, and its bytes.
    pub(in crate::group) fn slices(self, window: usize) -> impl Iterator<Item = (usize, Range<usize>)> + Clone {
        let (slice, mut start, mut place) = (self.slice(window), 0, 0);
        (0..self.blocks.count()).filter_map(move |index| {
            let bytes = self.blocks.bytes(index, self.bytes);
            let part = start + slice.start.min(bytes)..start + slice.end.min(bytes);
            start += bytes;
            let is_staged = Some(index) != self.kept;
            place += usize::from(is_staged);
            is_staged.then(|| (place - 1, part))
        })
    }

    pub(in crate::group) fn slice(&self, window: usize) -> Range<usize> {
        let start = |window: usize| window.checked_sub(1).map_or(0, |later| self.first + later * self.later);
        start(window)..start(window + 1)
    }
}
