//! The memory in which a rank puts its data up for others, as that rank sees it.

use super::{plan::SLOTS, slot_swap, tuning::MOVING_BYTES};
use crate::shm::{Area, records::Generation};
use std::{ops::Range, ptr};

/// What a slot is for.
///
/// Ranks that do not call the same stage before they know that, each as its own call wants it. Data
/// that are traded have slots of their own, therefore: those for results, which nobody writes
/// before all agree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Data, of which a window takes so much room. Windows lie in parts of a slot in turn: a line
    /// is written again when it has left the caches of who read it.
    Data { room: usize },
    /// Data, in places that the ranks trade.
    SwappedData,
    /// Results.
    Results,
}

impl Use {
    pub(super) fn data(swaps: bool, room: usize) -> Use {
        if swaps { Use::SwappedData } else { Use::Data { room } }
    }

    /// The slot for this in window `window`.
    pub(super) fn slot(self, window: u64) -> usize {
        (if matches!(self, Use::Data { .. }) { 0 } else { 2 }) + (window & 1) as usize
    }

    /// Where in the slot, of so many bytes, window `window` lies.
    pub(super) fn start(self, window: u64, slot_bytes: usize) -> usize {
        match self {
            Use::Data { room } => (window >> 1) as usize % (slot_bytes.min(MOVING_BYTES) / room).max(1) * room,
            _ => 0,
        }
    }

    /// The rank in whose place `rank` has that slot.
    pub(super) fn place(self, rank: usize, window: u64) -> usize {
        if self == Use::SwappedData { slot_swap::place(rank, window) } else { rank }
    }
}

/// One rank's staging, as that rank sees it.
pub(crate) struct Staging {
    pub(super) area: Area,
    /// The next window's number.
    pub(super) window: u64,
    /// All peers have read the windows before this one: each has arrived at a call since.
    pub(super) settled: u64,
    /// Bytes of each slot that the system has given, in this rank's place and in one that it trades
    /// for.
    pub(super) reserved: [[usize; SLOTS]; 2],
    pub(crate) reach: PeerRead,
}

/// Whether this rank reads the memory of all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerRead {
    /// To be tried when all have arrived once.
    Untried,
    Yes,
    /// It cannot, or not all can.
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

    /// Whether this rank reads the memory of all others, as far as it knows.
    pub(crate) fn reads(&self) -> bool {
        self.reach == PeerRead::Yes
    }

    pub(crate) fn renew(&mut self, generation: Generation) {
        (self.window, self.settled) = (generation.base(), generation.base());
    }

    /// All peers have arrived at this call, and so read nothing of the windows of those before any
    /// more.
    pub(crate) fn settle(&mut self) {
        self.settled = self.window;
    }
}

/// What a rank puts up in a step: its data as `blocks` of equal size, of each of which `stride`
/// bytes fit a window.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) input: *const u8,
    pub(super) bytes: usize,
    pub(super) blocks: usize,
    /// The block that no other rank reads.
    pub(super) kept: Option<usize>,
    pub(super) stride: usize,
    pub(super) slot: Use,
}

impl Load {
    pub(super) fn slice(&self, window: usize) -> Range<usize> {
        window * self.stride..(window + 1) * self.stride
    }
}

/// What a rank tells the others of data that it has not put up: a word, in the place of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferRef {
    pub(crate) place: Option<Shown>,
    /// Whether this rank can read the memory of all others.
    pub(crate) reads: bool,
}

/// Where data lie that are not put up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Byte of the heaps.
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
    /// That in the place of rank 0.
    pub(crate) first: *mut u8,
    /// Bytes from one rank's to the next one's.
    pub(crate) apart: usize,
    /// The number of the window, if ranks trade places.
    pub(crate) swapped: Option<u64>,
}

impl Slots {
    pub(crate) fn of(self, rank: usize) -> *mut u8 {
        let place = self.swapped.map_or(rank, |window| slot_swap::place(rank, window));
        self.first.wrapping_add(place * self.apart)
    }
}
