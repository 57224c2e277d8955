//! Pinned memory of the host.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Pinned memory.
pub(crate) struct Pinned {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is owned, like a box of bytes.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates a page-aligned block of zeros. `None` if the host has no memory.
    pub(crate) fn new(bytes: usize) -> Option<Pinned> {
        let layout = Layout::from_size_align(bytes, 4096).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        (!start.is_null()).then_some(Pinned { start, layout })
    }

    pub(crate) fn address(&self) -> usize {
        self.start as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.start, self.layout) }
    }
}
