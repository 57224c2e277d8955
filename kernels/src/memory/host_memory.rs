//! Owned elements in host memory.

use super::{
    pages::Pages,
    view::{HostBuf, HostBufMut, make_valid},
};
use consonance_spec::{Class, DType, Element, for_each_dtype};
use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    fmt, io,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::NonNull,
};

/// Elements of at least this many bytes lie in pages of their own. An allocator keeps smaller
/// blocks after they are freed, so their pages stay present.
const LARGE_BYTES: usize = 256 << 10;

/// Owned elements. What this type allocates is aligned to two cache lines, so that no two
/// allocations share a line.
pub struct HostMemory {
    start: NonNull<u8>,
    count: usize,
    dtype: DType,
    place: Storage,
}

/// The memory that holds the elements.
enum Storage {
    /// An allocation, if there are elements.
    Allocated,
    Pages {
        _pages: Pages,
        /// Whether the pages have contents of an earlier user.
        are_used: bool,
    },
    /// The allocation of a `Vec` of this capacity, whose element type is the dtype's.
    Vec { capacity: usize },
    /// Memory that its owner frees when it is dropped.
    Block { _owner: Box<dyn Send + Sync> },
    /// The same, which others may read meanwhile: it is never written.
    Foreign { _owner: Box<dyn Send + Sync> },
}

