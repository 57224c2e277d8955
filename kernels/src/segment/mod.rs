//! The memory that the processes of one group share: one anonymous file, mapped whole by each of them.
//!
//! A segment is large in addresses and small in memory: the file has its full size from the start and is sealed, so that it
//! can neither shrink under who reads it nor grow, but its pages are *reserved* (`fallocate`) part by part, by whoever is
//! about to use them. What cannot be reserved is an error. A page that nobody reserved would be made by the first touch, and
//! where there is no memory for it, that touch would end the process by `SIGBUS`; therefore nothing here is touched before
//! it is reserved. A container is charged for what its processes reserve, and at its limit the kernel refuses nothing: it ends
//! one of them.
//!
//! The file has no name: it ends with the last process that has it, however that one ends.
//!
//! Nothing that lies in the segment is trusted: [`Segment::open`] checks that it is what its peers say, and every address is
//! computed from what this process knows itself (`layout.rs`). No reference is formed to bytes that a peer may write; only
//! atomics are shared by reference.
//!
//! All bits zero are a fresh head, line and ring, because that is what new pages are.

mod header;
mod heap;
mod inspect;
mod layout;
mod mapping;

pub(crate) use heap::Block;
pub use inspect::{Inspection, RankCalls};
pub(crate) use layout::Area;
pub use layout::Shape;

