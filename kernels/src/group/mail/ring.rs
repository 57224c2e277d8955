//! The two ends of a ring, as their ranks see them.

use crate::{
    cpu::{
        cache_hints::CopySize,
        copy::{copy, copy_in},
    },
    group::state::GroupState,
    shm::{
        records::Generation,
        ring::{CELL_BYTES, Cell, RingEnds, SHORT_BYTES},
    },
    sync::atomics::Ordering,
};
use consonance_spec::DType;

/// The part of a message that a cell has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    First = 1,
    Next = 2,
    /// No data: the sender gives up the message whose last part came before.
    Withdrawn = 3,
}

/// The description of a message, and of the message that a receive asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The element type.
    pub dtype: DType,
    /// The caller's number for a type that it stores in elements of `dtype`; 0 for `dtype` itself.
    pub label: u8,
    /// The number of bytes.
    pub bytes: usize,
    /// The tag.
    pub tag: u64,
}

/// The end at which a rank writes.
pub(super) struct Writer {
    /// The cells that were written, from the generation's base.
    written: u64,
    /// A number of cells that the reader has read.
    read: u64,
}

/// The end at which a rank reads.
pub(super) struct Reader {
    /// The cells that were read, from the generation's base.
    read: u64,
}

impl Writer {
    pub(super) fn new(generation: Generation) -> Writer {
        Writer { written: generation.base(), read: generation.base() }
    }

    /// Returns the number of cells that were written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Whether the reader has read the first `count` cells.
    pub(super) fn is_read(&mut self, ends: &RingEnds, count: u64) -> bool {
        if self.read < count {
            // SYNC POINT taken: pairs with `Reader::take`.
            let read = ends.reader.read.load(Ordering::Acquire);
            // A reader that has not come to this generation has read nothing of it. Only a corrupt
            // process says that it has read more than was written.
            if Generation::reached(read, self.read) && read <= self.written {
                self.read = read;
            }
        }
        self.read >= count
    }

    /// Whether the next cell may be written.
    pub(super) fn has_credit(&mut self, ends: &RingEnds, cells: &[Cell]) -> bool {
        let written = Generation::number_of(self.written);
        let base = self.written - written;
        written < cells.len() as u64 || self.is_read(ends, base + written + 1 - cells.len() as u64)
    }

    /// Writes the next cell. There is [credit](Writer::has_credit) for it. This rank has `heard` so
    /// many refusals.
    ///
    /// # Panics
    /// If `data` has more than [`CELL_BYTES`] bytes.
    pub(super) fn put(&mut self, cells: &[Cell], part: Part, heard: u32, envelope: Envelope, data: &[u8]) {
        let cell = &cells[Generation::number_of(self.written) as usize % cells.len()];
        assert!(data.len() <= CELL_BYTES, "{} bytes in a cell", data.len());
        // SAFETY: the bytes lie in the cell, which the reader has read and does not read again
        // before *full* is stored.
        unsafe { copy_in(data.as_ptr(), place(cell, data.len()), data.len(), CopySize::Near, false) };
        cell.tag.store(envelope.tag, Ordering::Relaxed);
        cell.bytes.store(envelope.bytes as u64, Ordering::Relaxed);
        cell.form.store(part as u64 | form(envelope) << 8 | u64::from(heard) << 32, Ordering::Relaxed);
        self.written += 1;
        // SYNC POINT full: pairs with `Reader::look`.
        cell.full.store(self.written, Ordering::Release);
    }
}

impl Reader {
    pub(super) fn new(generation: Generation) -> Reader {
        Reader { read: generation.base() }
    }

    /// Returns the next cell, if it has been written.
    pub(super) fn look<'c>(&self, cells: &'c [Cell]) -> Option<&'c Cell> {
        let cell = &cells[Generation::number_of(self.read) as usize % cells.len()];
        // SYNC POINT full: pairs with `Writer::put`.
        (cell.full.load(Ordering::Acquire) == self.read + 1).then_some(cell)
    }

    /// Publishes that the next cell has been read.
    pub(super) fn take(&mut self, ends: &RingEnds) {
        self.read += 1;
        // SYNC POINT taken: pairs with `Writer::is_read`.
        ends.reader.read.store(self.read, Ordering::Release);
    }
}

/// Returns the part, the refusals that were heard and the envelope in a cell; `None` for values
/// that no correct rank writes.
pub(super) fn header(cell: &Cell) -> Option<(Part, u32, Envelope)> {
    let form = cell.form.load(Ordering::Relaxed);
    let part = [Part::First, Part::Next, Part::Withdrawn].into_iter().find(|&part| part as u64 == form & 0xff)?;
    let (bytes, tag) = (cell.bytes.load(Ordering::Relaxed), cell.tag.load(Ordering::Relaxed));
    Some((part, (form >> 32) as u32, envelope(form >> 8 & 0xff_ffff, bytes, tag)?))
}

/// Returns the element type and the label of an envelope as one number.
pub(super) fn form(Envelope { dtype, label, .. }: Envelope) -> u64 {
    dtype as u64 | u64::from(label) << 8
}

/// Returns the envelope of this [form](form); `None` for values that no correct rank writes.
pub(super) fn envelope(form: u64, bytes: u64, tag: u64) -> Option<Envelope> {
    let dtype = *DType::ALL.get((form & 0xff) as usize)?;
    let label = u8::try_from(form >> 8).ok()?;
    let bytes = usize::try_from(bytes).ok()?;
    bytes.is_multiple_of(dtype.size()).then_some(Envelope { dtype, label, bytes, tag })
}

/// Copies the first `bytes` bytes out of a cell.
///
/// # Safety
/// `target` is valid for writes of `bytes` bytes, at most [`CELL_BYTES`]. The cell has been written
/// and not yet taken.
pub(super) unsafe fn copy_out(cell: &Cell, target: *mut u8, bytes: usize) {
    // SAFETY: the bytes lie in the cell, which its writer does not write before it is taken. A
    // corrupt process may: then the data are wrong, but each byte is some byte.
    unsafe { copy(place(cell, bytes), target, bytes, CopySize::Near) }
}

/// Returns where `bytes` bytes lie in a cell.
fn place(cell: &Cell, bytes: usize) -> *mut u8 {
    if bytes <= SHORT_BYTES { cell.short.get().cast() } else { cell.long.get().cast() }
}

/// Returns the ends of the ring in which `from` writes and `to` reads, and the cells that this
/// group uses.
pub(super) fn ring(state: &GroupState, from: usize, to: usize) -> (&RingEnds, &[Cell]) {
    let (ends, cells) = state.backing.ring(from, to);
    (ends, &cells[..state.tuning.mail_cells.min(cells.len())])
}
