//! The addresses at which a process has a whole segment.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::{
    ffi::c_void,
    io,
    ops::Range,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
};

/// What areas, staging and blocks of heaps are aligned to: the largest of the ordinary pages that
/// systems of the architecture have. A block cannot be taken from the others without those on its
/// pages.
pub(super) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// Bytes of a huge page: a file's can be mapped as one where both its bytes and its addresses begin
/// at a multiple of this. (Those of a system with other pages stay small.)
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// `MADV_COLLAPSE`, which Linux knows since 6.1, and some C libraries do not.
const COLLAPSE: libc::c_int = 25;

/// A file, mapped whole, from a multiple of [`HUGE_PAGE`] on. A fork has nothing at these
/// addresses, and a dump of the process leaves them out.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the whole process.
unsafe impl Send for Mapping {}
// SAFETY: as above; through a shared one only its addresses are had.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first `bytes` bytes of the file, which are whole pages, to read and to write.
    ///
    /// # Errors
    /// The system's, when it has no addresses.
    pub(super) fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let room = bytes + HUGE_PAGE;
        // SAFETY: the system chooses addresses that nobody has; the file takes some of them, and
        // the others are given back.
        unsafe {
            let first = mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?;
            let skipped = first.addr().next_multiple_of(HUGE_PAGE) - first.addr();
            let start = first.wrapping_byte_add(skipped);
            let both = ProtFlags::READ | ProtFlags::WRITE;
            if let Err(error) = mmap(start, bytes, both, MapFlags::SHARED | MapFlags::FIXED, file, 0) {
                let _ = munmap(first, room);
                return Err(error.into());
            }
            let mapping = Mapping { start: NonNull::new(start.cast()).expect("a mapping is not at 0"), bytes };
            madvise(start, bytes, Advice::LinuxDontFork)?;
            // A dump would make pages of the whole file. Where this is refused, it does.
            let _ = madvise(start, bytes, Advice::LinuxDontDump);
            let end = start.wrapping_byte_add(bytes);
            for (rest, length) in [(first, skipped), (end, HUGE_PAGE - skipped)] {
                if length > 0 {
                    munmap(rest, length)?;
                }
            }
            Ok(mapping)
        }
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Makes huge pages of those of these bytes that fill some, all of which are present. Their
    /// content stays. Where the system has none, or does not know how, they stay small.
    pub(super) fn collapse(&self, bytes: Range<usize>) {
        let whole = bytes.start.next_multiple_of(HUGE_PAGE)..bytes.end / HUGE_PAGE * HUGE_PAGE;
        if whole.is_empty() {
            return;
        }
        assert!(whole.end <= self.bytes, "{bytes:?} of {} bytes", self.bytes);
        // SAFETY: within the mapping; neither what is there nor where it is changes.
        let _ = unsafe { libc::madvise(self.start.as_ptr().add(whole.start).cast::<c_void>(), whole.len(), COLLAPSE) };
    }

    /// Gives these bytes, which are reserved and nobody uses yet, their pages.
    pub(super) fn populate(&self, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "{bytes:?} of {} bytes", self.bytes);
        let start = self.start.as_ptr().wrapping_add(bytes.start);
        // SAFETY: within the mapping; nothing changes but that pages are there.
        if unsafe { madvise(start.cast(), bytes.len(), Advice::LinuxPopulateWrite) }.is_ok() {
            return;
        }
        // Linux before 5.14 does not know it.
        for page in (0..bytes.len()).step_by(PAGE) {
            // SAFETY: as above; the caller has the bytes for itself, and they are zero.
            unsafe { start.add(page).write_volatile(0) }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these addresses are the mapping's own, and nobody uses them any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
