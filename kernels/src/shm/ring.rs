//! The rings in which one rank writes messages and another reads them.
//!
//! There is a ring for each ordered pair of ranks of a group. A ring has cells, which are used in
//! turn. Its writer fills the next cell and publishes its number in the cell's *full* word. Its
//! reader takes the cells in turn and publishes how many it has *read*. A cell is written again
//! when it has been read: the writer has as many *credits* as its group uses cells. The words of
//! the writer and those of the reader lie in lines of their own.

use crate::{
    sync::atomics::AtomicU64,
    tuning::{RING_CELL_BYTES, RING_CELLS},
};
use std::cell::UnsafeCell;

/// Limit on the bytes of a message that lie in the first cache line of a cell.
pub(crate) const SHORT_BYTES: usize = 32;

/// Limit on the bytes of a message that lie in one cell. A group may use fewer
/// ([`mail_cell_bytes`](crate::tuning::Tuning::mail_cell_bytes)).
pub(crate) const CELL_BYTES: usize = RING_CELL_BYTES;

/// The number of cells of a ring between processes or threads. A group may use fewer
/// ([`mail_cells`](crate::tuning::Tuning::mail_cells)).
pub(crate) const CELLS: usize = RING_CELLS;

/// The number of refusals that a reader may tell before its writer hears of them:
/// `group/mail/refusals.rs` says why there are more than cells.
pub(crate) const REFUSALS: usize = 2 * CELLS;

record! {
    /// A part of a message. All zero is an empty cell.
    #[repr(align(128))]
    pub(crate) struct Cell {
        /// The number of the cell, counted from the beginning of the generation; stored last.
        pub(crate) full: AtomicU64,
        pub(crate) tag: AtomicU64,
        /// Bytes of the whole message.
        pub(crate) bytes: AtomicU64,
        /// The part of the message that the cell has, the element type and the unit; in the upper
        /// half the number of refusals that the writer has heard.
        pub(crate) form: AtomicU64,
        pub(crate) short: UnsafeCell<[u8; SHORT_BYTES]>,
        pub(crate) long: UnsafeCell<[u8; CELL_BYTES]>,
    }
}

// SAFETY: only `short` and `long` are not atomic. The writer of the ring writes them before it
// releases *full*, the reader reads them after it has acquired *full*, and they are written again
// after the reader has released *read*.
unsafe impl Sync for Cell {}

impl Default for Cell {
    fn default() -> Self {
        Cell {
            full: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            form: AtomicU64::new(0),
            short: UnsafeCell::new([0; SHORT_BYTES]),
            long: UnsafeCell::new([0; CELL_BYTES]),
        }
    }
}

record! {
    /// The words that the writer of a ring writes.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct WriterEnd {
        /// The [mark](super::records::Generation::mark) of the generation in which the writer began
        /// to use the ring. The cells are reserved before.
        pub(crate) opened: AtomicU64,
    }
}

record! {
    /// The words that the reader of a ring writes.
    #[repr(align(128))]
    #[derive(Default)]
    pub(crate) struct ReaderEnd {
        /// The number of cells that were read.
        pub(crate) read: AtomicU64,
        /// The messages that did not fit their receives.
        pub(crate) refusals: [RefusalRecord; REFUSALS],
    }
}

record! {
    /// A message that did not fit its receive.
    #[derive(Default)]
    pub(crate) struct RefusalRecord {
        /// The number of the refusal, counted from the beginning of the generation; stored last.
        pub(crate) number: AtomicU64,
        /// The number of the message.
        pub(crate) message: AtomicU64,
        pub(crate) tag: AtomicU64,
        /// The element type and the unit of the message, and in the upper half those that the
        /// receive expected.
        pub(crate) forms: AtomicU64,
        pub(crate) sent_bytes: AtomicU64,
        pub(crate) expected_bytes: AtomicU64,
    }
}

record! {
    /// The words of both ends of a ring.
    #[derive(Default)]
    pub(crate) struct RingEnds {
        pub(crate) writer: WriterEnd,
        pub(crate) reader: ReaderEnd,
    }
}
