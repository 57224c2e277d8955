//! The anonymous file of a segment.

use super::{
    error::{SegmentError, cannot},
    layout::HEADER_BYTES,
};
use crate::sync::watch;
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
    process::{Resource, getrlimit},
};
use std::{
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
};

/// The name of the segment's file in `/proc`. The file is in no directory. The file of a link has a
/// longer one.
pub(super) const NAME: &str = "consonance";

/// The number of bytes that are reserved at a time. Some systems (Linux until 2024) stop a
/// reservation at any signal and undo it. In a process with a timer, a reservation that takes
/// longer than the time between two signals would never succeed.
const PIECE: usize = 1 << 20;

/// The seals of a segment: no process may change its size or its seals.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

pub(super) fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Makes a file that is in no directory and can be sealed. The name is shown in `/proc`.
pub(super) fn memory_file(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems refuse a file that could be made executable. Linux before 6.3 does not know the
    // flag.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        file => file,
    }
}

/// Makes a file of this size, in whose pages nothing is reserved.
pub(super) fn sized_file(name: &str, bytes: usize) -> Result<OwnedFd, SegmentError> {
    let file = memory_file(name).map_err(cannot("make an anonymous file"))?;
    let size = bytes as u64;
    // Growing a file over this limit raises a signal that ends the process.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < size) {
        let what = format!("make a segment of {size} bytes with files limited to {limit} bytes (RLIMIT_FSIZE)");
        return Err(SegmentError::System { what, source: Errno::FBIG.into() });
    }
    let sized = rustix::fs::ftruncate(&file, size);
    sized.map_err(cannot(format!("make a segment of {size} bytes")))?;
    Ok(file)
}

/// Checks that the file is anonymous memory and has exactly the seals of a segment.
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

/// Checks the size of the file, which is sealed: its size stays the same for ever.
pub(super) fn check_size(file: BorrowedFd<'_>, expected: usize) -> Result<(), SegmentError> {
    let found = rustix::fs::fstat(file).map_err(cannot("read the size of a segment"))?.st_size as u64;
    if found == expected as u64 {
        return Ok(());
    }
    Err(SegmentError::Foreign { what: "size", expected: expected.to_string(), found: found.to_string() })
}

/// Returns the bytes of the header. If the file is shorter, the rest are 0.
pub(super) fn read_header(file: BorrowedFd<'_>) -> Result<[u8; HEADER_BYTES], SegmentError> {
    let mut bytes = [0; HEADER_BYTES];
    let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes, 0));
    read.map_err(cannot("read the header of a segment"))?;
    watch::read_file(0..HEADER_BYTES);
    Ok(bytes)
}

/// Reserves the pages of these bytes. If the system refuses, the pages before the error stay
/// reserved: some may have been reserved, and have data, before this call.
pub(super) fn reserve(file: &OwnedFd, bytes: Range<usize>) -> io::Result<()> {
    in_pieces(bytes, |start, length| rustix::fs::fallocate(file, FallocateFlags::empty(), start, length))
}

/// Reserves these bytes piece by piece. Each piece begins and ends at a multiple of [`PIECE`], or
/// where the bytes begin or end.
pub(super) fn in_pieces(bytes: Range<usize>, reserve: impl Fn(u64, u64) -> Result<(), Errno>) -> io::Result<()> {
    let mut start = bytes.start;
    while start < bytes.end {
        let end = (start + 1).next_multiple_of(PIECE).min(bytes.end);
        rustix::io::retry_on_intr(|| reserve(start as u64, (end - start) as u64))?;
        start = end;
    }
    Ok(())
}
