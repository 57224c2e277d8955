//! The whole ways in which data go through staging: the unit of choice. A group that makes large
//! calls measures them, and takes the fastest (`group/measured.rs`).

use super::way::Way;
use std::fmt;

/// A whole way of staged data: how they are copied into staging and out of it, whether lines are
/// prefetched for writing, in windows of which size, or whether the system reads them instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// A vector loop in both directions, with prefetches for writing: fast on every processor.
    Vector,
    /// A vector loop in both directions: for processors on which a prefetch for writing costs more
    /// than the store that waits.
    Plain,
    /// `rep movsb` for long parts, with prefetches for writing.
    Mixed,
    /// `rep movsb` for all but the shortest parts. It takes whole lines without reading what the
    /// peer's cache has of them: there is nothing to prefetch, and large windows cost no more than
    /// small ones.
    Movsb,
    /// The kernel of reductions, which prefetches both sides: for parts beyond a core's caches.
    Ahead,
    /// Staged past the caches and read by a vector loop: for processors on which a line that
    /// another core has written takes longer to fetch than one in memory.
    Stream,
    /// Staged past the caches and read by `rep movsb`.
    StreamMovsb,
    /// By the system, out of the process that has the data, where data that a core's caches do not
    /// hold go one way: one copy instead of two. All other data go as [`Ahead`](Pipeline::Ahead).
    Read,
}

/// The copies of a [`Pipeline`].
pub(crate) struct Copies {
    /// Parts of fewer bytes are copied by a vector loop.
    pub(crate) brief_bytes: usize,
    pub(crate) copy_in: Way,
    pub(crate) copy_out: Way,
    /// Whether parts are copied 1 KiB at a time, while the next lines are prefetched for writing:
    /// those of the target where a peer has read them, and those of the source where this core
    /// writes next.
    pub(crate) prefetches: bool,
}

impl Copies {
    /// Returns the way to copy `bytes` bytes, for which `way` is chosen.
    #[inline]
    pub(crate) fn way(&self, way: Way, bytes: usize) -> Way {
        if bytes < self.brief_bytes { Way::Vector } else { way }
    }
}

/// The bytes that `rep movsb` needs to make up for its slow start.
pub(crate) const MOVSB_BYTES: usize = 32 << 10;

/// The same where it starts fast, and for ways that begin and end with parts of lines.
const BRIEF_BYTES: usize = 4 << 10;

impl Pipeline {
    /// Every pipeline, in the order of their words.
    pub const ALL: [Pipeline; 8] = [
        Pipeline::Vector,
        Pipeline::Plain,
        Pipeline::Mixed,
        Pipeline::Movsb,
        Pipeline::Ahead,
        Pipeline::Stream,
        Pipeline::StreamMovsb,
        Pipeline::Read,
    ];

    /// Those that differ for data which a core's caches hold.
    pub(crate) const NEAR: [Pipeline; 7] = {
        let [near @ .., Pipeline::Read] = Pipeline::ALL else { panic!("the last way is for other data") };
        near
    };

    /// Returns the name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Pipeline::Vector => "vector",
            Pipeline::Plain => "plain",
            Pipeline::Mixed => "mixed",
            Pipeline::Movsb => "movsb",
            Pipeline::Ahead => "ahead",
            Pipeline::Stream => "stream",
            Pipeline::StreamMovsb => "stream-movsb",
            Pipeline::Read => "read",
        }
    }

    /// Returns how it copies.
    pub(crate) fn copies(self) -> &'static Copies {
        const fn copies(brief_bytes: usize, copy_in: Way, copy_out: Way, prefetches: bool) -> Copies {
            Copies { brief_bytes, copy_in, copy_out, prefetches }
        }
        static VECTOR: Copies = copies(0, Way::Vector, Way::Vector, true);
        static PLAIN: Copies = copies(0, Way::Vector, Way::Vector, false);
        static MIXED: Copies = copies(MOVSB_BYTES, Way::Movsb, Way::Movsb, true);
        static MOVSB: Copies = copies(BRIEF_BYTES, Way::Movsb, Way::Movsb, false);
        static AHEAD: Copies = copies(BRIEF_BYTES, Way::Ahead, Way::Ahead, false);
        static STREAM: Copies = copies(BRIEF_BYTES, Way::Stream, Way::Vector, false);
        static STREAM_MOVSB: Copies = copies(BRIEF_BYTES, Way::Stream, Way::Movsb, false);
        match self {
            Pipeline::Vector => &VECTOR,
            Pipeline::Plain => &PLAIN,
            Pipeline::Mixed => &MIXED,
            Pipeline::Movsb => &MOVSB,
            Pipeline::Ahead | Pipeline::Read => &AHEAD,
            Pipeline::Stream => &STREAM,
            Pipeline::StreamMovsb => &STREAM_MOVSB,
        }
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
