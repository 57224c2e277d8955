//! Elements in host memory that are owned.

use super::{
    pages::Pages,
    view::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, Element};
use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    fmt, io,
    marker::PhantomData,
    ptr::NonNull,
};

/// Bytes of elements from which on they lie in pages of their own: less than that an allocator
/// keeps, so that its pages stay present.
const LARGE_BYTES: usize = 32 << 20;

/// Elements that are owned: zeroed when made, aligned to two cache lines, so that no two share a
/// line.
pub struct HostMemory {
    start: NonNull<u8>,
    count: usize,
    dtype: DType,
    place: Place,
}

/// What elements lie in.
enum Place {
    /// An allocation for them, if there are any.
    Allocated,
    Pages {
        _pages: Pages,
    },
    /// Memory that ends with its owner.
    Block {
        _owner: Box<dyn Send + Sync>,
    },
}

// SAFETY: `HostMemory` owns its elements, like a `Box<[T]>` for a `T` that is `Send` and `Sync`.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Alignment in bytes: two lines, since neighbouring lines are fetched together.
    pub const ALIGNMENT: usize = 128;

    /// `count` elements, all zero (`false`).
    ///
    /// # Panics
    /// If they have more bytes than there are addresses; and where the system has no memory, as an
    /// allocation does.
    pub fn zeroed(dtype: DType, count: usize) -> HostMemory {
        HostMemory::try_zeroed(dtype, count).unwrap_or_else(|_| HostMemory::fail(dtype, count))
    }

    /// `count` elements, all zero (`false`).
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub fn try_zeroed(dtype: DType, count: usize) -> io::Result<HostMemory> {
        // SAFETY: new pages are zero, and all other bytes are written; zero is a valid element of
        // every dtype.
        unsafe {
            let memory = HostMemory::try_uninit(dtype, count)?;
            if let Place::Allocated = memory.place {
                memory.start.as_ptr().write_bytes(0, memory.as_buf().bytes());
            }
            Ok(memory)
        }
    }

    /// `count` elements that nobody has written.
    ///
    /// # Safety
    /// Nobody reads an element before it is written.
    pub(crate) unsafe fn uninit(dtype: DType, count: usize) -> HostMemory {
        // SAFETY: the caller's promise is the same.
        unsafe { HostMemory::try_uninit(dtype, count) }.unwrap_or_else(|_| HostMemory::fail(dtype, count))
    }

    /// [`uninit`](Memory::uninit), or the system's error.
    ///
    /// # Safety
    /// As there.
    unsafe fn try_uninit(dtype: DType, count: usize) -> io::Result<HostMemory> {
        let layout = Self::layout(dtype, count).ok_or(io::ErrorKind::OutOfMemory)?;
        let (start, place) = match layout.size() {
            0 => (NonNull::<u64>::dangling().cast(), Place::Allocated),
            // SAFETY: the layout's size is not zero.
            1..LARGE_BYTES => match NonNull::new(unsafe { alloc(layout) }) {
                Some(start) => (start, Place::Allocated),
                None => return Err(io::ErrorKind::OutOfMemory.into()),
            },
            bytes => {
                let mut pages = Pages::new(bytes)?;
                (pages.start(), Place::Pages { _pages: pages })
            }
        };
        Ok(HostMemory { start, count, dtype, place })
    }

    /// What becomes of a program that has no memory for elements.
    fn fail(dtype: DType, count: usize) -> ! {
        handle_alloc_error(Self::layout(dtype, count).expect("more bytes than addresses"))
    }

    /// `count` elements in memory that ends with its owner.
    ///
    /// # Safety
    /// Until the owner is dropped, `start` is valid for reads and writes of as many elements, which
    /// nobody else touches. They are zero, and aligned as [`HostMemory::ALIGNMENT`] says.
    pub(crate) unsafe fn in_block(
        start: NonNull<u8>,
        dtype: DType,
        count: usize,
        owner: Box<dyn Send + Sync>,
    ) -> HostMemory {
        HostMemory { start, count, dtype, place: Place::Block { _owner: owner } }
    }

    /// A copy of all parts, one after the other.
    ///
    /// # Panics
    /// If a part is of another type.
    pub fn concat(dtype: DType, parts: &[HostBuf<'_>]) -> HostMemory {
        // Parts may be the same memory many times, so that their sum is bounded by nothing.
        let count = parts.iter().try_fold(0usize, |count, part| count.checked_add(part.count()));
        let count = count.expect("more elements than numbers");
        // SAFETY: all parts together write all elements, below.
        let memory = unsafe { HostMemory::uninit(dtype, count) };
        let mut bytes = 0;
        for part in parts {
            assert_eq!(part.dtype, dtype, "parts of one type");
            // SAFETY: the memory is as long as all parts, and new, so that no part overlaps it.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), memory.start.as_ptr().add(bytes), part.bytes()) };
            bytes += part.bytes();
        }
        memory
    }

    /// The layout of the elements; `None` if they have more bytes than there are addresses.
    fn layout(dtype: DType, count: usize) -> Option<Layout> {
        Layout::from_size_align(count.checked_mul(dtype.size())?, Self::ALIGNMENT).ok()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The elements, shared.
    pub fn as_buf(&self) -> HostBuf<'_> {
        HostBuf { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// The elements, exclusive.
    pub fn as_buf_mut(&mut self) -> HostBufMut<'_> {
        HostBufMut { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }
}

/// A copy.
impl From<HostBuf<'_>> for HostMemory {
    fn from(buf: HostBuf<'_>) -> Self {
        HostMemory::concat(buf.dtype, &[buf])
    }
}

impl<T: Element> From<&[T]> for HostMemory {
    fn from(slice: &[T]) -> Self {
        HostMemory::from(HostBuf::from(slice))
    }
}

impl Clone for HostMemory {
    fn clone(&self) -> Self {
        HostMemory::from(self.as_buf())
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Place::Allocated = self.place
            && let Some(layout) = Self::layout(self.dtype, self.count).filter(|layout| layout.size() > 0)
        {
            // SAFETY: allocated in `try_uninit` with this same layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({}, count {})", self.dtype, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_pages_of_its_own_is_like_other_memory() {
        let mut memory = HostMemory::zeroed(DType::U8, LARGE_BYTES + 1);
        assert!(memory.as_buf().as_bytes().iter().all(|&byte| byte == 0));
        memory.as_buf_mut().into_mut_slice::<u8>().expect("bytes")[LARGE_BYTES] = 7;
        assert_eq!(memory.clone().as_buf().as_bytes()[LARGE_BYTES - 1..], [0, 7]);
    }
}
