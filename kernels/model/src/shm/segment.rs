//! The model of the memory that processes share: a few areas, each with a head, rank records and
//! staging, of which the model watches payloads and staging.

use super::{
    call_log::CallLog,
    local::Locals,
    records::{self, Head, RankRecord},
    ring::{CELL_BYTES, Cell as RingCell, RingEnds, SHORT_BYTES},
};
use crate::{
    fault,
    tuning::{self, Tuning},
    watched_memory,
};
use std::{
    cell::{Cell, UnsafeCell},
    io,
    ops::Range,
    ptr::NonNull,
    sync::Arc,
};

/// A block of a heap. The model allocates none.
pub(crate) enum Block {}

impl Block {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match *self {}
    }
}

/// The size in bytes of a watched piece.
const UNIT: usize = 128;

pub struct Segment {
    shape: Shape,
    areas: Vec<Memory>,
    /// The heaps of all ranks, in the order of ranks.
    heaps: Box<[UnsafeCell<u64>]>,
    /// Whether memory in a heap has been detached from the other processes.
    detached: Cell<bool>,
    call_log: CallLog,
}

/// The elements of a rank's heap: more than are staged.
const HEAP: usize = 2 * UNIT / size_of::<u64>() + Tuning::DEFAULT.in_place_bytes / size_of::<u64>();

// SAFETY: all threads of a model run on one thread of the system. The model reports accesses at the
// same time.
unsafe impl Sync for Segment {}

#[derive(Clone, Copy)]
pub struct Shape {
    pub(crate) ranks: usize,
    /// The bytes of one rank's staging.
    pub(crate) staging_bytes: usize,
    /// The number of areas for subgroups.
    pub(crate) splits: usize,
    /// Whether the groups have rings.
    pub(crate) rings: bool,
}

impl Shape {
    /// The usual bytes of one rank's staging, of which the model has far fewer.
    pub(crate) const STAGING_BYTES: usize = 1 << 20;
}

#[derive(Clone, Copy, Hash)]
pub(crate) enum Area {
    Root,
    Split(usize),
}

struct Memory {
    head: Box<Head>,
    records: Box<[RankRecord]>,
    staging: Box<[UnsafeCell<u8>]>,
    /// The rings by reader, then by writer. Empty if the shape has none.
    rings: Box<[(RingEnds, [RingCell; CELLS])]>,
}

/// The cells of a ring: so few that credits run out.
const CELLS: usize = 2;

impl Shape {
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }
}

impl Segment {
    pub(crate) const SPLITS: usize = 3;

    pub(crate) fn new(shape: Shape) -> Segment {
        let area = |_| Memory::new(shape);
        let heaps: Box<[UnsafeCell<u64>]> = (0..shape.ranks * HEAP).map(|_| UnsafeCell::new(0)).collect();
        watched_memory::watch(heaps.as_ptr().cast(), size_of_val(&*heaps), UNIT);
        let areas = (0..=shape.splits).map(area).collect();
        Segment { shape, areas, heaps, detached: Cell::new(false), call_log: CallLog }
    }

    /// Returns the start and the number of elements of this rank's heap.
    pub(crate) fn heap(&self, rank: usize) -> (*mut u64, usize) {
        (self.heaps[rank * HEAP].get(), HEAP)
    }

    /// Returns whether memory in a heap is no longer what the other processes see there.
    pub(crate) fn has_detached(&self) -> bool {
        self.detached.get()
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn tuning(&self) -> &'static Tuning {
        tuning::current()
    }

    /// Returns whether the calling rank has died: it then does nothing more.
    pub(crate) fn forked(&self) -> bool {
        fault::dead()
    }

    /// Returns the address of the group's name in the process. The model never reads it.
    pub(crate) fn mark(&self) -> usize {
        0
    }

    pub(crate) fn name(&self) -> [u8; 16] {
        [0; 16]
    }

    pub(crate) fn root(&self) -> Area {
        Area::Root
    }

    pub(crate) fn pair(&self, _: Area, _: usize, _: usize) -> Area {
        unreachable!("the model makes no pairs of processes")
    }

    fn memory(&self, area: Area) -> &Memory {
        match area {
            Area::Root => &self.areas[0],
            Area::Split(place) => &self.areas[1 + place],
        }
    }

