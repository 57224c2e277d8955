//! How many windows a step has, and how large they are.

use super::{BORDER_BYTES, Chunking, Protocol, Step, Topology};

/// How data are staged: a part at a time, while the peers read the part before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Number of parts.
    pub count: usize,
    /// Number of blocks of equal size; every window has a slice of each.
    pub blocks: usize,
    /// Bytes of a slice.
    pub stride: usize,
}

impl Windows {
    /// Returns the blocks of which a slot of `slot_bytes` bytes has slices: with many ranks it may
    /// have no room for a slice of each of the `blocks` blocks.
    pub(super) fn blocks(slot_bytes: usize, blocks: usize) -> usize {
        if slot_bytes / blocks < BORDER_BYTES { 1 } else { blocks }
    }

    /// Returns the windows of `bytes` bytes of data, as `blocks` blocks, in slots of `slot_bytes`
    /// bytes.
    pub(super) fn new(slot_bytes: usize, blocks: usize, bytes: usize) -> Windows {
        let stride = slot_bytes / blocks / BORDER_BYTES * BORDER_BYTES;
        Windows { count: (bytes / blocks).div_ceil(stride).max(1), blocks, stride }
    }
}

impl Topology {
    /// Returns the windows of a step in which the rank that stages the most data stages `bytes`
    /// bytes.
    pub(crate) fn windows(&self, step: Step, bytes: usize) -> Windows {
        match (Topology { reads: false, ..*self }).protocol(step, bytes, false) {
            Protocol::Staged(windows) => windows,
            protocol => unreachable!("{step:?} goes {protocol:?}"),
        }
    }

    /// Returns the windows of a step whose first window was staged before the ranks knew the sizes.
    /// `step` has what they know now; the rank that stages the most data stages `bytes` bytes.
    pub fn windows_ahead(&self, step: Step, bytes: usize) -> Windows {
        let Step::Published(chunking) = step else { unreachable!("{step:?} knows all sizes") };
        let unknown = Step::Published(Chunking { most_bytes: usize::MAX, ..chunking });
        let Windows { blocks, stride: first, .. } = self.windows(unknown, bytes);
        let (count, later) = self.later_windows(step, first, bytes);
        Windows { count, blocks, stride: first.max(later) }
    }

    /// Returns how many windows there are if the first has `first` bytes of a block, and the bytes
    /// of a block in the later ones: see [`Topology::windows_ahead`].
    pub(crate) fn later_windows(&self, step: Step, first: usize, bytes: usize) -> (usize, usize) {
        let Step::Published(chunking) = step else { unreachable!("{step:?} knows all sizes") };
        let Windows { blocks, .. } = self.windows(step, bytes);
        let block = if blocks > 1 { chunking.most_bytes / blocks } else { bytes };
        if bytes == 0 || block <= first {
            return (1, first);
        }
        let rest = Chunking::blocks(chunking.blocks, (block - first).saturating_mul(chunking.blocks));
        let Windows { count, stride, .. } = self.windows(Step::Published(rest), block - first);
        (1 + count, stride)
    }

    /// Returns the room for a slice of one of `blocks` blocks in any window of such a step.
    pub(crate) fn room(&self, blocks: usize) -> usize {
        let most = (self.tuning.window_bytes / 4 * 5).next_multiple_of(BORDER_BYTES * self.ranks);
        self.slot_bytes.map_or(most, |bytes| most.min(bytes)) / blocks / BORDER_BYTES * BORDER_BYTES
    }
}
