//! One process's view of the memory that the processes of a group share.

use super::{
    account::Account,
    call_log::CallLog,
    error::{SegmentError, cannot},
    file::{NAME, SEALS, check_seals, check_size, identity, read_header, reserve, sized_file},
    fork_mark::ForkMark,
    group_id::GroupId,
    layout::{self, Area, Header, Layout, Shape},
    life::Life,
    local::Locals,
    mapping::Mapping,
    records::{Head, RankRecord},
    ring::{CELLS, Cell, RingEnds},
    title::LinkTitle,
    views::AreaLocals,
};
use crate::{
    sync::watch,
    tuning::{self, Tuning},
};
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use std::{
    fmt, io,
    mem::ManuallyDrop,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
    thread,
};

/// The memory that the processes of one group share.
///
/// A child made by `fork` does not have this memory: see [`forked`](Segment::forked).
pub struct Segment {
    pub(super) id: GroupId,
    pub(super) shape: Shape,
    /// The knobs of the group.
    tuning: &'static Tuning,
    pub(super) layout: Layout,
    file: OwnedFd,
    /// The device and inode of `file`. A program may close descriptors that are not its own, and
    /// open other files in their place.
    identity: (u64, u64),
    /// [`Segment::drop`] unmaps it, unless this process is a fork.
    pub(super) map: ManuallyDrop<Mapping>,
    mark: ForkMark,
    pub(super) account: Account,
    locals: Arc<AreaLocals>,
}

impl Segment {
    /// The digest of the layout. Processes can share a segment only if all have the same digest.
    pub const LAYOUT: u64 = layout::HASH;

    /// Limit on the groups that are split from the group of all ranks and live at a time.
    pub const SPLITS: usize = layout::SPLITS;

    /// The number of bytes at the start of a segment that [`Segment::open`] checks.
    pub const HEADER_BYTES: usize = layout::HEADER_BYTES;

    /// Makes the segment of a new group, with this process's knobs, for processes that may use the
    /// same cores as this one. See [`create_on`](Segment::create_on).
    ///
    /// # Errors
    /// As [`create_on`](Segment::create_on).
    pub fn create(shape: Shape, id: GroupId) -> Result<Segment, SegmentError> {
        Segment::create_on(shape, id, thread::available_parallelism().map_or(1, usize::from))
    }

    /// Makes the segment of a new group, with this process's knobs, for processes that may use
    /// `cores` cores together.
    ///
    /// Reserves the header, the heads of groups, the records of all ranks and their call logs:
    /// about 160 KiB for 8 ranks.
    ///
    /// # Errors
    /// [`SegmentError::System`] if the system gives no file of this size (limits on the size of
    /// files, on open files), no memory, or no addresses.
    pub fn create_on(shape: Shape, id: GroupId, cores: usize) -> Result<Segment, SegmentError> {
        Segment::create_named(NAME, shape, id, cores)
    }

    /// Makes the segment of a link, as [`create_on`](Segment::create_on). The name of its file has
    /// the title.
    ///
    /// # Errors
    /// As [`create_on`](Segment::create_on).
    pub fn create_link(title: &LinkTitle, shape: Shape, id: GroupId, cores: usize) -> Result<Segment, SegmentError> {
        Segment::create_named(&title.file_name(), shape, id, cores)
    }