use crate::{
    atomics::{AtomicU32, Ordering},
    hub::Head,
    line::Line,
    ring::Ring,
};
use header::Header;
use layout::{Layout, PAGE};
use mapping::Mapping;
use memmap2::{MmapMut, MmapRaw};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
    process::{Resource, getrlimit},
    rand::{GetRandomFlags, getrandom},
};
use std::{
    fmt, io,
    mem::ManuallyDrop,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

/// The name under which the segment's file is seen in `/proc`; it is in no folder.
const NAME: &str = "consonance";

/// Bytes that are reserved at a time. Some systems (Linux until 2024) stop at any signal and undo what they have reserved: what
/// takes longer than a process with a timer has between two of its signals would never be done.
const PIECE: usize = 1 << 20;

/// Nobody may change the segment's size, nor what is sealed.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The memory that the processes of one group share.
///
/// A child made by `fork` has none of it: see [`forked`](Segment::forked).
pub struct Segment {
    id: GroupId,
    shape: Shape,
    layout: Layout,
    file: OwnedFd,
    /// Which file that is: a program may close descriptors that are not its own, and open others in their place.
    identity: (u64, u64),
    /// Unmapped by [`Segment::drop`] only where it is mapped.
    map: ManuallyDrop<Mapping>,
    mark: ForkMark,
    account: heap::Account,
}

/// The name of one group of processes, which no other group has: 16 random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId([u8; 16]);

/// Why there is no segment.
#[derive(Debug)]
pub enum SegmentError {
    /// No segment has such a shape.
    Shape {
        /// What is wrong with it.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// This is not the group's segment.
    Foreign {
        /// What differs.
        what: &'static str,
        /// What the group's segment has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// The system refused.
    System {
        /// What could not be done: `cannot` stands before it.
        what: String,
        /// The system's own error.
        source: io::Error,
    },
}

impl Segment {
    /// A digest of where things lie: that of all processes is the same, or they cannot share a segment.
    pub const LAYOUT: u64 = layout::HASH;

    /// How many groups can be split from the group of all ranks and live at a time.
    pub const SPLITS: usize = layout::SPLITS;

    /// The bytes at the beginning by which [`Segment::open`] knows a segment.
    pub const HEADER_BYTES: usize = header::BYTES;

    /// Makes the segment of a new group.
    ///
    /// The header, the heads of groups, the lines of all ranks and their rings are reserved: about 160 KiB for 8 ranks.
    ///
    /// # Errors
    /// [`SegmentError::System`] if the system gives no file of this size (limits on the size of files, on open files), no
    /// memory, or no addresses.
    pub fn create(shape: Shape, id: GroupId) -> Result<Segment, SegmentError> {
        let layout = Layout::new(shape);
        let file = memory_file().map_err(cannot("make an anonymous file"))?;
        let size = layout.size as u64;
        // To grow a file over this limit is a signal that ends the process.
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < size) {
            let what = format!("make a segment of {size} bytes with files limited to {limit} bytes (RLIMIT_FSIZE)");
            return Err(SegmentError::System { what, source: Errno::FBIG.into() });
        }
        let sized = rustix::fs::ftruncate(&file, size);
        sized.map_err(cannot(format!("make a segment of {size} bytes")))?;
        reserve(&file, layout.reserved()).map_err(cannot("reserve the first pages of a segment"))?;
        let header = Header::new(id, shape).to_bytes();
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, &header, 0));
        written.map_err(cannot("write the header of a segment"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(cannot("seal a segment"))?;
        Segment::map(file, id, shape, layout)
    }

    /// Opens the segment that a peer passed to this process.
    ///
    /// `id` and `shape` are what the processes agreed on by other means.
    ///
    /// # Errors
    /// [`SegmentError::Foreign`] if it is not a segment, not this group's, or another build's; [`SegmentError::System`] as in
    /// [`Segment::create`].
    pub fn open(file: OwnedFd, id: GroupId, shape: Shape) -> Result<Segment, SegmentError> {
        let layout = Layout::new(shape);
        check_seals(file.as_fd())?;
        check_size(file.as_fd(), layout.size)?;
        Header::new(id, shape).check(&read_header(file.as_fd())?)?;
        // Its maker did this; if it is not so, it must not be this process that pays for it.
        reserve(&file, layout.reserved()).map_err(cannot("reserve the first pages of a segment"))?;
        Segment::map(file, id, shape, layout)
    }

    fn map(file: OwnedFd, id: GroupId, shape: Shape, layout: Layout) -> Result<Segment, SegmentError> {
        let mark = ForkMark::new(id).map_err(cannot("map a page that a fork wipes"))?;
        // Not for a child, which would write the lines of its parent's ranks.
        let mapped = Mapping::new(file.as_fd(), layout.size);
        let map = mapped.map_err(cannot(format!("map a segment of {} bytes", layout.size)))?;
        let identity = identity(file.as_fd()).map_err(cannot("tell a segment from other files"))?;
        Ok(Segment {
            id,
            shape,
            layout,
            file,
            identity,
            map: ManuallyDrop::new(map),
            mark,
            account: heap::Account::default(),
        })
    }

    /// The segment's file, to pass to a peer.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The group that has the segment.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The bytes of [`id`](Segment::id).
    pub(crate) fn name(&self) -> [u8; 16] {
        self.id.0
    }

    /// How large the segment is.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Where this process, and no fork of it, has the group's name.
    pub(crate) fn mark(&self) -> usize {
        self.mark.name().addr()
    }

    /// Whether this process is a child, made by `fork`, of the one that has the segment. The child must not use it: the memory
    /// is not mapped there. One load.
    pub fn forked(&self) -> bool {
        self.mark.wiped()
    }

    /// The head and the first line of an area. The lines of its ranks follow each other.
    ///
    /// They are the caller's to touch once the area is reserved, until the segment is dropped, and not in a fork. The heads of
    /// all areas but pairs are reserved from the start, and so are the lines of [`Area::Root`].
    ///
    /// # Panics
    /// If there is no such area.
    pub(crate) fn area(&self, area: Area) -> (NonNull<Head>, NonNull<Line>) {
        (self.at(self.layout.head(area)).cast(), self.at(self.layout.lines(area)).cast())
    }

    /// Reserves the pages of an area. To do it again costs a call.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    ///
    /// # Panics
    /// If there is no such area.
    pub(crate) fn reserve_area(&self, area: Area) -> io::Result<()> {
        self.reserve(self.layout.pages(area))
    }

    /// Bytes that [`reserve_area`](Segment::reserve_area) reserves.
    pub(crate) fn area_bytes(&self, area: Area) -> usize {
        self.layout.pages(area).len()
    }

    /// The area of the group of all ranks.
    pub(crate) fn root(&self) -> Area {
        Area::Root
    }

    /// The area of the group that two ranks of the group in `area` have for themselves.
    ///
    /// # Panics
    /// If `area` is itself that of a pair.
    pub(crate) fn pair(&self, area: Area, lower: usize, higher: usize) -> Area {
        let group = match area {
            Area::Root => 0,
            Area::Split(index) => 1 + index,
            Area::Pair { .. } => unreachable!("a pair has no pairs"),
        };
        Area::Pair { group, lower, higher }
    }

    /// Bytes of one rank's staging in this area: [`Shape::staging_bytes`], or a quarter of them for a pair.
    pub(crate) fn staging_bytes(&self, area: Area) -> usize {
        self.layout.staging_bytes(area)
    }

    /// The staging of a rank, in the numbering of the area: [`staging_bytes`](Segment::staging_bytes) bytes, from the start of
    /// a page on. The staging of the next rank follows.
    ///
    /// They are the caller's to touch once they are reserved, until the segment is dropped, and not in a fork.
    ///
    /// # Panics
    /// If there is no such area, or it has no such rank.
    pub(crate) fn staging(&self, area: Area, rank: usize) -> NonNull<u8> {
        self.at(self.layout.staging(area, rank).start)
    }

    /// Reserves the pages of these bytes of a rank's staging. To do it again costs a call.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    ///
    /// # Panics
    /// If there is no such staging.
    pub(crate) fn reserve_staging(&self, area: Area, rank: usize, bytes: Range<usize>) -> io::Result<()> {
        let staging = self.layout.staging(area, rank);
        assert!(bytes.start <= bytes.end && bytes.end <= staging.len(), "{bytes:?} of {} bytes", staging.len());
        self.reserve(staging.start + bytes.start..staging.start + bytes.end)
    }

    fn reserve(&self, bytes: Range<usize>) -> io::Result<()> {
        reserve(self.own_file()?, bytes)
    }

    /// The segment's file, and no other in its place.
    fn own_file(&self) -> Result<&OwnedFd, Errno> {
        let is_own = identity(self.file.as_fd())? == self.identity;
        is_own.then_some(&self.file).ok_or(Errno::BADF)
    }

    /// The last calls of a rank, in the numbering of all. Not for a fork.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(crate) fn ring(&self, rank: usize) -> &Ring {
        // SAFETY: the layout puts a ring there, aligned and within the mapping, which lasts while `self` does. It is made of
        // atomics, for which every pattern of bits is valid, so that nothing a peer writes can break the reference. Its pages
        // are reserved from the start.
        unsafe { self.at(self.layout.ring(rank)).cast::<Ring>().as_ref() }
    }

    /// The address of a byte of the segment.
    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.layout.size, "byte {offset} of {}", self.layout.size);
        // SAFETY: within the mapping, which has `size` bytes.
        unsafe { self.map.start().add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // In a fork other things may lie at these addresses by now.
        if !self.forked() {
            // SAFETY: dropped here only, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.map) }
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.id)
            .field("shape", &self.shape)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// A page that is wiped in a child made by `fork`: a word that is 1, and the group's name.
struct ForkMark(MmapRaw);

impl ForkMark {
    fn new(id: GroupId) -> io::Result<ForkMark> {
        let page = MmapRaw::from(MmapMut::map_anon(PAGE)?);
        // SAFETY: the page is mapped, private and anonymous, and this process's own bytes in it stay as they are.
        if unsafe { libc::madvise(page.as_mut_ptr().cast(), page.len(), libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mark = ForkMark(page);
        // SAFETY: within the page, which nobody else has yet.
        unsafe { mark.name().copy_from_nonoverlapping(id.0.as_ptr(), id.0.len()) }
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    fn wiped(&self) -> bool {
        // Relaxed: the word changes in the making of another process only.
        self.word().load(Ordering::Relaxed) == 0
    }

    fn name(&self) -> *mut u8 {
        self.0.as_mut_ptr().wrapping_add(size_of::<GroupId>())
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped while `self` lives, aligned, and nothing else uses it.
        unsafe { &*self.0.as_mut_ptr().cast() }
    }
}

fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A new file that has no name and can be sealed.
fn memory_file() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems refuse a file that could be made executable; others, before Linux 6.3, do not know how to ask for that.
    match rustix::fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, flags),
        file => file,
    }
}

/// Whether the file is one of memory, and sealed as segments are.
fn check_seals(file: BorrowedFd<'_>) -> Result<(), SegmentError> {
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
fn check_size(file: BorrowedFd<'_>, expected: usize) -> Result<(), SegmentError> {
    let found = rustix::fs::fstat(file).map_err(cannot("read the size of a segment"))?.st_size as u64;
    if found == expected as u64 {
        return Ok(());
    }
    Err(SegmentError::Foreign { what: "size", expected: expected.to_string(), found: found.to_string() })
}

/// The bytes of the header, of which some are 0 if the file ends before.
fn read_header(file: BorrowedFd<'_>) -> Result<[u8; header::BYTES], SegmentError> {
    let mut bytes = [0; header::BYTES];
    let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes, 0));
    read.map_err(cannot("read the header of a segment"))?;
    Ok(bytes)
}

/// Gives the pages of these bytes memory. Where the system refuses, those before keep theirs: some may have had it, and data in
/// it, before this call.
fn reserve(file: &OwnedFd, bytes: Range<usize>) -> io::Result<()> {
    in_pieces(bytes, |start, length| rustix::fs::fallocate(file, FallocateFlags::empty(), start, length))
}

/// Reserves a piece after the other, each of which begins and ends at a multiple of [`PIECE`] or with these bytes.
fn in_pieces(bytes: Range<usize>, reserve: impl Fn(u64, u64) -> Result<(), Errno>) -> io::Result<()> {
    let mut start = bytes.start;
    while start < bytes.end {
        let end = (start + 1).next_multiple_of(PIECE).min(bytes.end);
        rustix::io::retry_on_intr(|| reserve(start as u64, (end - start) as u64))?;
        start = end;
    }
    Ok(())
}

fn cannot<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> SegmentError {
    |error| SegmentError::System { what: what.into(), source: error.into() }
}

impl GroupId {
    /// A name that no other group has.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn random() -> io::Result<GroupId> {
        let mut bytes = [0; 16];
        // So few bytes are given whole, or not at all.
        rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
        Ok(GroupId(bytes))
    }

    /// The name with these bytes, which a peer sent.
    pub const fn from_bytes(bytes: [u8; 16]) -> GroupId {
        GroupId(bytes)
    }

    /// The bytes, to send to a peer.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

/// Writes 32 digits.
impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl SegmentError {
    const VERSION: &str = "version";
    const LAYOUT: &str = "layout hash";
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::Shape { what, expected, found } => {
                write!(f, "a segment's {what}: expected {expected}, found {found}")
            }
            SegmentError::Foreign { what, expected, found } => {
                write!(f, "the segment's {what}: expected {expected}, found {found}")?;
                match *what {
                    SegmentError::VERSION | SegmentError::LAYOUT => f.write_str(": the processes run different builds"),
                    _ => Ok(()),
                }
            }
            SegmentError::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for SegmentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SegmentError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
