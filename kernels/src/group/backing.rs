//! The memory that holds the records of a group.

use crate::shm::{
    Area, Segment,
    local::Locals,
    records::{Head, RankRecord},
    ring::{CELLS, Cell, RingEnds},
};
use std::{
    io,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

/// The memory that holds the records.
pub(super) enum Backing {
    /// In this process's own memory.
    Own { head: Head, records: Box<[RankRecord]>, rings: OnceLock<Box<[OwnRing]>> },
    /// In memory that other processes map.
    Segment {
        segment: Arc<Segment>,
        area: Area,
        head: NonNull<Head>,
        records: NonNull<[RankRecord]>,
        locals: Arc<Locals>,
    },
}

/// A ring in this process's own memory.
#[derive(Default)]
pub(super) struct OwnRing {
    ends: RingEnds,
    /// Allocated when it is first used.
    cells: OnceLock<Box<[Cell]>>,
}

// SAFETY: the pointers are to atomics and to records, which are `Sync`, in a segment that `segment`
// keeps mapped.
unsafe impl Send for Backing {}

// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    pub(super) fn own(size: usize) -> Backing {
        let records = (0..size).map(|_| RankRecord::default()).collect();
        Backing::Own { head: Head::default(), records, rings: OnceLock::new() }
    }

    pub(super) fn segment(segment: Arc<Segment>, area: Area, size: usize) -> Backing {
        let (head, first) = segment.area(area);
        let locals = segment.locals(area);
        Backing::Segment { head, records: NonNull::slice_from_raw_parts(first, size), segment, area, locals }
    }

    pub(super) fn head(&self) -> &Head {
        match self {
            Backing::Own { head, .. } => head,
            // SAFETY: the segment, which is kept mapped, has a head there, of atomics alone.
            Backing::Segment { head, .. } => unsafe { head.as_ref() },
        }
    }

    /// Returns the ends and the cells of the ring in which `from` writes and `to` reads. They are
    /// reserved before they are touched.
    pub(super) fn ring(&self, from: usize, to: usize) -> (&RingEnds, &[Cell]) {
        match self {
            Backing::Own { records, rings, .. } => {
                let ranks = records.len();
                let ring =
                    &rings.get_or_init(|| (0..ranks * ranks).map(|_| OwnRing::default()).collect())[to * ranks + from];
                (&ring.ends, ring.cells.get_or_init(|| (0..CELLS).map(|_| Cell::default()).collect()))
            }
            Backing::Segment { segment, area, .. } => {
                let (ends, cells) = segment.ring(*area, from, to);
                // SAFETY: the segment, which is kept mapped, has them there: atomics, and bytes in
                // cells.
                unsafe { (ends.as_ref(), cells.as_ref()) }
            }
        }
    }

    /// Reserves the ends of the rings that `to` reads.
    pub(super) fn reserve_ring_ends(&self, to: usize) -> io::Result<()> {
        match self {
            Backing::Own { .. } => Ok(()),
            Backing::Segment { segment, area, .. } => segment.reserve_ring_ends(*area, to),
        }
    }

    /// Reserves the cells of a ring.
    pub(super) fn reserve_ring(&self, from: usize, to: usize) -> io::Result<()> {
        match self {
            Backing::Own { .. } => Ok(()),
            Backing::Segment { segment, area, .. } => segment.reserve_ring(*area, from, to),
        }
    }

    pub(super) fn head_of(segment: &Segment, area: Area) -> &Head {
        // SAFETY: as in `head`; the segment outlives the result.
        unsafe { segment.area(area).0.as_ref() }
    }

    pub(super) fn records(&self) -> &[RankRecord] {
        match self {
            Backing::Own { records, .. } => records,
            // SAFETY: the segment, which is kept mapped, has room there for a record of each rank
            // of the area. Records are atomics, and bytes in cells.
            Backing::Segment { records, .. } => unsafe { records.as_ref() },
        }
    }
}
