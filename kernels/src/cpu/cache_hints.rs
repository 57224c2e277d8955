//! Hints about where data come from and where results go. Reductions and copies choose their
//! prefetches and stores by these hints.

/// Results are written past the caches, by non-temporal stores, when a reduction, or all ranks of a
/// call together, read and write at least this many bytes: more than the last-level cache holds.
/// Such a store does not read the line that it fills. It is faster where memory is the limit, and
/// no slower where a core's own buffers are the limit. With fewer bytes, whose lines are still in
/// the last-level cache, it is slower. Tests have a smaller limit.
pub(crate) const STREAM_BYTES: usize = if cfg!(test) { 1 << 20 } else { 48 << 20 };

/// Minimum number of bytes of a target that are written past the caches at a time. Each time begins
/// and ends with parts of lines, and then waits for the stores.
pub(crate) const LEAST_STREAM_BYTES: usize = if cfg!(test) { 64 } else { 4 << 10 };

/// What is known about where the data of a reduction are and where its results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheHints {
    pub(crate) from: Locality,
    /// Index of the first target that belongs to more data than the caches keep until the data are
    /// read. The targets from this index on are written past the caches if none of them is a
    /// source, all start at the same offset in a cache line, and each has at least
    /// [`LEAST_STREAM_BYTES`].
    pub(crate) past: usize,
}

impl CacheHints {
    /// Returns the hints for targets that belong to nothing larger: only the bytes of the reduction
    /// itself decide whether they are written past the caches.
    pub(crate) fn from(from: Locality) -> CacheHints {
        CacheHints { from, past: usize::MAX }
    }
}

/// Where data are.
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
            Locality::Near => 1 << 20,
            Locality::Far => 64 << 10,
            Locality::Taken(_) => 0,
        }
    }
}

/// A core's own caches do not hold this many bytes that are copied one after the other, whatever
/// the size of the parts.
pub(crate) const FAR_BYTES: usize = 512 << 10;

/// Returns whether the results of a call are written past the caches. Results that replace data
/// already read never are. `most` is the largest number of bytes that a rank has, `brought` is the
/// sum over all ranks, and the results of all ranks have about `copies * brought` bytes.
pub fn goes_past_caches(most: usize, brought: usize, copies: usize) -> bool {
    most >= FAR_BYTES && brought.saturating_mul(1 + copies) >= STREAM_BYTES
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
        match bytes {
            ..FAR_BYTES => CopySize::Near,
            _ if is_past() => CopySize::Past,
            _ => CopySize::Far,
        }
    }

    /// Returns the value of [`CacheHints::past`] for a reduction whose targets from index `first`
    /// on have this size class.
    pub(crate) fn past(self, first: usize) -> usize {
        if self == CopySize::Past { first } else { usize::MAX }
    }
}
