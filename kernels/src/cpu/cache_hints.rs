//! Where data come from and where they go, as far as it is known: by that, reductions and copies
//! treat their cache lines.

/// Bytes that a reduction, or all ranks of a call together, read and write from which on results
/// are written past the caches, more than the last one holds. Such a store does not read the line
/// that it fills: where memory is the limit that gains up to a half, where a core's own buffers are
/// it neither gains nor loses. Below, where lines are still in the last cache, it was measured to
/// take 1.4 to 1.8 times as long. (Tests write past the caches sooner.)
pub(crate) const STREAM_BYTES: usize = if cfg!(test) { 1 << 20 } else { 48 << 20 };

/// The fewest bytes of a target that are written past the caches at a time: each time begins and
/// ends with parts of lines, and waits for the last of them.
pub(crate) const LEAST_STREAM_BYTES: usize = if cfg!(test) { 64 } else { 4 << 10 };

/// Where the data of a reduction are, and where its results go, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheHints {
    pub(crate) from: Locality,
    /// The first of the targets that are part of so much that the caches have lost it before it is
    /// read. They are written past the caches if none of them is a source, all begin alike, and
    /// they are no short pieces.
    pub(crate) past: usize,
}

impl CacheHints {
    /// The targets are no part of more than the reduction writes itself.
    pub(crate) fn from(from: Locality) -> CacheHints {
        CacheHints { from, past: usize::MAX }
    }
}

/// Where data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locality {
    /// In this core's own caches, unless they are too many.
    Near,
    /// In other cores' caches, or in memory.
    Far,
    /// As before; and this core writes next where the source of this index is.
    Taken(usize),
}

impl Locality {
    /// How many bytes are read and written, at the least, by a reduction that asks for lines before
    /// it needs them: the machine's own prefetchers end at each page, and fetch no line for
    /// writing. Between 2 ranks on two cores, an all-reduce takes 0.9 of the time at 256 KiB, and
    /// 0.76 to 0.84 from 1 MiB on. In a core's own caches it takes 1.1 to 1.3 times as long.
    pub(crate) fn ahead_bytes(self) -> usize {
        match self {
            Locality::Near => 1 << 20,
            Locality::Far => 64 << 10,
            Locality::Taken(_) => 0,
        }
    }
}

/// From so many bytes on that are copied one after the other, whatever the size of the parts, a
/// core's own caches do not hold them.
pub(crate) const FAR_BYTES: usize = 512 << 10;

/// Whether the results of a call are written past the caches, but for those that replace what was
/// read: the rank that has most has `most` bytes, all ranks together bring `brought`, and get about
/// `copies` times as much. Between 2 ranks on an idle machine, from 48 MiB in all on, an all-reduce
/// takes 0.82 of the time, between threads 0.65, an all-gather 0.78.
pub fn goes_past_caches(most: usize, brought: usize, copies: usize) -> bool {
    most >= FAR_BYTES && brought.saturating_mul(1 + copies) >= STREAM_BYTES
}

/// How much is copied, of which a copy is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopySize {
    /// What a core's own caches hold.
    Near,
    /// More.
    Far,
    /// More than all caches hold of the call that it is a part of: what is written has left them
    /// when it is read.
    Past,
}

impl CopySize {
    /// Of `bytes` bytes, in a call that goes past all caches or does not.
    #[inline]
    pub(crate) fn new(bytes: usize, is_past: impl FnOnce() -> bool) -> CopySize {
        match bytes {
            ..FAR_BYTES => CopySize::Near,
            _ if is_past() => CopySize::Past,
            _ => CopySize::Far,
        }
    }

    /// Of a reduction into targets from the `first`-th on.
    pub(crate) fn past(self, first: usize) -> usize {
        if self == CopySize::Past { first } else { usize::MAX }
    }
}
