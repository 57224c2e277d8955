//! The memory in which a rank stages its data for others, as that rank sees it.

use super::{plan::SLOTS, slot_swap};
use crate::shm::{Area, records::Generation};
use std::{ops::Range, ptr};

/// Bytes of staging that are reserved at a time.
pub(super) const RESERVE_BYTES: usize = 64 << 10;

/// The use of a staging slot.
///
/// Ranks that do not make the same call stage their data before they know it, each as its own call
/// requires. Swapped data therefore use the slots for results, not those for data: no rank writes
/// results before all agree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Data whose windows take `room` bytes each. Windows use the parts of a slot in turn: a cache
    /// line is written again only when it has left the caches of the rank that read it.
    Data { room: usize },
    /// Data in slots that two ranks swap.
    SwappedData,
    /// Results.
    Results,
}

impl Use {
    pub(super) fn data(swaps: bool, room: usize) -> Use {
        if swaps { Use::SwappedData } else { Use::Data { room } }
    }

    /// Returns the index of the slot for this use in window `window`.
    pub(super) fn slot(self, window: u64) -> usize {
        (if matches!(self, Use::Data { .. }) { 0 } else { 2 }) + (window & 1) as usize
    }

    /// Returns the offset of window `window` in the slot, of which windows use `moving_bytes` bytes
    /// in turn.
    pub(super) fn start(self, window: u64, moving_bytes: usize) -> usize {
        match self {
            Use::Data { room } => (window >> 1) as usize % (moving_bytes / room).max(1) * room,
            _ => 0,
        }
    }

    /// Returns the rank in whose staging `rank` has that slot.
    pub(super) fn place(self, rank: usize, window: u64) -> usize {
        if self == Use::SwappedData { slot_swap::place(rank, window) } else { rank }
    }
}

/// One rank's staging, as that rank sees it.
pub(crate) struct Staging {
    pub(super) area: Area,
    /// The sequence number of the next window.
    pub(super) window: u64,
    /// All peers have read the windows before this one, because each has arrived at a call since.
    pub(super) settled: u64,
    /// Bytes of each slot whose pages are reserved: in this rank's own staging, and in the staging
    /// that it swaps for.
    pub(super) reserved: [[usize; SLOTS]; 2],
    pub(crate) reach: PeerRead,
}

/// Whether this rank reads the memory of all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerRead {
    /// Not tested before all ranks have arrived once.
    Untried,
    Yes,
    /// This rank cannot, or not all ranks can.
    No,
}

impl Staging {
    pub(crate) fn new(area: Area, generation: Generation) -> Staging {
        Staging {
            area,
            window: generation.base(),
            settled: generation.base(),
            reserved: [[0; SLOTS]; 2],
            reach: PeerRead::Untried,
        }
    }

    /// Whether this rank is known to read the memory of all others.
    pub(crate) fn reads(&self) -> bool {
        self.reach == PeerRead::Yes
    }

    pub(crate) fn renew(&mut self, generation: Generation) {
        (self.window, self.settled) = (generation.base(), generation.base());
    }

    /// Notes that all peers have arrived at this call, so that they read nothing more of the
    /// windows of earlier calls.
    pub(crate) fn settle(&mut self) {
        self.settled = self.window;
    }
}

/// The data that a rank stages in a step.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) input: *const u8,
    pub(super) bytes: usize,
    pub(super) blocks: Blocks<'a>,
    /// The block that no other rank reads.
    pub(super) kept: Option<usize>,
    /// Bytes of a block in the first window, and in each later one.
    pub(super) first: usize,
    pub(super) later: usize,
    /// Bytes from the slice of a block in a window to that of the next.
    pub(super) stride: usize,
    pub(super) slot: Use,
}

/// The blocks of a rank's data, one after the other.
#[derive(Clone, Copy)]
pub(super) enum Blocks<'a> {
    /// So many blocks of equal size.
    Equal(usize),
    /// Blocks with these counts of elements of `size` bytes.
    Ragged { counts: &'a [usize], size: usize },
}

impl Blocks<'_> {
    pub(super) fn count(self) -> usize {
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
    pub(super) fn slices(self, window: usize) -> impl Iterator<Item = (usize, Range<usize>)> + Clone {
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

    pub(super) fn slice(&self, window: usize) -> Range<usize> {
        let start = |window: usize| window.checked_sub(1).map_or(0, |later| self.first + later * self.later);
        start(window)..start(window + 1)
    }
}

/// A reference to data that a rank has not copied in, encoded in a word that the descriptor holds
/// in the place of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferRef {
    pub(crate) place: Option<Shown>,
    /// Whether this rank can read the memory of all others.
    pub(crate) reads: bool,
}

/// The location of data that are not copied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Offset in the heaps.
    Heap(usize),
    /// Address in the rank's own process.
    Own(usize),
}

impl BufferRef {
    const READS: usize = 1 << (usize::BITS - 1);
    const HEAP: usize = Self::READS >> 1;

    pub(crate) fn to_word<T>(self) -> *mut T {
        let place = self.place.map_or(0, |place| match place {
            Shown::Heap(byte) => Self::HEAP | byte,
            Shown::Own(address) => address,
        });
        ptr::without_provenance_mut(place | if self.reads { Self::READS } else { 0 })
    }

    pub(crate) fn read<T>(word: *const T) -> BufferRef {
        let (word, reads) = (word.addr() & !Self::READS, word.addr() & Self::READS != 0);
        let place = match word & Self::HEAP {
            0 => Some(word).filter(|&word| word != 0).map(Shown::Own),
            _ => Some(Shown::Heap(word & !Self::HEAP)),
        };
        BufferRef { place, reads }
    }
}

/// The same slot of every rank.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    /// The slot in the staging of rank 0.
    pub(crate) first: *mut u8,
    /// Bytes from the slot of one rank to that of the next.
    pub(crate) apart: usize,
    /// The window's sequence number, if ranks swap slots.
    pub(crate) swapped: Option<u64>,
}

impl Slots {
    pub(crate) fn of(self, rank: usize) -> *mut u8 {
        let place = self.swapped.map_or(rank, |window| slot_swap::place(rank, window));
        self.first.wrapping_add(place * self.apart)
    }
}
