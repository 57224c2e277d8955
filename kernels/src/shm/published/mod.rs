//! Memory that its owner writes and that other processes read in place.
//!
//! It is an anonymous file of some parts, each of elements of one type, under a version word of its
//! own (`version.rs`). The owner maps the file for writing, and then seals it: nobody else can
//! write to it, map it for writing, free its pages, or change its size. So the elements in the
//! owner's process are as those of any memory, and references to them are valid. A reader forms
//! none: it copies, and looks then whether the copy is of one version.
//!
//! The file begins with the version words, each in lines of its own. Each part begins at a multiple
//! of [`HostMemory::ALIGNMENT`]. Both sides compute the places from the types and counts; the
//! processes have agreed on these by other means. A file of another size is refused. Whatever its
//! owner writes, a reader gets elements, true or false ones, or gives up at its deadline.

use super::{
    error::{SegmentError, cannot},
    file::{check_size, reserve, sized_file},
    fork_mark::ForkMark,
    group_id::GroupId,
    mapping::{Mapping, PAGE},
    shared_file::SharedFile,
    version::Version,
};
use crate::{
    cpu::{
        cache_hints::{CopySize, goes_past_caches},
        copy::copy,
        rows::gather,
    },
    memory::{HostBuf, HostBufMut, HostMemory, make_valid},
    sync::atomics::{Mutex, MutexGuard, yield_now},
};
use consonance_spec::DType;
use rustix::fs::SealFlags;
use std::{
    fmt, io,
    mem::ManuallyDrop,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The seals of a file that its owner alone writes, by the mapping that it has.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The name of the file in `/proc`. It is not that of a segment.
const NAME: &str = "consonance shards";

/// The number of copies that a reader makes before it gives up. A part that is written this often
/// is better read by its owner.
const TRIES: usize = 8;

/// The time for which a reader polls the version while the writer is at work. A write of some rows
/// takes less.
const LOOKS_FOR: Duration = Duration::from_micros(50);

/// The time between two looks at the version after that. The reader cannot ask to be woken: it
/// writes nothing.
const LOOKS_EACH: Duration = Duration::from_millis(1);

/// Longer rows are copied one by one, in the way for their size.
const GATHERED_BYTES: usize = 4 << 10;

/// Memory in parts that its owner writes and other processes read in place, each part under a
/// version word.
///
/// ```
/// use consonance_kernels::shm::{Published, PublishedView, Reading};
/// use consonance_spec::DType;
/// use std::time::{Duration, Instant};
/// let parts = [(DType::F32, 4), (DType::U8, 100)];
/// let published = Published::create(&parts)?;
/// published.write(0, |elements| elements.into_mut_slice().unwrap().copy_from_slice(&[1.0f32, 2.0, 3.0, 4.0]));
/// let view = PublishedView::open(published.file()?, &parts)?;
/// let (mut into, deadline) = ([0f32; 3], Instant::now() + Duration::from_secs(1));
/// assert_eq!(view.read(0, [3..4, 0..2], into.as_mut_slice().into(), deadline), Reading::Done);
/// assert_eq!(into, [4.0, 1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Published {
    file: OwnedFd,
    memory: Arc<Mapped>,
    /// The elements of each part. The lock excludes writers of this process from each other.
    parts: Vec<Mutex<HostMemory>>,
}

/// The view that another process, or another thread, has of [`Published`] memory.
pub struct PublishedView {
    memory: Mapped,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reading {
    /// All elements are of one version.
    Done,
    /// The writer changed the part during each of several reads, or was at work until the deadline.
    /// The elements are of no version.
    Overtaken,
}

/// The places of the parts in the file.
struct Places {
    parts: Vec<FilePart>,
    /// Bytes of the file: whole pages.
    bytes: usize,
}

#[derive(Clone, Copy)]
struct FilePart {
    start: usize,
    dtype: DType,
    count: usize,
}

/// The file in this process. A child made by `fork` does not have it.
struct Mapped {
    map: ManuallyDrop<Mapping>,
    mark: ForkMark,
    places: Places,
}

/// The end of a write, also of one that panics: the memory is as it is then.
struct Ending<'a>(&'a Version);

impl Published {
    /// Makes memory for these parts, of so many elements each, all zero.
    ///
    /// # Errors
    /// [`SegmentError::System`] if the system gives no file of this size, no memory or no
    /// addresses, or cannot keep others from writing (Linux before 5.1).
    pub fn create(parts: &[(DType, usize)]) -> Result<Published, SegmentError> {
        let places = Places::of(parts)?;
        let file = sized_file(NAME, places.bytes)?;
        let bytes = places.bytes;
        reserve(&file, 0..bytes).map_err(cannot(format!("reserve {bytes} bytes of shared memory")))?;
        let memory = Arc::new(Mapped::new(Mapping::new(file.as_fd(), bytes), places)?);
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(cannot("keep others from writing shared memory"))?;
        // Saves page-table walks, and page faults in every process that reads.
        memory.map.collapse(0..bytes);
        memory.map.populate(0..bytes);
        let part = |place: &FilePart| {
            let owner = Box::new(memory.clone());
            // SAFETY: the elements lie in the mapping, which the owner keeps, at a multiple of the
            // alignment, and are zero. No other value of this process gives access to them, and the
            // seals keep other processes from writing; these only copy, by `copy`.
            Mutex::new(unsafe { HostMemory::in_block(memory.at(place.start), place.dtype, place.count, owner) })
        };
        let parts = memory.places.parts.iter().map(part).collect();
        Ok(Published { file, memory, parts })
    }

