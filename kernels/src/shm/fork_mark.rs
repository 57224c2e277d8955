//! Tells a process from its forks.

use super::{group_id::GroupId, mapping::PAGE};
use crate::sync::atomics::{AtomicU32, Ordering};
use memmap2::{MmapMut, MmapRaw};
use std::io;

/// A page that the system wipes in a child made by `fork`. It has a word that is 1, and the group's
/// name.
pub(super) struct ForkMark(MmapRaw);

impl ForkMark {
    pub(super) fn new(id: GroupId) -> io::Result<ForkMark> {
        let page = MmapRaw::from(MmapMut::map_anon(PAGE)?);
        // SAFETY: the page is mapped, private and anonymous. The advice does not change the bytes
        // in this process.
        if unsafe { libc::madvise(page.as_mut_ptr().cast(), page.len(), libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mark = ForkMark(page);
        // SAFETY: within the page, which nothing else uses yet.
        unsafe { mark.name().copy_from_nonoverlapping(id.0.as_ptr(), id.0.len()) }
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    pub(super) fn wiped(&self) -> bool {
        // Relaxed: the word changes only when another process is made.
        self.word().load(Ordering::Relaxed) == 0
    }

    pub(super) fn name(&self) -> *mut u8 {
        self.0.as_mut_ptr().wrapping_add(size_of::<GroupId>())
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped while `self` lives, aligned, and nothing else uses it.
        unsafe { &*self.0.as_mut_ptr().cast() }
    }
}
