//! Memory for data that other ranks read and write in place.

use super::endpoint::Endpoint;
use crate::memory::HostMemory;
use consonance_spec::DType;
use std::io;

impl Endpoint {
    /// Allocates `count` elements, all zero, that every rank of this group can read and write in
    /// place when they are data of a step. Such data need not be copied in.
    ///
    /// Memory that peers can write only has types for which every bit pattern is valid: between
    /// processes, bools get private memory.
    ///
    /// # Errors
    /// The system's, when it has no memory. An error in a process made by `fork` after it joined
    /// the group.
    pub fn alloc(&self, dtype: DType, count: usize) -> io::Result<HostMemory> {
        let Some(segment) = self.state.shared_segment().filter(|_| dtype != DType::Bool) else {
            return HostMemory::try_zeroed(dtype, count);
        };
        if segment.forked() {
            return Err(io::Error::other("this process was made by fork after it joined the group"));
        }
        let bytes = count.checked_mul(dtype.size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let block = segment.allocate(self.state.top_rank(self.world.rank()), bytes)?;
        let start = block.start();
        // SAFETY: a block begins at a page and has at least `bytes` bytes, which are zero at first.
        // No other value of this process gives access to it; peers touch it only within a step
        // whose descriptor refers to it.
        Ok(unsafe { HostMemory::in_block(start, dtype, count, Box::new(block)) })
    }
}