    /// Returns the file, to pass it to a reader.
    ///
    /// # Errors
    /// The system's, if this process has reached its limit of open descriptors.
    pub fn file(&self) -> io::Result<SharedFile> {
        self.file.try_clone().map(SharedFile::from)
    }

    /// Changes a part. Other writers wait; readers that overlap read again, also if `change` panics
    /// midway.
    ///
    /// # Panics
    /// If there is no such part, or in a child made by `fork`.
    pub fn write<R>(&self, part: usize, change: impl FnOnce(HostBufMut<'_>) -> R) -> R {
        let mut memory = self.lock(part);
        let version = self.memory.version(part);
        version.begin_write();
        let _ending = Ending(version);
        change(memory.as_buf_mut())
    }

    /// Reads a part while no writer changes it: for readers that were overtaken again and again,
    /// and for checkpoints.
    ///
    /// # Panics
    /// As [`write`](Published::write).
    pub fn with<R>(&self, part: usize, read: impl FnOnce(HostBuf<'_>) -> R) -> R {
        read(self.lock(part).as_buf())
    }

    fn lock(&self, part: usize) -> MutexGuard<'_, HostMemory> {
        self.memory.check_process();
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end_write();
    }
}

impl PublishedView {
    /// Maps the file of a peer for reading. The processes have agreed on the parts by other means.
    ///
    /// # Errors
    /// [`SegmentError::Foreign`] if the file has another size than these parts need, or could be
    /// made shorter, or emptied, under a reader; [`SegmentError::System`] as in
    /// [`Published::create`].
    pub fn open(file: impl Into<SharedFile>, parts: &[(DType, usize)]) -> Result<PublishedView, SegmentError> {
        let (file, places) = (OwnedFd::from(file.into()), Places::of(parts)?);
        check_seals(file.as_fd())?;
        check_size(file.as_fd(), places.bytes)?;
        // If the owner did not reserve the pages, this process gets an error here instead of
        // `SIGBUS` later.
        reserve(&file, 0..places.bytes).map_err(cannot("reserve the shared memory of a peer"))?;
        Ok(PublishedView { memory: Mapped::new(Mapping::of_reader(file.as_fd(), places.bytes), places)? })
    }

