//! The whole ways in which data go through staging: the unit of choice. A group that makes large
//! calls measures them, and takes the fastest (`group/measured.rs`).

use super::{knobs::Tuning, value::Way};
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
    pub(crate) const NEAR: [Pipeline; 7] = [
        Pipeline::Vector,
        Pipeline::Plain,
        Pipeline::Mixed,
        Pipeline::Movsb,
        Pipeline::Ahead,
        Pipeline::Stream,
        Pipeline::StreamMovsb,
    ];

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

    /// Returns the values of a group whose data of medium size go this way.
    pub(crate) fn of_group(self, tuning: Tuning) -> Tuning {
        match self {
            // One wait more takes less time than the reads that two-shot saves, and places that
            // stay in the caches less than staging (measured: PERF.md).
            Pipeline::Movsb => Tuning {
                window_bytes: tuning.window_bytes.max(LARGE_WINDOW_BYTES),
                whole_window_bytes: tuning.whole_window_bytes.max(LARGE_WINDOW_BYTES),
                one_shot_bytes: tuning.one_shot_bytes.min(LITTLE_BYTES),
                some_payload_bytes: tuning.some_payload_bytes.max(tuning.crowded_payload_bytes),
                ..tuning
            },
            Pipeline::Vector
            | Pipeline::Plain
            | Pipeline::Mixed
            | Pipeline::Ahead
            | Pipeline::Stream
            | Pipeline::StreamMovsb
            | Pipeline::Read => tuning,
        }
    }
}

/// Windows where they cost nothing.
const LARGE_WINDOW_BYTES: usize = 128 << 10;

/// The data of all ranks that one rank folds where waits are cheap.
const LITTLE_BYTES: usize = 32 << 10;

/// All that a group chooses by measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The way of staged data that a core's caches hold.
    pub(crate) near: Pipeline,
    /// The way of more data.
    pub(crate) far: Pipeline,
    /// Whether ranks that each need another block read it by the system, from
    /// [`read_bytes`](Tuning::read_bytes) on.
    pub(crate) reads: bool,
}

/// Never, for [`read_bytes`](Tuning::read_bytes).
const NEVER: usize = 1 << 40;

impl Choice {
    /// The bytes of a choice.
    pub(crate) const BYTES: usize = 3;

    /// Returns the choice that these values have.
    pub(crate) fn of(tuning: &Tuning) -> Choice {
        Choice { near: tuning.near, far: tuning.far, reads: tuning.read_bytes < NEVER }
    }

    /// Returns these values of a process with the choice.
    pub(crate) fn of_process(self, tuning: Tuning) -> Tuning {
        let read_bytes = match self.reads {
            false => NEVER,
            true if tuning.read_bytes < NEVER => tuning.read_bytes,
            true => Tuning::DEFAULT.read_bytes,
        };
        Tuning { near: self.near, far: self.far, read_bytes, ..tuning }
    }

    /// Returns the choice as bytes, for the other ranks.
    pub(crate) fn to_bytes(self) -> [u8; Choice::BYTES] {
        [self.near as u8, self.far as u8, self.reads.into()]
    }

    /// Returns the choice of such bytes. A peer may write any: what does not exist is the default.
    pub(crate) fn from_bytes([near, far, reads]: [u8; Choice::BYTES]) -> Choice {
        let pipeline = |byte: u8, default| Pipeline::ALL.get(usize::from(byte)).copied().unwrap_or(default);
        Choice {
            near: pipeline(near, Tuning::DEFAULT.near),
            far: pipeline(far, Tuning::DEFAULT.far),
            reads: reads != 0,
        }
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_back_and_absent_pipelines_are_the_default() {
        for (index, near) in Pipeline::ALL.into_iter().enumerate() {
            let choice = Choice { near, far: Pipeline::ALL[7 - index], reads: index % 2 == 0 };
            assert_eq!(Choice::from_bytes(choice.to_bytes()), choice);
            assert_eq!(Choice::of(&choice.of_process(Tuning::DEFAULT)), choice);
        }
        assert_eq!(Choice::from_bytes([8, 255, 1]), Choice::of(&Tuning::DEFAULT));
    }

    #[test]
    fn a_choice_again_makes_the_same_values() {
        let own = Tuning { read_bytes: 12_345, ..Tuning::DEFAULT };
        let choice = Choice { reads: false, ..Choice::of(&own) };
        let never = choice.of_process(own);
        assert!(never.read_bytes > own.read_bytes);
        assert_eq!(choice.of_process(never), never);
        assert_eq!(Choice::of(&own).of_process(own), own);
        for pipeline in Pipeline::ALL {
            let once = pipeline.of_group(own);
            assert_eq!(pipeline.of_group(once), once);
        }
    }
}