    fn create_named(name: &str, shape: Shape, id: GroupId, cores: usize) -> Result<Segment, SegmentError> {
        let layout = Layout::new(shape);
        let file = sized_file(name, layout.size)?;
        reserve(&file, layout.reserved()).map_err(cannot("reserve the first pages of a segment"))?;
        let tuning = tuning::for_ranks(shape.ranks(), cores);
        let header = Header::new(id, shape, &tuning).to_bytes();
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, &header, 0));
        written.map_err(cannot("write the header of a segment"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(cannot("seal a segment"))?;
        Segment::map(file, id, shape, layout, tuning)
    }

    /// Opens the segment that a peer passed to this process. The processes have agreed on `id` and
    /// `shape` by other means.
    ///
    /// # Errors
    /// [`SegmentError::Foreign`] if the file is not a segment, or is the segment of another group
    /// or of another build; [`SegmentError::System`] as in [`Segment::create`].
    pub fn open(file: OwnedFd, id: GroupId, shape: Shape) -> Result<Segment, SegmentError> {
        let layout = Layout::new(shape);
        check_seals(file.as_fd())?;
        check_size(file.as_fd(), layout.size)?;
        let header = read_header(file.as_fd())?;
        let tuning = Header::tuning(&header)?;
        Header::new(id, shape, &tuning).check(&header)?;
        // The creator has reserved these pages. Reserve them again: if it did not, this process
        // gets an error here instead of `SIGBUS` later.
        reserve(&file, layout.reserved()).map_err(cannot("reserve the first pages of a segment"))?;
        Segment::map(file, id, shape, layout, tuning::join(&tuning))
    }

    pub(super) fn map(
        file: OwnedFd,
        id: GroupId,
        shape: Shape,
        layout: Layout,
        tuning: Tuning,
    ) -> Result<Segment, SegmentError> {
        let mark = ForkMark::new(id).map_err(cannot("map a page that a fork wipes"))?;
        // The mapping is not inherited by a fork, which would write the records of its parent's
        // ranks.
        let mapped = Mapping::new(file.as_fd(), layout.size);
        let limit = getrlimit(Resource::As).current.map_or(String::new(), |limit| {
            format!(
                " with addresses limited to {limit} bytes (ulimit -v unlimited: a group reserves far more addresses \
                 than it uses memory)"
            )
        });
        let map = mapped.map_err(cannot(format!("map a segment of {} bytes{limit}", layout.size)))?;
        watch::map(map.start().as_ptr(), layout.size, 0);
        let identity = identity(file.as_fd()).map_err(cannot("tell a segment from other files"))?;
        Ok(Segment {
            id,
            shape,
            tuning: tuning::keep(tuning),
            layout,
            file,
            identity,
            map: ManuallyDrop::new(map),
            mark,
            account: Account::default(),
            locals: AreaLocals::of((identity, id)),
        })
    }

    /// Returns the segment's file, to pass it to a peer.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the name of the group that has the segment.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Returns the bytes of [`id`](Segment::id).
    pub(crate) fn name(&self) -> [u8; 16] {
        self.id.0
    }

    /// Returns the shape of the segment.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the knobs of the group, which the process that made the segment chose.
    pub(crate) fn tuning(&self) -> &'static Tuning {
        self.tuning
    }

    /// Returns the address at which this process, but no fork of it, has the group's name.
    pub(crate) fn mark(&self) -> usize {
        self.mark.name().addr()
    }

    /// Whether this process is a child, made by `fork`, of the process that has the segment. The
    /// child must not use the segment: the memory is not mapped there. Costs one load.
    pub fn forked(&self) -> bool {
        self.mark.wiped()
    }

    /// Returns the head of an area and its first rank record. The records of the area's ranks are
    /// contiguous.
    ///
    /// The caller may touch them once the area is reserved, until the segment is dropped, and not
    /// in a fork. The records of [`Area::Root`] and the heads of all areas but pairs are reserved
    /// from the start.
    ///
    /// # Panics
    /// If there is no such area.
    pub(crate) fn area(&self, area: Area) -> (NonNull<Head>, NonNull<RankRecord>) {
        (self.at(self.layout.head(area)).cast(), self.at(self.layout.records(area)).cast())
    }

    /// Returns this process's private state of the ranks of an area. All users of the area at a
    /// time share one value, whichever view of the segment they have.
    pub(crate) fn locals(&self, area: Area) -> Arc<Locals> {
        let ranks = if let Area::Pair { .. } = area { 2 } else { self.shape.ranks() };
        self.locals.in_area(area, ranks)
    }

    /// Reserves the pages of an area. A repetition only costs a system call.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    ///
    /// # Panics
    /// If there is no such area.
    pub(crate) fn reserve_area(&self, area: Area) -> io::Result<()> {
        self.reserve(self.layout.pages(area))
    }

    /// Returns the number of bytes that [`reserve_area`](Segment::reserve_area) reserves.
    pub(crate) fn area_bytes(&self, area: Area) -> usize {
        self.layout.pages(area).len()
    }

    /// Returns the area of the group of all ranks.
    pub(crate) fn root(&self) -> Area {
        Area::Root
    }

    /// Returns the area of the group of two ranks, `lower` and `higher`, of the group in `area`.
    ///
    /// # Panics
    /// If `area` is itself the area of a pair.
    pub(crate) fn pair(&self, area: Area, lower: usize, higher: usize) -> Area {
        let group = match area {
            Area::Root => 0,
            Area::Split(index) => 1 + index,
            Area::Pair { .. } => unreachable!("a pair has no pairs"),
        };
        Area::Pair { group, lower, higher }
    }

    /// Returns the bytes of one rank's staging in this area: [`Shape::staging_bytes`], or a quarter
    /// of them for a pair of many ranks.
    pub(crate) fn staging_bytes(&self, area: Area) -> usize {
        self.layout.staging_bytes(area)
    }

    /// Returns the bytes from the start of one rank's staging in this area to that of the next.
    pub(crate) fn staging_apart(&self, area: Area) -> usize {
        self.layout.staging_apart(area)
    }

    /// Returns the start of a rank's staging, which begins at a page and has
    /// [`staging_bytes`](Segment::staging_bytes) bytes. `rank` is in the numbering of the area.
    /// That of the next rank begins [`staging_apart`](Segment::staging_apart) bytes later.
    ///
    /// The caller may touch these bytes once they are reserved, until the segment is dropped, and
    /// not in a fork.
    ///
    /// # Panics
    /// If there is no such area, or it has no such rank.
    pub(crate) fn staging(&self, area: Area, rank: usize) -> NonNull<u8> {
        self.at(self.layout.staging(area, rank).start)
    }

    /// Reserves the pages of these bytes of a rank's staging. A repetition only costs a system
    /// call.
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

    /// Returns the ends and the cells of the ring in which `from` writes and `to` reads.
    ///
    /// The caller may touch them once they are reserved, until the segment is dropped, and not in a
    /// fork.
    ///
    /// # Panics
    /// If the area is a pair, or there is no such area or rank.
    pub(crate) fn ring(&self, area: Area, from: usize, to: usize) -> (NonNull<RingEnds>, NonNull<[Cell]>) {
        let cells = self.at(self.layout.ring(area, from, to).start).cast();
        let ends = self.layout.ring_ends(area, to).start + from * size_of::<RingEnds>();
        (self.at(ends).cast(), NonNull::slice_from_raw_parts(cells, CELLS))
    }

    /// Reserves the pages of the ends of all rings that `to` reads.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub(crate) fn reserve_ring_ends(&self, area: Area, to: usize) -> io::Result<()> {
        self.reserve(self.layout.ring_ends(area, to))
    }

    /// Reserves the pages of the cells of a ring.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub(crate) fn reserve_ring(&self, area: Area, from: usize, to: usize) -> io::Result<()> {
        self.reserve(self.layout.ring(area, from, to))
    }

    pub(super) fn reserve(&self, bytes: Range<usize>) -> io::Result<()> {
        reserve(self.own_file()?, bytes)
    }

    /// Returns the segment's file. Fails if the descriptor refers to another file by now.
    pub(super) fn own_file(&self) -> Result<&OwnedFd, Errno> {
        let is_own = identity(self.file.as_fd())? == self.identity;
        is_own.then_some(&self.file).ok_or(Errno::BADF)
    }

    /// Returns the log of the last calls of a rank, in the numbering of all ranks. Must not be
    /// called in a fork.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(crate) fn call_log(&self, rank: usize) -> &CallLog {
        // SAFETY: the layout puts a call log there, aligned and within the mapping, which lasts
        // while `self` does. It consists of atomics, for which every bit pattern is valid, so
        // nothing that a peer writes can invalidate the reference. Its pages are reserved from the
        // start.
        unsafe { self.at(self.layout.call_log(rank)).cast::<CallLog>().as_ref() }
    }

    /// Returns the word of the process whose first rank this is. Must not be called in a fork.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn life(&self, rank: usize) -> &Life {
        // SAFETY: as for a call log.
        unsafe { self.at(self.layout.life(rank)).cast::<Life>().as_ref() }
    }

    /// Returns the address of a byte of the segment.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.layout.size, "byte {offset} of {}", self.layout.size);
        // SAFETY: within the mapping, which has `size` bytes.
        unsafe { self.map.start().add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // In a fork, other memory may be mapped at these addresses by now.
        if !self.forked() {
            watch::unmap(self.map.start().as_ptr());
            // SAFETY: dropped only here, and not used afterwards.
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
