//! The model of reads of other processes' memory: the memory is in this process, and is watched.
//!
//! In reality the operating system reads the memory, so a concurrent write is no data race, but the
//! ranks must then discard the bytes. The model reports every such access as an error, because its
//! scenarios that read other processes have no rank that gives up in the middle.

use crate::watched_memory;

#[derive(Clone, Copy)]
#[allow(dead_code, reason = "the model has one process")]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) mark: usize,
    pub(crate) group: [u8; 16],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "nobody is gone in the model")]
pub(crate) enum Unread {
    Gone,
    Refused,
}

impl Process {
    /// # Safety
    /// `target` is valid for writes of `bytes` bytes, and `address` is the address of `bytes` bytes
    /// that can be read.
    pub(crate) unsafe fn read(&self, address: usize, target: *mut u8, bytes: usize) -> Result<(), Unread> {
        let source: *const u8 = std::ptr::with_exposed_provenance(address);
        watched_memory::read(source, bytes);
        watched_memory::write(target, bytes);
        // SAFETY: the caller's promises.
        unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
        Ok(())
    }

    pub(crate) fn has_ordinary(&self, _: *const u8) -> bool {
        true
    }

    pub(crate) fn is_readable(&self) -> bool {
        true
    }
}
