//! The account of the blocks in use in the heaps of this process's ranks.
//!
//! Each block has *spare* memory, private to its process. The spare replaces the block's pages when
//! a peer must lose access to them. It is mapped together with the block, so that the system has
//! committed to it. It has no pages before it is written.

use crate::cpu::copy::copy_private;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::{io, ops::Range, ptr, sync::Mutex};

/// The blocks in use in this process's heaps, in the order of their addresses.
#[derive(Debug, Default)]
pub(super) struct Account(pub(super) Mutex<Vec<Use>>);

/// A block in use. Its bytes are relative to the start of all heaps.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) bytes: Range<usize>,
    /// The number of bytes that the caller asked for.
    pub(super) asked: usize,
    /// Whether these addresses are not used again: other memory is mapped there (see
    /// [`Segment::detach`]), or the pages could not be freed.
    pub(super) detached: bool,
    pub(super) spare: Spare,
}

/// Private memory of a block's size. Parts of it may have been moved to the block's addresses.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// The first address, from when the memory was whole.
    start: usize,
    /// The parts that are still mapped there, as byte ranges relative to `start`.
    parts: Vec<Range<usize>>,
}

impl Spare {
    pub(super) fn new(bytes: usize) -> io::Result<Spare> {
        // SAFETY: the system chooses free addresses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(Spare { start: start.expose_provenance(), parts: std::iter::once(0..bytes).collect() })
    }

    /// Copies these bytes of the block at `block` to the spare, and moves that part of the spare to
    /// their addresses.
    ///
    /// # Safety
    /// The block is mapped at `block` and has the size of the original spare. The bytes are whole
    /// pages of the block; no thread of this process touches them.
    pub(super) unsafe fn replace(&mut self, block: *mut u8, bytes: Range<usize>) -> io::Result<()> {
        let whole = |part: &Range<usize>| part.start <= bytes.start && bytes.end <= part.end;
        let part = self.parts.iter().position(whole).ok_or(io::ErrorKind::InvalidInput)?;
        let spare = ptr::with_exposed_provenance_mut::<u8>(self.start + bytes.start);
        let place = block.wrapping_add(bytes.start);
        // SAFETY: both ranges are mapped, and do not overlap. The copy is as of a rank's own data,
        // but a peer may write the bytes meanwhile, so the copy may have torn bytes. Then the
        // spare's part replaces all of the pages, and this process uses the part's old addresses no
        // more.
        unsafe {
            copy_private(place.cast_const(), spare, bytes.len());
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
            // SAFETY: this part is still mapped there, and no other value has its address.
            let _ = unsafe { rustix::mm::munmap(start.cast(), part.len()) };
        }
    }
}
