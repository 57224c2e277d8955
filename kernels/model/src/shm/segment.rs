//! The memory that processes share, in the model: a few areas, each with a head, lines and staging
//! that are watched.

use super::{
    call_log::CallLog,
    local::Locals,
    records::{Head, RankRecord},
};
use crate::{fault, group::tuning::IN_PLACE_BYTES, watched};
use std::{
    cell::{Cell, UnsafeCell},
    io,
    ops::Range,
    ptr::NonNull,
    sync::Arc,
};

/// Memory in a heap: nobody asks for any.
pub(crate) enum Block {}

impl Block {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match *self {}
    }
}

/// Bytes that are watched as one.
const UNIT: usize = 128;

pub struct Segment {
    shape: Shape,
    areas: Vec<Memory>,
    /// The heaps of all ranks, one after the other.
    heaps: Box<[UnsafeCell<u64>]>,
    /// Whether memory in a heap was taken away from the others.
    detached: Cell<bool>,
    call_log: CallLog,
}

/// Elements of a rank's heap: more than are put up.
const HEAP: usize = 2 * UNIT / size_of::<u64>() + IN_PLACE_BYTES / size_of::<u64>();

// SAFETY: all threads of a model run on one thread of the system; what of this they touch at the
// same time, it reports.
unsafe impl Sync for Segment {}

#[derive(Clone, Copy)]
pub struct Shape {
    pub(crate) ranks: usize,
    /// Of one rank.
    pub(crate) staging_bytes: usize,
    /// Groups that can be split off.
    pub(crate) splits: usize,
}

#[derive(Clone, Copy)]
pub(crate) enum Area {
    Root,
    Split(usize),
}

struct Memory {
    head: Box<Head>,
    records: Box<[RankRecord]>,
    staging: Box<[UnsafeCell<u8>]>,
}

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
        watched::watch(heaps.as_ptr().cast(), size_of_val(&*heaps), UNIT);
        let areas = (0..=shape.splits).map(area).collect();
        Segment { shape, areas, heaps, detached: Cell::new(false), call_log: CallLog }
    }

    /// The elements of this rank's heap.
    pub(crate) fn heap(&self, rank: usize) -> (*mut u64, usize) {
        (self.heaps[rank * HEAP].get(), HEAP)
    }

    /// Whether memory in a heap is not what the other processes see there.
    pub(crate) fn has_detached(&self) -> bool {
        self.detached.get()
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// A rank that died does nothing more.
    pub(crate) fn forked(&self) -> bool {
        fault::dead()
    }

    /// Where the process has the group's name: nobody looks.
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

    pub(crate) fn staging(&self, area: Area, rank: usize) -> NonNull<u8> {
        NonNull::from(&self.memory(area).staging[rank * self.shape.staging_bytes..]).cast()
    }

    pub(crate) fn reserve_staging(&self, _: Area, _: usize, _: Range<usize>) -> io::Result<()> {
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

    /// All pages are there.
    pub(crate) fn present(&self, start: usize) -> usize {
        size_of_val(&*self.heaps).saturating_sub(start)
    }

    /// Here all processes see one memory: see [`has_detached`](Segment::has_detached).
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
        watched::watch(staging.as_ptr().cast(), staging.len(), UNIT);
        Memory { head: Box::default(), records, staging }
    }
}

/// Watches the bytes that ride along with arrivals.
pub(crate) fn watch_payloads(records: &[RankRecord]) {
    for record in records {
        for sequence in 0..2 {
            let (descriptor, rest) = (record.descriptor(sequence), crate::shm::records::PAYLOAD_BYTES);
            watched::watch(descriptor.payload(), crate::shm::records::FIRST_BYTES, crate::shm::records::FIRST_BYTES);
            watched::watch(descriptor.rest(), rest, rest);
        }
    }
}
