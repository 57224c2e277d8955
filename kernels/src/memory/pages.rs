//! Pages of memory.

use super::page_cache;
use memmap2::MmapMut;
use std::{io, ptr::NonNull};

/// The system is asked for huge pages from this number of bytes on. They become present in less
/// time than small pages of the same size.
#[cfg(target_os = "linux")]
const HUGE_BYTES: usize = 32 << 20;

/// Pages, which are [kept](kept) for a while when they are dropped. `None` only while they are
/// dropped.
pub(crate) struct Pages(Option<MmapMut>);

impl Pages {
    /// Returns zeroed pages. Each becomes present on its first access, so threads that fill the
    /// pages share that work.
    ///
    /// # Errors
    /// The system's, if it has no memory.
    pub(crate) fn zeroed(bytes: usize) -> io::Result<Pages> {
        let pages = MmapMut::map_anon(bytes)?;
        // A system that has no huge pages, or none left, uses small ones.
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_BYTES {
            let _ = pages.advise(memmap2::Advice::HugePage);
        }
        Ok(Pages(Some(pages)))
    }

    /// Returns pages that were freed a short time ago, if there are any of this size. They contain
    /// what their last user wrote.
    pub(crate) fn used(bytes: usize) -> Option<Pages> {
        page_cache::take(bytes).map(|pages| Pages(Some(pages)))
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut **self.0.as_mut().expect("there until they are dropped")).cast()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(page_cache::keep);
    }
}
