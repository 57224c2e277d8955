//! The number and the size of a step's windows.

/// Borders between ranks' blocks, and between staged slices, are multiples of this, so that no two
/// ranks write the same pair of cache lines.
pub(crate) const BORDER_BYTES: usize = 128;

/// The windows of staged data: a part at a time, while the peers read the part before.
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
