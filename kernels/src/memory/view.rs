//! Slices whose element type is a value.

use consonance_spec::{DType, Element};
use std::{fmt, marker::PhantomData, ops::Range, ptr::NonNull};

/// A shared slice whose element type is a value.
#[derive(Clone, Copy)]
pub struct HostBuf<'a> {
    pub(super) start: NonNull<u8>,
    pub(super) count: usize,
    pub(super) dtype: DType,
    pub(super) lifetime: PhantomData<&'a [u8]>,
}

/// An exclusive slice whose element type is a value.
pub struct HostBufMut<'a> {
    pub(super) start: NonNull<u8>,
    pub(super) count: usize,
    pub(super) dtype: DType,
    pub(super) lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `HostBuf` is a `&[T]` and a `HostBufMut` a `&mut [T]` for some `T: Element`, which is
// `Send` and `Sync`.
unsafe impl Send for HostBuf<'_> {}
// SAFETY: as above.
unsafe impl Sync for HostBuf<'_> {}
// SAFETY: as above.
unsafe impl Send for HostBufMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for HostBufMut<'_> {}

impl<'a, T: Element> From<&'a [T]> for HostBuf<'a> {
    fn from(slice: &'a [T]) -> Self {
        HostBuf { start: NonNull::from(slice).cast(), count: slice.len(), dtype: T::DTYPE, lifetime: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for HostBufMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        HostBufMut { count: slice.len(), start: NonNull::from(slice).cast(), dtype: T::DTYPE, lifetime: PhantomData }
    }
}

impl<'a> HostBuf<'a> {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Returns the elements as `T`; `None` if they are of another type.
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        // SAFETY: the buffer was made from a `&'a [T]` of `count` elements, as its dtype says (one
        // Rust type a dtype).
        (T::DTYPE == self.dtype).then(|| unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.count) })
    }

    /// Returns the elements' bytes, in this machine's byte order.
    pub fn as_bytes(&self) -> &'a [u8] {
        // SAFETY: the buffer was made from a `&'a [T]` of `bytes()` bytes. All of them are
        // initialized, because no element has padding.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes()) }
    }

    /// Returns the elements in `range`.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(self, range: Range<usize>) -> HostBuf<'a> {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} elements", self.count);
        // SAFETY: `range.start <= count`, so the address stays within the slice or one past it.
        let start = unsafe { self.start.add(range.start * self.dtype.size()) };
        HostBuf { start, count: range.end - range.start, ..self }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl<'a> HostBufMut<'a> {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Returns the elements, shared.
    pub fn as_buf(&self) -> HostBuf<'_> {
        HostBuf { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// Returns the elements, shared from now on.
    pub fn into_buf(self) -> HostBuf<'a> {
        HostBuf { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// Reborrows the elements.
    pub fn reborrow(&mut self) -> HostBufMut<'_> {
        HostBufMut { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// Returns the elements before index `at`, and the elements from `at` on.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.count, "split at {at} of {} elements", self.count);
        // SAFETY: `at <= count`, so the address stays within the slice or one past it; the halves
        // are disjoint.
        let second = unsafe { self.start.add(at * self.dtype.size()) };
        (HostBufMut { count: at, ..self }, HostBufMut { start: second, count: self.count - at, ..self })
    }

    /// Returns the elements in `range`.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(self, range: Range<usize>) -> Self {
        self.split_at(range.end).0.split_at(range.start).1
    }

    /// Returns the elements as `T`; `None` if they are of another type.
    pub fn into_mut_slice<T: Element>(self) -> Option<&'a mut [T]> {
        // SAFETY: the buffer was made from a `&'a mut [T]` of `count` elements, as its dtype says,
        // and this call consumes the buffer.
        (T::DTYPE == self.dtype)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.start.cast().as_ptr(), self.count) })
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl fmt::Debug for HostBuf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuf({}, count {})", self.dtype, self.count)
    }
}

impl fmt::Debug for HostBufMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBufMut({}, count {})", self.dtype, self.count)
    }
}

/// Makes valid elements of `dtype` from bytes that another process may have written. For every type
/// but `bool`, any bit pattern is an element. A byte of a `bool` must be 0 or 1.
///
/// # Safety
/// `start` is valid for reads and writes of `bytes` bytes, and nobody else accesses these bytes.
#[inline]
pub(crate) unsafe fn make_valid(dtype: DType, start: *mut u8, bytes: usize) {
    if dtype == DType::Bool {
        for at in 0..bytes {
            // SAFETY: the byte is one of those that the caller vouches for.
            unsafe { *start.add(at) &= 1 }
        }
    }
}