    /// Copies pieces of a part, all of one version, one after the other to `into`. Each is a range
    /// of elements.
    ///
    /// # Panics
    /// If there is no such part, it has no such elements, `into` is of another type or has another
    /// number of elements, or in a child made by `fork`.
    pub fn read<P>(&self, part: usize, pieces: P, mut into: HostBufMut<'_>, deadline: Instant) -> Reading
    where
        P: IntoIterator<Item = Range<usize>, IntoIter: Clone>,
    {
        let (place, pieces) = (self.place(part, &into), pieces.into_iter());
        let size = place.dtype.size();
        let bytes = into.bytes();
        let count = pieces.clone().map(|piece| {
            assert!(piece.start <= piece.end && piece.end <= place.count, "{piece:?} of {} elements", place.count);
            piece.len()
        });
        assert_eq!(count.sum::<usize>(), into.count(), "elements of all pieces");
        let volume = CopySize::new(bytes, || goes_past_caches(bytes, bytes, 1));
        let (start, target) = (self.memory.at(place.start).as_ptr(), into.as_mut_ptr());
        self.read_by(part, &mut into, deadline, || {
            let mut next = 0;
            for piece in pieces.clone() {
                let bytes = piece.len() * size;
                // SAFETY: the piece lies in the part, as checked above, and the pieces together are
                // as long as the target, which is exclusive. Bytes that the owner writes meanwhile
                // make wrong elements, but valid ones (`read_by`).
                unsafe { copy(start.add(piece.start * size), target.add(next), bytes, volume) }
                next += bytes;
            }
        })
    }

    /// Copies these rows of a part, of `row_count` elements each, all of one version, one after the
    /// other to `into`.
    ///
    /// # Panics
    /// As [`read`](PublishedView::read).
    pub fn read_rows(
        &self,
        part: usize,
        row_count: usize,
        rows: &[usize],
        mut into: HostBufMut<'_>,
        deadline: Instant,
    ) -> Reading {
        let place = self.place(part, &into);
        let row_bytes = row_count * place.dtype.size();
        if row_bytes == 0 || row_bytes > GATHERED_BYTES {
            let present = place.count.checked_div(row_count).unwrap_or(usize::MAX);
            let piece = move |&row: &usize| {
                assert!(row < present, "row {row} of {present}");
                row * row_count..(row + 1) * row_count
            };
            return self.read(part, rows.iter().map(piece), into, deadline);
        }
        assert_eq!(row_count.checked_mul(rows.len()), Some(into.count()), "elements for {} rows", rows.len());
        let (start, target) = (self.memory.at(place.start).as_ptr(), into.as_mut_ptr());
        let present = place.count / row_count;
        // SAFETY: the part has so many rows, and the target, which is exclusive, as many bytes as
        // these. Bytes that the owner writes meanwhile make wrong elements, but valid ones
        // (`read_by`).
        self.read_by(part, &mut into, deadline, || unsafe { gather(start, present, rows, target, row_bytes) })
    }

    /// Copies until all that is copied is of one version.
    fn read_by(&self, part: usize, into: &mut HostBufMut<'_>, deadline: Instant, copy: impl Fn()) -> Reading {
        let version = self.memory.version(part);
        for _ in 0..TRIES {
            let Some(begun) = await_settled(version, deadline) else { break };
            copy();
            // SAFETY: the buffer is exclusive.
            unsafe { make_valid(into.dtype(), into.as_mut_ptr(), into.bytes()) }
            if version.is_still(begun) {
                return Reading::Done;
            }
        }
        Reading::Overtaken
    }

    /// Returns the place of a part, from which `into` gets elements.
    fn place(&self, part: usize, into: &HostBufMut<'_>) -> FilePart {
        self.memory.check_process();
        let place = self.memory.places.parts[part];
        assert_eq!(place.dtype, into.dtype(), "elements of one type");
        place
    }
}

/// Waits until no writer is at work; `None` at the deadline.
fn await_settled(version: &Version, deadline: Instant) -> Option<u64> {
    let settled = version.settled();
    if settled.is_some() {
        return settled;
    }
    let begin = Instant::now();
    loop {
        if let Some(version) = version.settled() {
            return Some(version);
        }
        let now = Instant::now();
        if now >= deadline {
            return None;
        }
        if now - begin < LOOKS_FOR {
            // The writer may need this core.
            yield_now();
        } else {
            thread::park_timeout(LOOKS_EACH.min(deadline - now));
        }
    }
}

/// Checks that the file is anonymous memory that stays as long as it is.
fn check_seals(file: BorrowedFd<'_>) -> Result<(), SegmentError> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(cannot("read the seals of a peer's memory"))?;
    if seals.contains(SEALS) {
        return Ok(());
    }
    Err(SegmentError::Foreign { what: "seals", expected: format!("{SEALS:?}"), found: format!("{seals:?}") })
}

impl Places {
    fn of(parts: &[(DType, usize)]) -> Result<Places, SegmentError> {
        let place = |next: &mut usize, &(dtype, count): &(DType, usize)| {
            let start = next.checked_next_multiple_of(HostMemory::ALIGNMENT)?;
            *next = start.checked_add(count.checked_mul(dtype.size())?)?;
            Some(FilePart { start, dtype, count })
        };
        let mut next = parts.len() * size_of::<Version>();
        let places: Option<Vec<FilePart>> = parts.iter().map(|part| place(&mut next, part)).collect();
        let bytes = next.max(1).checked_next_multiple_of(PAGE).filter(|&bytes| isize::try_from(bytes).is_ok());
        let whole = places.zip(bytes).map(|(parts, bytes)| Places { parts, bytes });
        whole.ok_or_else(|| cannot("share more bytes than addresses")(io::Error::from(io::ErrorKind::OutOfMemory)))
    }
}

const _: () = assert!(PAGE.is_multiple_of(HostMemory::ALIGNMENT) && HostMemory::ALIGNMENT >= align_of::<Version>());

impl Mapped {
    fn new(map: io::Result<Mapping>, places: Places) -> Result<Mapped, SegmentError> {
        let mark = ForkMark::new(GroupId::from_bytes([0; 16])).map_err(cannot("map a page that a fork wipes"))?;
        let map = map.map_err(cannot(format!("map {} bytes of shared memory", places.bytes)))?;
        Ok(Mapped { map: ManuallyDrop::new(map), mark, places })
    }

    /// Returns the address of a byte of the file, or that after the last.
    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.places.bytes, "byte {offset} of {}", self.places.bytes);
        // SAFETY: within the mapping, or one past it.
        unsafe { self.map.start().add(offset) }
    }

    fn version(&self, part: usize) -> &Version {
        assert!(part < self.places.parts.len(), "part {part} of {}", self.places.parts.len());
        let word = self.at(part * size_of::<Version>());
        // SAFETY: within the mapping, which lasts while `self` does, and aligned. It is an atomic,
        // so nothing that the owner writes can invalidate the reference. A reader only loads it.
        unsafe { word.cast().as_ref() }
    }

    /// # Panics
    /// In a child made by `fork`, which does not have the memory.
    fn check_process(&self) {
        assert!(!self.mark.wiped(), "a fork does not have the memory that its parent published or reads");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // In a fork, other memory may be mapped at these addresses by now.
        if !self.mark.wiped() {
            // SAFETY: dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.map) }
        }
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("file", &self.file).field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PublishedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedView").field("parts", &self.memory.places.parts.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
