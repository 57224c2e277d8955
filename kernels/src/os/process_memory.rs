//! Memory of other processes, which the system reads for this one: where it allows that, which
//! nobody knows before it was tried.
//!
//! What another process writes meanwhile is no race here: it is the system that reads it, into
//! memory of this process alone.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux reads for us"))]

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};

/// The least that a page has.
#[cfg(target_os = "linux")]
const PAGE: usize = 4 << 10;

/// A process of a group, as it is known to the others.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) id: u32,
    /// Where it has the group's name. A process that comes to have this number later has it not,
    /// and neither has a fork: see `Segment::mark`.
    pub(crate) mark: usize,
    /// The group's name.
    pub(crate) group: [u8; 16],
}

/// Why memory was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The process is not there any more.
    Gone,
    /// The system refuses, or the process has no such memory.
    Refused,
}

impl Process {
    /// Reads the process's memory at `address`. If this succeeds, it was that of the process and of
    /// none that came after it.
    ///
    /// # Safety
    /// `target` is valid for writes of `bytes` bytes, and nobody else touches them.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn read(&self, address: usize, target: *mut u8, bytes: usize) -> Result<(), Unread> {
        let mut name = [0u8; 16];
        let part = |start: *mut u8, bytes| libc::iovec { iov_base: start.cast(), iov_len: bytes };
        let there = |address| std::ptr::without_provenance_mut(address);
        // The name is read after the data, from the same memory: the system looks the process up
        // once.
        let local = [part(target, bytes), part(name.as_mut_ptr(), name.len())];
        let remote = [part(there(address), bytes), part(there(self.mark), name.len())];
        // SAFETY: the target is valid for writes, as the caller promises, and so is the name; the
        // other process's addresses are checked by the system.
        let read = unsafe { libc::process_vm_readv(self.id as libc::pid_t, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        if usize::try_from(read) != Ok(bytes + name.len()) {
            // Of a process that is ending the system may read a part, or nothing: so not even the
            // name.
            let no_process = read < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            let gone = no_process || bytes > 0 && !self.is_readable();
            return Err(if gone { Unread::Gone } else { Unread::Refused });
        }
        if name == self.group { Ok(()) } else { Err(Unread::Gone) }
    }

    /// There is no way to read it on this system.
    ///
    /// # Safety
    /// None.
    #[cfg(not(target_os = "linux"))]
    pub(crate) unsafe fn read(&self, _: usize, _: *mut u8, _: usize) -> Result<(), Unread> {
        Err(Unread::Refused)
    }

    /// Whether the system reads this memory of this very process: not that of a device, which is
    /// only mapped.
    pub(crate) fn has_ordinary(&self, address: *const u8) -> bool {
        // In a third of the time of a read. Linux before 5.14 does not know it, and it wants the
        // start of a page.
        #[cfg(target_os = "linux")]
        // SAFETY: nothing is changed by it.
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

    /// Whether this process may read that one's memory.
    pub(crate) fn is_readable(&self) -> bool {
        // SAFETY: nothing is written.
        unsafe { self.read(self.mark, std::ptr::NonNull::dangling().as_ptr(), 0).is_ok() }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// What this process has at `mark`, as a group's name.
    fn own(mark: &[u8; 16]) -> Process {
        Process { id: std::process::id(), mark: mark.as_ptr().addr(), group: *mark }
    }

    fn read(process: &Process, address: usize) -> Result<[u8; 4], Unread> {
        let mut bytes = [9; 4];
        // SAFETY: the bytes are this test's.
        unsafe { process.read(address, bytes.as_mut_ptr(), bytes.len()) }.map(|()| bytes)
    }

    #[test]
    fn memory_is_read_of_the_process_that_has_the_name() {
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
    fn memory_that_nobody_has_is_not_ordinary() {
        let mark = [5u8; 16];
        if !own(&mark).is_readable() {
            return eprintln!("this system lets no process read even its own memory: nothing to test");
        }
        assert!(own(&mark).has_ordinary(&mark[15]));
        assert!(!own(&mark).has_ordinary(std::ptr::null()));
        assert!(!own(&mark).has_ordinary(std::ptr::without_provenance(usize::MAX)));
    }

    #[test]
    fn a_process_that_ended_is_not_read() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        child.wait().unwrap();
        let mark = [5u8; 16];
        read(&Process { id, ..own(&mark) }, mark.as_ptr().addr()).unwrap_err();
    }
}
