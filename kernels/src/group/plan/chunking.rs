//! The parts of a rank's published data.

use super::windows::BORDER_BYTES;
use crate::tuning::Tuning;

/// The division of a rank's published data into parts, so that ranks work at the same time. It
/// affects only speed, and follows from the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    /// Number of blocks; a part of each can be read at a time. If there are as many as ranks, each
    /// is for the rank of its number. They are of equal size unless the step is
    /// [`published_in_blocks`](crate::group::Step::published_in_blocks).
    pub blocks: usize,
    /// The ranks that read the parts. The size is chosen by them.
    pub readers: Readers,
    /// Limit on the bytes of each rank's data that all ranks know; `usize::MAX` where they know
    /// none. For blocks of different sizes: as many times the largest as there are blocks.
    pub most_bytes: usize,
}

/// The ranks that read a rank's published data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Every rank reads all the data.
    All,
    /// As `All`, in parts of equal size, so that the last one is not small.
    AllEvenly,
    /// Each rank reads its own block, in such parts, too.
    OfBlocks,
    /// Only one rank has data, or only one rank reads them.
    OneWay,
}

impl Chunking {
    /// Every rank reads all the data.
    pub const WHOLE: Chunking = Chunking { blocks: 1, readers: Readers::All, most_bytes: usize::MAX };

    /// Like [`WHOLE`](Chunking::WHOLE), where all ranks know that none has more than `bytes` bytes:
    /// parts of equal size, so that the last one is not small.
    pub const fn whole(bytes: usize) -> Chunking {
        Chunking { blocks: 1, readers: Readers::AllEvenly, most_bytes: bytes }
    }

    /// Each rank reads its own one of `blocks` blocks, which have `bytes` bytes together.
    pub const fn blocks(blocks: usize, bytes: usize) -> Chunking {
        Chunking { blocks, readers: Readers::OfBlocks, most_bytes: bytes }
    }

    /// Only one rank has data, of up to `bytes` bytes in `blocks` blocks; or only one rank reads
    /// such data.
    pub const fn one_way(bytes: usize, blocks: usize) -> Chunking {
        Chunking { blocks, readers: Readers::OneWay, most_bytes: bytes }
    }

    /// The same chunking, where each rank has at most `bytes` bytes.
    pub const fn at_most(self, bytes: usize) -> Chunking {
        Chunking { most_bytes: bytes, ..self }
    }

    /// Returns the limit on the bytes that are staged at a time. If all ranks know the bytes, the
    /// parts are of about equal size: up to a quarter more at a time takes less time than one more
    /// part.
    pub fn window_bytes(&self, tuning: &Tuning) -> usize {
        let Tuning { window_bytes: window, whole_window_bytes: whole, least_window_bytes: least, .. } = *tuning;
        let bytes = self.most_bytes;
        let evenly = |window: usize| {
            let parts = bytes.saturating_sub(window / 4).div_ceil(window).max(1);
            bytes.div_ceil(parts).max(1).next_multiple_of(BORDER_BYTES * self.blocks)
        };
        match self.readers {
            Readers::All => whole,
            Readers::AllEvenly => evenly(whole),
            // As many as the fewest that `evenly` gives: all ranks count the same blocks, whatever
            // they know.
            Readers::OfBlocks if bytes == usize::MAX => window.max(BORDER_BYTES * self.blocks),
            Readers::OfBlocks => evenly(window),
            Readers::OneWay => {
                // A rank reads one of several blocks.
                let few = (bytes / 2).clamp(least * self.blocks.min(2), 4 * least);
                (bytes / 4).max(few).min(window)
            }
        }
    }
}
