//! The mapping of a whole segment in a process.

use crate::{
    os::robust_list::{DISTANCE, Entry},
    sync::atomics::AtomicU32,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::{
    ffi::c_void,
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
};

/// The alignment of areas, staging and heap blocks: the largest ordinary page of the systems on
/// this architecture. A block shares no page with another block, because only whole pages can be
/// taken from the other processes.
pub(super) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// Bytes of a huge page. A part of a file can be mapped as a huge page if its offset and its
/// address are multiples of this. On a system with other huge pages, the pages stay small.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// `MADV_COLLAPSE`: Linux has it since 6.1; some C libraries do not define it.
const COLLAPSE: libc::c_int = 25;

/// A file that is mapped as a whole, at a multiple of [`HUGE_PAGE`]. A fork has nothing at these
/// addresses, and a dump of the process leaves them out.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the whole process.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives only addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of the file, which are whole pages, for reads and writes.
    ///
    /// # Errors
    /// The system's, when it has no addresses.
    pub(super) fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::with_access(file, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `bytes` bytes of the file, which are whole pages, for reads alone. A write
    /// would end the process.
    ///
    /// # Errors
    /// As [`new`](Mapping::new).
    pub(super) fn of_reader(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::with_access(file, bytes, ProtFlags::READ)
    }

    fn with_access(file: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> io::Result<Mapping> {
        let room = bytes + HUGE_PAGE;
        // SAFETY: the system chooses free addresses. The file is mapped at some of them, and the
        // others are unmapped.
        unsafe {
            let first = mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?;
            let skipped = first.addr().next_multiple_of(HUGE_PAGE) - first.addr();
            let start = first.wrapping_byte_add(skipped);
            if let Err(error) = mmap(start, bytes, access, MapFlags::SHARED | MapFlags::FIXED, file, 0) {
                let _ = munmap(first, room);
                return Err(error.into());
            }
            let mapping = Mapping { start: NonNull::new(start.cast()).expect("a mapping is not at 0"), bytes };
            madvise(start, bytes, Advice::LinuxDontFork)?;
            // A dump would allocate all pages of the file. If the system refuses this advice, a
            // dump does so.
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

    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Collapses these bytes, all of which are present, into huge pages where they fill one. The
    /// contents stay. The pages stay small if the system has no huge page, or does not know the
    /// advice.
    pub(super) fn collapse(&self, bytes: Range<usize>) {
        let whole = bytes.start.next_multiple_of(HUGE_PAGE)..bytes.end / HUGE_PAGE * HUGE_PAGE;
        if whole.is_empty() {
            return;
        }
        assert!(whole.end <= self.bytes, "{bytes:?} of {} bytes", self.bytes);
        // SAFETY: within the mapping. Neither the contents nor their addresses change.
        let _ = unsafe { libc::madvise(self.start.as_ptr().add(whole.start).cast::<c_void>(), whole.len(), COLLAPSE) };
    }

    /// Maps the pages of these bytes, which are reserved and not yet in use.
    pub(super) fn populate(&self, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "{bytes:?} of {} bytes", self.bytes);
        let start = self.start.as_ptr().wrapping_add(bytes.start);
        // SAFETY: within the mapping. The contents do not change.
        if unsafe { madvise(start.cast(), bytes.len(), Advice::LinuxPopulateWrite) }.is_ok() {
            return;
        }
        // Linux before 5.14 does not know the advice.
        for page in (0..bytes.len()).step_by(PAGE) {
            // SAFETY: as above; only the caller uses the bytes, and they are zero.
            unsafe { start.add(page).write_volatile(0) }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these addresses belong to the mapping, and nothing uses them any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A page of a file, and a private page [`DISTANCE`] bytes before it. A fork has nothing at these
/// addresses.
pub(super) struct Beside {
    start: NonNull<u8>,
    /// The place in both pages.
    place: usize,
}

const _: () = assert!(DISTANCE.is_multiple_of(PAGE));

// SAFETY: a mapping belongs to the whole process.
unsafe impl Send for Beside {}
// SAFETY: as above; a shared reference gives an address, and a word that is an atomic.
unsafe impl Sync for Beside {}

impl Beside {
    /// Maps the page of the file that has the byte at `offset`, for reads and writes.
    ///
    /// # Errors
    /// The system's, when it has no addresses.
    pub(super) fn new(file: impl AsFd, offset: usize) -> io::Result<Beside> {
        let (place, bytes) = (offset % PAGE, DISTANCE + PAGE);
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses free addresses. The file is mapped at the last of them.
        unsafe {
            let start = mmap_anonymous(ptr::null_mut(), bytes, both, MapFlags::PRIVATE)?;
            let beside = Beside { start: NonNull::new(start.cast()).expect("a mapping is not at 0"), place };
            let page = start.wrapping_byte_add(DISTANCE);
            mmap(page, PAGE, both, MapFlags::SHARED | MapFlags::FIXED, file, (offset - place) as u64)?;
            madvise(start, bytes, Advice::LinuxDontFork)?;
            Ok(beside)
        }
    }

    /// Returns the address at the place in the private page.
    pub(super) fn entry(&self) -> NonNull<Entry> {
        // SAFETY: within the mapping.
        unsafe { self.start.add(self.place).cast() }
    }

    /// Returns the word at the place in the file's page, which is a multiple of the word's
    /// alignment.
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: within the mapping, which lasts while `self` does, and aligned. It is an atomic,
        // so nothing that a peer writes can invalidate the reference.
        unsafe { self.start.add(DISTANCE + self.place).cast().as_ref() }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: these addresses belong to the mapping, and nothing uses them any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), DISTANCE + PAGE) };
    }
}
