//! Where the lines of a group lie.

use crate::shm::{
    Area, Segment,
    local::Locals,
    records::{Head, Line},
};
use std::{ptr::NonNull, sync::Arc};

/// Where the lines lie.
pub(super) enum Ground {
    /// In this process's own memory.
    Own { head: Head, lines: Box<[Line]> },
    /// In memory that other processes map.
    Segment { segment: Arc<Segment>, area: Area, head: NonNull<Head>, lines: NonNull<[Line]>, locals: Arc<Locals> },
}

// SAFETY: the pointers are to atomics and to lines, which are `Sync`, in a segment that is kept.
unsafe impl Send for Ground {}

// SAFETY: as above.
unsafe impl Sync for Ground {}

impl Ground {
    pub(super) fn own(size: usize) -> Ground {
        Ground::Own { head: Head::default(), lines: (0..size).map(|_| Line::default()).collect() }
    }

    pub(super) fn segment(segment: Arc<Segment>, area: Area, size: usize) -> Ground {
        let (head, first) = segment.area(area);
        let locals = segment.locals(area);
        Ground::Segment { head, lines: NonNull::slice_from_raw_parts(first, size), segment, area, locals }
    }

    pub(super) fn head(&self) -> &Head {
        match self {
            Ground::Own { head, .. } => head,
            // SAFETY: the segment, which is kept, has a head there, of atomics alone.
            Ground::Segment { head, .. } => unsafe { head.as_ref() },
        }
    }

    pub(super) fn head_of(segment: &Segment, area: Area) -> &Head {
        // SAFETY: as in `head`; the segment outlives the result.
        unsafe { segment.area(area).0.as_ref() }
    }

    pub(super) fn lines(&self) -> &[Line] {
        match self {
            Ground::Own { lines, .. } => lines,
            // SAFETY: the segment, which is kept, has room there for a line of each rank of the area. Lines are atomics, and
            // bytes in cells.
            Ground::Segment { lines, .. } => unsafe { lines.as_ref() },
        }
    }
}
