//! Pages of memory.

use memmap2::MmapMut;
use std::{io, ptr::NonNull};

/// Pages that are all zero when made, each present from its first touch on: whoever fills them
/// first shares that work. The system is asked for huge pages, which are present in less time than
/// as many small ones.
pub(crate) struct Pages(MmapMut);

impl Pages {
    /// # Errors
    /// The system's, when it has none.
    pub(crate) fn new(bytes: usize) -> io::Result<Pages> {
        let pages = MmapMut::map_anon(bytes)?;
        // A system that knows no huge pages, or has none left, takes small ones.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        Ok(Pages(pages))
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut *self.0).cast()
    }
}