    pub(crate) fn area(&self, area: Area) -> (NonNull<Head>, NonNull<RankRecord>) {
        let memory = self.memory(area);
        (NonNull::from(&*memory.head), NonNull::from(&*memory.records).cast())
    }

    /// Each rank is a process of its own.
    pub(crate) fn locals(&self, _: Area) -> Arc<Locals> {
        Arc::new(Locals::new(self.shape.ranks))
    }

    pub(crate) fn reserve_area(&self, _: Area) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn area_bytes(&self, _: Area) -> usize {
        0
    }

    pub(crate) fn staging_bytes(&self, _: Area) -> usize {
        self.shape.staging_bytes
    }

    pub(crate) fn staging_apart(&self, area: Area) -> usize {
        self.staging_bytes(area)
    }

    pub(crate) fn staging(&self, area: Area, rank: usize) -> NonNull<u8> {
        NonNull::from(&self.memory(area).staging[rank * self.shape.staging_bytes..]).cast()
    }

    pub(crate) fn reserve_staging(&self, _: Area, _: usize, _: Range<usize>) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn ring(&self, area: Area, from: usize, to: usize) -> (NonNull<RingEnds>, NonNull<[RingCell]>) {
        let (ends, cells) = &self.memory(area).rings[to * self.shape.ranks + from];
        (NonNull::from(ends), NonNull::from(&cells[..]))
    }

    pub(crate) fn reserve_ring_ends(&self, _: Area, _: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn reserve_ring(&self, _: Area, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn find(&self, address: *const u8, bytes: usize, _: bool) -> Option<usize> {
        let start = address.addr().checked_sub(self.heaps.as_ptr().addr())?;
        (start + bytes <= size_of_val(&*self.heaps)).then_some(start)
    }

    pub(crate) fn in_heaps(&self, start: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = start.checked_add(bytes)?;
        (end <= size_of_val(&*self.heaps)).then(|| NonNull::from(&self.heaps[start / size_of::<u64>()]).cast())
    }

    /// All pages are present.
    pub(crate) fn present(&self, start: usize) -> usize {
        size_of_val(&*self.heaps).saturating_sub(start)
    }

    /// Only records the call, because all processes of the model see one memory: see
    /// [`has_detached`](Segment::has_detached).
    pub(crate) fn detach(&self, _: Range<usize>) -> io::Result<()> {
        self.detached.set(true);
        Ok(())
    }

    pub(crate) fn allocate(self: &Arc<Segment>, _: usize, _: usize) -> io::Result<Block> {
        unreachable!("the model allocates nothing")
    }

    pub(crate) fn call_log(&self, _: usize) -> &CallLog {
        &self.call_log
    }
}

impl Memory {
    fn new(shape: Shape) -> Memory {
        let records: Box<[RankRecord]> = (0..shape.ranks).map(|_| RankRecord::default()).collect();
        watch_payloads(&records);
        let staging: Box<[UnsafeCell<u8>]> =
            (0..shape.ranks * shape.staging_bytes).map(|_| UnsafeCell::new(0)).collect();
        watched_memory::watch(staging.as_ptr().cast(), staging.len(), UNIT);
        let rings = if shape.rings { shape.ranks * shape.ranks } else { 0 };
        let rings: Box<[(RingEnds, [RingCell; CELLS])]> = (0..rings).map(|_| Default::default()).collect();
        for cell in rings.iter().flat_map(|(_, cells)| cells) {
            watched_memory::watch(cell.short.get().cast(), SHORT_BYTES, SHORT_BYTES);
            watched_memory::watch(cell.long.get().cast(), CELL_BYTES, CELL_BYTES);
        }
        Memory { head: Box::default(), records, staging, rings }
    }
}

/// Watches the payload bytes in the call descriptors.
pub(crate) fn watch_payloads(records: &[RankRecord]) {
    for record in records {
        for sequence in 0..records::DESCRIPTORS as u64 {
            watched_memory::watch(record.descriptor(sequence).payload(), records::FIRST_BYTES, records::FIRST_BYTES);
            watched_memory::watch(record.message(sequence), records::MESSAGE_BYTES, records::MESSAGE_BYTES);
        }
        for sequence in 0..records::PLACES as u64 {
            watched_memory::watch(record.payload(sequence), records::PAYLOAD_BYTES, records::PAYLOAD_BYTES);
        }
    }
}
