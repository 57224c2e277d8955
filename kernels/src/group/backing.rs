//! The memory that holds the records of a group.

use crate::shm::{
    Area, Segment,
    local::Locals,
    records::{Head, RankRecord},
};
use std::{ptr::NonNull, sync::Arc};

/// The memory that holds the records.
pub(super) enum Backing {
    /// In this process's own memory.
    Own { head: Head, records: Box<[RankRecord]> },
    /// In memory that other processes map.
    Segment {
        segment: Arc<Segment>,
        area: Area,
        head: NonNull<Head>,
        records: NonNull<[RankRecord]>,
        locals: Arc<Locals>,
    },
}

// SAFETY: the pointers are to atomics and to records, which are `Sync`, in a segment that `segment`
// keeps mapped.
unsafe impl Send for Backing {}

// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    pub(super) fn own(size: usize) -> Backing {
        Backing::Own { head: Head::default(), records: (0..size).map(|_| RankRecord::default()).collect() }
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
