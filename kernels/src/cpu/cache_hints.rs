//! Hints about where data come from and where results go. Reductions and copies choose their
//! prefetches and stores by these hints.

use crate::tuning::{self, Pipeline, Tuning};

/// Hints about the places of a reduction's data and of its results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheHints {
    pub(crate) from: Locality,
    /// Index of the first target that belongs to more data than the caches keep until the data are
    /// read. The targets from this index on are written past the caches if none of them is a
    /// source, all start at the same offset in a cache line, and each has at least
    /// [`least_stream_bytes`](tuning::Tuning::least_stream_bytes).
    pub(crate) past: usize,
}

impl CacheHints {
    /// Returns the hints for targets that belong to nothing larger: only the bytes of the reduction
    /// itself decide whether they are written past the caches.
    pub(crate) fn from(from: Locality) -> CacheHints {
        CacheHints { from, past: usize::MAX }
    }
}

/// The place of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locality {
    /// In this core's own caches, if they fit.
    Near,
    /// In other cores' caches, or in memory.
    Far,
    /// As `Far`. Next, this core writes to the memory of the source with this index.
    Taken(usize),
}

impl Locality {
    /// Returns how many bytes a reduction must read and write for prefetches to pay off. The
    /// machine's own prefetchers stop at the end of each page, and fetch no line for writing. For
    /// data in a core's own caches, prefetches cost more than they save.
    pub(crate) fn ahead_bytes(self) -> usize {
        match self {
            Locality::Near => tuning::current().near_ahead_bytes,
            Locality::Far => tuning::current().far_ahead_bytes,
            Locality::Taken(_) => 0,
        }
    }
}

/// Returns whether the results of a call are written past the caches: by stores that do not read
/// the lines that they fill. They are faster where memory is the limit, and slower where the lines
/// are still in the last-level cache. Results that replace data already read never are. `most` is
/// the largest number of bytes that a rank has, `brought` is the sum over all ranks, and the
/// results of all ranks have about `copies * brought` bytes.
pub fn goes_past_caches(most: usize, brought: usize, copies: usize) -> bool {
    let tuning = tuning::current();
    most >= tuning.far_bytes && brought.saturating_mul(1 + copies) >= tuning.stream_bytes
}

/// Size class of the data that a copy is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopySize {
    /// As much as a core's own caches hold.
    Near,
    /// More.
    Far,
    /// More, in a call that reads and writes more than all caches hold: written data have left the
    /// caches before they are read.
    Past,
}

impl CopySize {
    /// Returns the size class of `bytes` bytes. `is_past` tells whether the call writes its results
    /// past the caches.
    #[inline]
    pub(crate) fn new(bytes: usize, is_past: impl FnOnce() -> bool) -> CopySize {
        if bytes < tuning::current().far_bytes {
            CopySize::Near
        } else if is_past() {
            CopySize::Past
        } else {
            CopySize::Far
        }
    }

    /// Returns the way of staged data of this size class.
    #[inline]
    pub(crate) fn pipeline(self, tuning: &Tuning) -> Pipeline {
        match self {
            CopySize::Near => tuning.near,
            CopySize::Far | CopySize::Past => tuning.far,
        }
    }

    /// Returns the value of [`CacheHints::past`] for a reduction whose targets from index `first`
    /// on have this size class.
    pub(crate) fn past(self, first: usize) -> usize {
        if self == CopySize::Past { first } else { usize::MAX }
    }
}
