//! Memory for data that other ranks read and write in place.

use super::endpoint::Endpoint;
use crate::memory::Memory;
use consonance_spec::DType;
use std::io;

impl Endpoint {
    /// `count` elements, all zero, that every rank of this group can read and write in place, where
    /// they are data of a step. Such data need not be put up for the others.
    ///
    /// What peers can write is of types for which every pattern of bits is valid: between
    /// processes, bools get memory of their own.
    ///
    /// # Errors
    /// The system's, when it has no memory; one in a process made by `fork` after it joined the
    /// group.
    pub fn alloc(&self, dtype: DType, count: usize) -> io::Result<Memory> {
        let Some(segment) = self.state.shared_segment().filter(|_| dtype != DType::Bool) else {
            return Memory::try_zeroed(dtype, count);
        };
        if segment.forked() {
            return Err(io::Error::other("this process was made by fork after it joined the group"));
        }
        let bytes = count.checked_mul(dtype.size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let block = segment.allocate(self.state.top_rank(self.world.rank()), bytes)?;
        let start = block.start();
        // SAFETY: a block begins at a page, and its bytes, of which there are enough, are zero at
        // first. Other values of this process give no access to it; peers touch it within a step,
        // where it is shown to them.
        Ok(unsafe { Memory::in_block(start, dtype, count, Box::new(block)) })
    }
}
