//! The memory that processes share, in the model: a few areas, each with a head, lines and staging that are watched.

use crate::{fault, hub::Head, line::Line, memory, trace::Ring};
use std::{cell::UnsafeCell, io, ops::Range, ptr::NonNull};

/// What memory in a heap would be.
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
    ring: Ring,
}

// SAFETY: all threads of a model run on one thread of the system; what of this they touch at the same time, it reports.
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
    lines: Box<[Line]>,
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
        Segment { shape, areas: (0..=shape.splits).map(area).collect(), ring: Ring }
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

    pub(crate) fn area(&self, area: Area) -> (NonNull<Head>, NonNull<Line>) {
        let memory = self.memory(area);
        (NonNull::from(&*memory.head), NonNull::from(&*memory.lines).cast())
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

    /// The model has no heaps: all data are put up.
    pub(crate) fn find(&self, _: *const u8, _: usize, _: bool) -> Option<usize> {
        None
    }

    pub(crate) fn in_heaps(&self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    pub(crate) fn detach(&self, _: Range<usize>) -> io::Result<()> {
        unreachable!("nobody has data in heaps")
    }

    pub(crate) fn ring(&self, _: usize) -> &Ring {
        &self.ring
    }
}

impl Memory {
    fn new(shape: Shape) -> Memory {
        let lines: Box<[Line]> = (0..shape.ranks).map(|_| Line::default()).collect();
        watch_payloads(&lines);
        let staging: Box<[UnsafeCell<u8>]> =
            (0..shape.ranks * shape.staging_bytes).map(|_| UnsafeCell::new(0)).collect();
        memory::watch(staging.as_ptr().cast(), staging.len(), UNIT);
        Memory { head: Box::default(), lines, staging }
    }
}

/// Watches the bytes that ride along with arrivals.
pub(crate) fn watch_payloads(lines: &[Line]) {
    for line in lines {
        for epoch in 0..2 {
            let (card, rest) = (line.card(epoch), crate::line::PAYLOAD_BYTES);
            memory::watch(card.payload(), crate::line::FIRST_BYTES, crate::line::FIRST_BYTES);
            memory::watch(card.rest(), rest, rest);
        }
    }
}
