//! Pages of memory.

use memmap2::MmapMut;
use std::{io, ptr::NonNull};

/// Zeroed pages. Each becomes present on its first access, so threads that fill the pages share
/// that work. The system is asked for huge pages, which become present in less time than small
/// pages of the same size.
pub(crate) struct Pages(MmapMut);

impl Pages {
    /// # Errors
    /// The system's, if it has no memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Pages> {
        let pages = MmapMut::map_anon(bytes)?;
        // A system that has no huge pages, or none left, uses small ones.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        Ok(Pages(pages))
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut *self.0).cast()
    }
}
