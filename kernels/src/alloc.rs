//! Memory for data that other ranks read and write in place.

use crate::{buffer::Memory, step::Seat};
use consonance_spec::DType;
use std::io;

impl Seat {
    /// `count` elements, all zero, that every rank of this group can read and write in place, where they are data of a step. Such
    /// data need not be put up for the others.
    ///
    /// # Errors
    /// The system's, when it has no memory; one in a process made by `fork` after it joined the group.
    pub fn alloc(&self, dtype: DType, count: usize) -> io::Result<Memory> {
        let Some(segment) = self.hub.shared_segment() else { return Memory::try_zeroed(dtype, count) };
        if segment.forked() {
            return Err(io::Error::other("this process was made by fork after it joined the group"));
        }
        let bytes = count.checked_mul(dtype.size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let block = segment.allocate(self.hub.top_rank(self.world.rank()), bytes)?;
        Ok(Memory::in_block(block, dtype, count))
    }
}
