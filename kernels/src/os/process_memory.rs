//! Reads the memory of other processes through the system. Whether the system allows this is
//! unknown before a read is tried.
//!
//! Concurrent writes of the other process are no data race here: the system reads that memory, into
//! memory of this process alone.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux reads for us"))]

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};

/// The size of the smallest page.
#[cfg(target_os = "linux")]
const PAGE: usize = 4 << 10;

/// A process of a group, as the other processes know it.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    /// The process id.
    pub(crate) id: u32,
    /// The address at which the process has the group's name. A later process with the same id does
    /// not have the name there, and neither does a fork: see `Segment::mark`.
    pub(crate) mark: usize,
    /// The group's name.
    pub(crate) group: [u8; 16],
}

/// The reason why memory was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The process does not exist any more.
    Gone,
    /// The system refuses the read, or the process has no such memory.
    Refused,
}

impl Process {
    /// Reads memory of the process `self` at `address`. If this succeeds, the bytes come from that
    /// process, and not from a later process with the same id.
    ///
    /// # Safety
    /// `target` is valid for writes of `bytes` bytes, and no other thread accesses those bytes.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn read(&self, address: usize, target: *mut u8, bytes: usize) -> Result<(), Unread> {
        let mut name = [0u8; 16];
        let part = |start: *mut u8, bytes| libc::iovec { iov_base: start.cast(), iov_len: bytes };
        let there = |address| std::ptr::without_provenance_mut(address);
        // The name is read after the data, from the same memory: the system looks up the process
        // only once.
        let local = [part(target, bytes), part(name.as_mut_ptr(), name.len())];
        let remote = [part(there(address), bytes), part(there(self.mark), name.len())];
        // SAFETY: the target is valid for writes, as the caller promises, and so is the name. The
        // system checks the addresses in the other process.
        let read = unsafe { libc::process_vm_readv(self.id as libc::pid_t, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        if usize::try_from(read) != Ok(bytes + name.len()) {
            // From a process that is ending the system may read only a part, or nothing. Then it
            // cannot read the name, either.
            let no_process = read < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            let gone = no_process || bytes > 0 && !self.is_readable();
            return Err(if gone { Unread::Gone } else { Unread::Refused });
        }
        if name == self.group { Ok(()) } else { Err(Unread::Gone) }
    }

    /// Fails: this system has no way to read another process.
    ///
    /// # Safety
    /// None.
    #[cfg(not(target_os = "linux"))]
    pub(crate) unsafe fn read(&self, _: usize, _: *mut u8, _: usize) -> Result<(), Unread> {
        Err(Unread::Refused)
    }

    /// Whether the system can read this memory of the calling process, which `self` must be. It
    /// cannot read the memory of a device, which is only mapped.
    pub(crate) fn has_ordinary(&self, address: *const u8) -> bool {
        // Cheaper than a read. Linux before 5.14 does not know the advice. It takes the start of a
        // page.
        #[cfg(target_os = "linux")]
        // SAFETY: the advice changes no contents.
        if unsafe {
            madvise(address.map_addr(|at| at & !(PAGE - 1)).cast_mut().cast(), PAGE, Advice::LinuxPopulateRead)
        }
        .is_ok()
        {
            return true;
        }
        let mut byte = 0;
        // SAFETY: one byte is written.
        unsafe { self.read(address.addr(), &mut byte, 1) }.is_ok()
    }

    /// Whether the calling process may read the memory of the process `self`.
    pub(crate) fn is_readable(&self) -> bool {
        // SAFETY: nothing is written.
        unsafe { self.read(self.mark, std::ptr::NonNull::dangling().as_ptr(), 0).is_ok() }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns the calling process, with the name of the group at `mark`.
    fn own(mark: &[u8; 16]) -> Process {
        Process { id: std::process::id(), mark: mark.as_ptr().addr(), group: *mark }
    }

    fn read(process: &Process, address: usize) -> Result<[u8; 4], Unread> {
        let mut bytes = [9; 4];
        // SAFETY: the bytes are this test's.
        unsafe { process.read(address, bytes.as_mut_ptr(), bytes.len()) }.map(|()| bytes)
    }

    #[test]
    fn memory_is_read_only_of_the_process_with_the_mark() {
        let (data, mark) = ([1u8, 2, 3, 4], [5u8; 16]);
        let address = data.as_ptr().addr();
        if !own(&mark).is_readable() {
            return eprintln!("this system lets no process read even its own memory: nothing to test");
        }
        assert_eq!(read(&own(&mark), address), Ok(data));
        assert_eq!(read(&Process { group: [6; 16], ..own(&mark) }, address), Err(Unread::Gone), "another's number");
        assert_eq!(read(&own(&mark), 0), Err(Unread::Refused));
        assert_eq!(read(&Process { mark: 0, ..own(&mark) }, address), Err(Unread::Gone), "no name");
    }

    #[test]
    fn unmapped_memory_is_not_ordinary() {
        let mark = [5u8; 16];
        if !own(&mark).is_readable() {
            return eprintln!("this system lets no process read even its own memory: nothing to test");
        }
        assert!(own(&mark).has_ordinary(&mark[15]));
        assert!(!own(&mark).has_ordinary(std::ptr::null()));
        assert!(!own(&mark).has_ordinary(std::ptr::without_provenance(usize::MAX)));
    }

    #[test]
    fn an_ended_process_is_not_read() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        child.wait().unwrap();
        let mark = [5u8; 16];
        read(&Process { id, ..own(&mark) }, mark.as_ptr().addr()).unwrap_err();
    }
}
