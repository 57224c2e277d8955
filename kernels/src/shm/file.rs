//! The anonymous file of a segment.

use super::{
    error::{SegmentError, cannot},
    layout::HEADER_BYTES,
};
use crate::sync::watch;
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
};
use std::{
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
};

/// The name under which the segment's file is seen in `/proc`; it is in no folder.
pub(super) const NAME: &str = "consonance";

/// Bytes that are reserved at a time. Some systems (Linux until 2024) stop at any signal and undo
/// what they have reserved: what takes longer than a process with a timer has between two of its
/// signals would never be done.
const PIECE: usize = 1 << 20;

/// Nobody may change the segment's size, nor what is sealed.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

pub(super) fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A new file that has no name and can be sealed.
pub(super) fn memory_file() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems refuse a file that could be made executable; others, before Linux 6.3, do not
    // know how to ask for that.
    match rustix::fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, flags),
        file => file,
    }
}

/// Whether the file is one of memory, and sealed as segments are.
pub(super) fn check_seals(file: BorrowedFd<'_>) -> Result<(), SegmentError> {
    let foreign = |what, expected: String, found: String| Err(SegmentError::Foreign { what, expected, found });
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.difference(SealFlags::EXEC) == SEALS => Ok(()),
        Ok(seals) => foreign("seals", format!("{SEALS:?}"), format!("{seals:?}")),
        Err(Errno::INVAL) => {
            foreign("file", "a file of anonymous memory".to_owned(), "a file of another kind".to_owned())
        }
        Err(error) => Err(cannot("read the seals of a segment")(error)),
    }
}

/// Whether the file, which is sealed, has this size, and so will have it for ever.
pub(super) fn check_size(file: BorrowedFd<'_>, expected: usize) -> Result<(), SegmentError> {
    let found = rustix::fs::fstat(file).map_err(cannot("read the size of a segment"))?.st_size as u64;
    if found == expected as u64 {
        return Ok(());
    }
    Err(SegmentError::Foreign { what: "size", expected: expected.to_string(), found: found.to_string() })
}

/// The bytes of the header, of which some are 0 if the file ends before.
pub(super) fn read_header(file: BorrowedFd<'_>) -> Result<[u8; HEADER_BYTES], SegmentError> {
    let mut bytes = [0; HEADER_BYTES];
    let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes, 0));
    read.map_err(cannot("read the header of a segment"))?;
    watch::read_file(0..HEADER_BYTES);
    Ok(bytes)
}

/// Gives the pages of these bytes memory. Where the system refuses, those before keep theirs: some
/// may have had it, and data in it, before this call.
pub(super) fn reserve(file: &OwnedFd, bytes: Range<usize>) -> io::Result<()> {
    in_pieces(bytes, |start, length| rustix::fs::fallocate(file, FallocateFlags::empty(), start, length))
}

/// Reserves a piece after the other, each of which begins and ends at a multiple of [`PIECE`] or
/// with these bytes.
pub(super) fn in_pieces(bytes: Range<usize>, reserve: impl Fn(u64, u64) -> Result<(), Errno>) -> io::Result<()> {
    let mut start = bytes.start;
    while start < bytes.end {
        let end = (start + 1).next_multiple_of(PIECE).min(bytes.end);
        rustix::io::retry_on_intr(|| reserve(start as u64, (end - start) as u64))?;
        start = end;
    }
    Ok(())
}
