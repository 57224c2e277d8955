//! What is in use of the heaps of this process's ranks.
//!
//! Each block has *spare* memory, private to its process, which takes the place of the block's
//! pages when they have to be taken away from a peer. It is mapped with the block, so that the
//! system has promised it; it has no pages before it is written.

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::{io, ops::Range, ptr, sync::Mutex};

/// What is in use of this process's heaps.
#[derive(Debug, Default)]
pub(super) struct Account(pub(super) Mutex<Vec<Use>>);

/// A block, as bytes of all heaps. The list of them is in order.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) bytes: Range<usize>,
    /// How many of them were asked for.
    pub(super) asked: usize,
    /// Whether these addresses show another memory by now: see [`Segment::detach`].
    pub(super) detached: bool,
    pub(super) spare: Spare,
}

/// Private memory of a block's size, of which parts may have been moved into the block's place.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// Its first address, when it was whole.
    start: usize,
    /// The parts that are still mapped there, as bytes from `start` on.
    parts: Vec<Range<usize>>,
}

impl Spare {
    pub(super) fn new(bytes: usize) -> io::Result<Spare> {
        // SAFETY: the system chooses addresses that nobody has.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(Spare { start: start.expose_provenance(), parts: std::iter::once(0..bytes).collect() })
    }

    /// Copies these bytes of the block at `block` to the spare, and moves that into their place.
    ///
    /// # Safety
    /// The block is mapped at `block` and as long as the spare was. The bytes are whole pages of
    /// it; nobody of this process touches them.
    pub(super) unsafe fn replace(&mut self, block: *mut u8, bytes: Range<usize>) -> io::Result<()> {
        let whole = |part: &Range<usize>| part.start <= bytes.start && bytes.end <= part.end;
        let part = self.parts.iter().position(whole).ok_or(io::ErrorKind::InvalidInput)?;
        let spare = ptr::with_exposed_provenance_mut::<u8>(self.start + bytes.start);
        let place = block.wrapping_add(bytes.start);
        // SAFETY: both are mapped; a peer may be writing what is copied, so that some of it may be
        // torn. The copy then takes the place of the pages, whole, and its own addresses are not
        // this process's any more.
        unsafe {
            ptr::copy_nonoverlapping(place.cast_const(), spare, bytes.len());
            rustix::mm::mremap_fixed(spare.cast(), bytes.len(), bytes.len(), MremapFlags::MAYMOVE, place.cast())?;
        }
        let Range { start, end } = self.parts.swap_remove(part);
        self.parts.extend([start..bytes.start, bytes.end..end].into_iter().filter(|part| !part.is_empty()));
        Ok(())
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        for part in &self.parts {
            let start = ptr::with_exposed_provenance_mut::<u8>(self.start + part.start);
            // SAFETY: this part is still mapped there, and nobody else has its address.
            let _ = unsafe { rustix::mm::munmap(start.cast(), part.len()) };
        }
    }
}