// SAFETY: `HostMemory` owns its elements, like a `Box<[T]>` for a `T` that is `Send` and `Sync`.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Alignment in bytes: two lines, since neighbouring lines are fetched together.
    pub const ALIGNMENT: usize = 128;

    /// Returns `count` elements, all zero (`false`).
    ///
    /// # Panics
    /// If the elements have more bytes than there are addresses. If the system has no memory, this
    /// fails as any allocation does.
    pub fn zeroed(dtype: DType, count: usize) -> HostMemory {
        HostMemory::try_zeroed(dtype, count).unwrap_or_else(|_| HostMemory::fail(dtype, count))
    }

    /// Returns `count` elements, all zero (`false`).
    ///
    /// # Errors
    /// The system's, if it has no memory.
    pub fn try_zeroed(dtype: DType, count: usize) -> io::Result<HostMemory> {
        // SAFETY: new pages are zero, and all other bytes are written; zero is a valid element of
        // every dtype.
        unsafe {
            let memory = HostMemory::try_uninit(dtype, count)?;
            if let Storage::Allocated | Storage::Pages { are_used: true, .. } = memory.place {
                memory.start.as_ptr().write_bytes(0, memory.as_buf().bytes());
            }
            Ok(memory)
        }
    }

    /// Returns `count` elements of unspecified values, for a caller that writes them all.
    ///
    /// # Panics
    /// As [`zeroed`](HostMemory::zeroed).
    pub fn unspecified(dtype: DType, count: usize) -> HostMemory {
        HostMemory::try_unspecified(dtype, count).unwrap_or_else(|_| HostMemory::fail(dtype, count))
    }

    /// Returns `count` elements of unspecified values, for a caller that writes them all.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub fn try_unspecified(dtype: DType, count: usize) -> io::Result<HostMemory> {
        // SAFETY: new pages are zero and used ones have bytes of earlier elements; all other bytes
        // are written. Any bytes are valid elements of a number, and zero is a valid bool.
        unsafe {
            let memory = HostMemory::try_uninit(dtype, count)?;
            match (&memory.place, dtype.class()) {
                (Storage::Pages { .. }, Class::Signed | Class::Unsigned | Class::Float) => {}
                (Storage::Pages { .. }, Class::Bool)
                | (Storage::Allocated | Storage::Vec { .. } | Storage::Block { .. } | Storage::Foreign { .. }, _) => {
                    memory.start.as_ptr().write_bytes(0, memory.as_buf().bytes());
                }
            }
            Ok(memory)
        }
    }

    /// Returns `count` uninitialized elements.
    ///
    /// # Safety
    /// Nobody reads an element before it is written.
    pub(crate) unsafe fn uninit(dtype: DType, count: usize) -> HostMemory {
        // SAFETY: the caller's promise is the same.
        unsafe { HostMemory::try_uninit(dtype, count) }.unwrap_or_else(|_| HostMemory::fail(dtype, count))
    }

    /// Like [`uninit`](HostMemory::uninit), but returns the system's error.
    ///
    /// # Safety
    /// As for [`uninit`](HostMemory::uninit).
    pub(crate) unsafe fn try_uninit(dtype: DType, count: usize) -> io::Result<HostMemory> {
        let layout = Self::layout(dtype, count).ok_or(io::ErrorKind::OutOfMemory)?;
        let (start, place) = match layout.size() {
            0 => (NonNull::<u64>::dangling().cast(), Storage::Allocated),
            // SAFETY: the layout's size is not zero.
            1..LARGE_BYTES => match NonNull::new(unsafe { alloc(layout) }) {
                Some(start) => (start, Storage::Allocated),
                None => return Err(io::ErrorKind::OutOfMemory.into()),
            },
            bytes => {
                let used = Pages::used(bytes);
                let are_used = used.is_some();
                let mut pages = used.map_or_else(|| Pages::zeroed(bytes), Ok)?;
                (pages.start(), Storage::Pages { _pages: pages, are_used })
            }
        };
        Ok(HostMemory { start, count, dtype, place })
    }

    /// Ends the program because there is no memory for the elements.
    fn fail(dtype: DType, count: usize) -> ! {
        handle_alloc_error(Self::layout(dtype, count).expect("more bytes than addresses"))
    }

    /// Returns `count` elements in memory that `owner` frees when it is dropped.
    ///
    /// # Safety
    /// Until the owner is dropped, `start` is valid for reads and writes of `count` elements, and
    /// nobody else accesses them. The elements are zero, and `start` is aligned to
    /// [`HostMemory::ALIGNMENT`].
    pub(crate) unsafe fn in_block(
        start: NonNull<u8>,
        dtype: DType,
        count: usize,
        owner: Box<dyn Send + Sync>,
    ) -> HostMemory {
        HostMemory { start, count, dtype, place: Storage::Block { _owner: owner } }
    }

    /// Returns `count` elements that lie in memory of another library and are only read, until
    /// `owner` is dropped. A tensor of them is copied before it is changed.
    ///
    /// # Safety
    /// Until the owner is dropped, `start` is valid for reads of `count` elements, nobody writes
    /// them, and each is a valid element of `dtype`. `start` is aligned for `dtype`, also if there
    /// are none.
    pub unsafe fn foreign(start: NonNull<u8>, dtype: DType, count: usize, owner: Box<dyn Send + Sync>) -> HostMemory {
        HostMemory { start, count, dtype, place: Storage::Foreign { _owner: owner } }
    }

    /// Whether the elements may be written: they are not [foreign](HostMemory::foreign).
    pub fn is_writable(&self) -> bool {
        !matches!(self.place, Storage::Foreign { .. })
    }

    /// Returns the vector that the elements [came from](HostMemory::from_vec); else the memory
    /// itself.
    pub(crate) fn into_own_vec<T: Element>(self) -> Result<Vec<T>, HostMemory> {
        let Storage::Vec { capacity } = self.place else { return Err(self) };
        if self.dtype != T::DTYPE {
            return Err(self);
        }
        let memory = ManuallyDrop::new(self);
        // SAFETY: the place says that `start` and `capacity` are those of a `Vec` of the dtype's
        // element type, which is `T`; its first `count` elements are initialized. The memory is not
        // dropped, so nobody else frees the allocation.
        Ok(unsafe { Vec::from_raw_parts(memory.start.cast::<T>().as_ptr(), memory.count, capacity) })
    }

    /// Keeps the elements of a vector where they are.
    pub fn from_vec<T: Element>(elements: Vec<T>) -> HostMemory {
        let mut elements = ManuallyDrop::new(elements);
        let (count, capacity) = (elements.len(), elements.capacity());
        let start = NonNull::new(elements.as_mut_ptr()).expect("a vector's address is not null").cast();
        HostMemory { start, count, dtype: T::DTYPE, place: Storage::Vec { capacity } }
    }

    /// Makes elements of the bytes of another rank, which may be any: for `bool` only the lowest
    /// bit of each byte counts. They stay where they are if they are aligned for the type. Bytes
    /// that make no whole element are left out.
    ///
    /// ```
    /// use consonance_kernels::memory::HostMemory;
    /// use consonance_spec::DType;
    /// let memory = HostMemory::from_bytes(DType::U16, vec![1, 1, 2, 2]);
    /// assert_eq!(memory.as_buf().as_slice::<u16>(), Some(&[0x0101, 0x0202][..]));
    /// ```
    pub fn from_bytes(dtype: DType, mut bytes: Vec<u8>) -> HostMemory {
        let count = bytes.len() / dtype.size();
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's address is not null");
        if start.as_ptr().align_offset(dtype.size()) != 0 {
            let mut copy = HostMemory::unspecified(dtype, count);
            copy.as_buf_mut().copy_from_bytes(&bytes[..count * dtype.size()]);
            return copy;
        }
        // SAFETY: the bytes are those of the vector, which is exclusive.
        unsafe { make_valid(dtype, start.as_ptr(), bytes.len()) }
        HostMemory { start, count, dtype, place: Storage::Block { _owner: Box::new(bytes) } }
    }

    /// Returns the layout of the elements; `None` if they have more bytes than there are addresses.
    fn layout(dtype: DType, count: usize) -> Option<Layout> {
        Layout::from_size_align(count.checked_mul(dtype.size())?, Self::ALIGNMENT).ok()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the elements, shared.
    pub fn as_buf(&self) -> HostBuf<'_> {
        HostBuf { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// Returns the elements, exclusive.
    ///
    /// # Panics
    /// If they are not [writable](HostMemory::is_writable).
    pub fn as_buf_mut(&mut self) -> HostBufMut<'_> {
        assert!(self.is_writable(), "memory of another library is not written");
        HostBufMut { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Storage::Allocated = self.place
            && let Some(layout) = Self::layout(self.dtype, self.count).filter(|layout| layout.size() > 0)
        {
            // SAFETY: allocated in `try_uninit` with this same layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
        if let Storage::Vec { capacity } = self.place {
            macro_rules! free {
                ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                    match self.dtype {
                        // SAFETY: the place says that `start` and `capacity` are those of a `Vec`
                        // of the dtype's element type, of which no other part is left. Elements
                        // need no drop, so it has none.
                        $(DType::$variant => drop(unsafe {
                            Vec::<$type>::from_raw_parts(self.start.cast().as_ptr(), 0, capacity)
                        }),)*
                    }
                };
            }
            for_each_dtype!(free);
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
    fn foreign_memory_is_freed_with_its_owner_and_never_written() {
        let owner = std::sync::Arc::new([1.5f32, 2.5]);
        let start = NonNull::from(owner.as_ref()).cast();
        // SAFETY: the owner keeps the elements, which nobody writes.
        let mut memory = unsafe { HostMemory::foreign(start, DType::F32, 2, Box::new(owner.clone())) };
        assert_eq!(memory.as_buf().as_slice::<f32>(), Some(&owner[..]));
        let mut copy = memory.clone();
        copy.as_buf_mut().into_mut_slice::<f32>().expect("floats")[0] = 9.0;
        assert_eq!(owner[0], 1.5);
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.as_buf_mut().count()));
        assert!(written.is_err() && !memory.is_writable());
        assert_eq!(std::sync::Arc::strong_count(&owner), 2);
        drop(memory);
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_vector_stays_where_it_is() {
        let mut elements = vec![1.5f32, 2.5];
        elements.reserve(7);
        let (start, capacity) = (elements.as_ptr(), elements.capacity());
        let mut memory = HostMemory::from_vec(elements);
        memory.as_buf_mut().into_mut_slice::<f32>().expect("floats")[0] = 9.0;
        let memory = memory.into_vec::<u32>().expect_err("floats are no integers");
        let elements = memory.into_vec::<f32>().expect("floats");
        assert_eq!((elements.as_ptr(), elements.capacity(), &elements[..]), (start, capacity, &[9.0, 2.5][..]));
        drop(HostMemory::from_vec(elements));
        drop(HostMemory::from_vec(Vec::<bool>::new()));
        assert_eq!(HostMemory::from_vec(Vec::<u8>::new()).into_vec::<u8>().expect("bytes"), [0u8; 0]);
        let allocated = HostMemory::from([7u64, 8].as_slice());
        assert_eq!(allocated.into_vec::<u64>().expect("integers"), [7, 8]);
    }

    #[test]
    fn memory_in_pages_of_its_own_is_like_other_memory() {
        let mut memory = HostMemory::zeroed(DType::U8, LARGE_BYTES + 1);
        memory.as_buf_mut().into_mut_slice::<u8>().expect("bytes").fill(9);
        drop(memory);
        // Its pages may be used again.
        let mut memory = HostMemory::zeroed(DType::U8, LARGE_BYTES + 1);
        assert!(memory.as_buf().as_bytes().iter().all(|&byte| byte == 0));
        memory.as_buf_mut().into_mut_slice::<u8>().expect("bytes")[LARGE_BYTES] = 7;
        assert_eq!(memory.clone().as_buf().as_bytes()[LARGE_BYTES - 1..], [0, 7]);
    }
}
