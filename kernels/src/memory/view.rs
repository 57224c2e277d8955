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
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// The elements as `T`; `None` if they are of another type.
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        // SAFETY: the buffer was made from a `&'a [T]` of `count` elements, as its dtype says (one
        // Rust type a dtype).
        (T::DTYPE == self.dtype).then(|| unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.count) })
    }

    /// The elements' bytes, in this machine's order.
    pub fn as_bytes(&self) -> &'a [u8] {
        // SAFETY: the buffer was made from a `&'a [T]` of so many bytes, all of them initialized:
        // no element has padding.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes()) }
    }

    /// The elements in `range`.
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
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// The elements, shared.
    pub fn as_buf(&self) -> HostBuf<'_> {
        HostBuf { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// The elements, shared from now on.
    pub fn into_buf(self) -> HostBuf<'a> {
        HostBuf { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// The elements, borrowed anew.
    pub fn reborrow(&mut self) -> HostBufMut<'_> {
        HostBufMut { start: self.start, count: self.count, dtype: self.dtype, lifetime: PhantomData }
    }

    /// The elements before and from `at` on.
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

    /// The elements in `range`.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(self, range: Range<usize>) -> Self {
        self.split_at(range.end).0.split_at(range.start).1
    }

    /// The elements as `T`; `None` if they are of another type.
    pub fn into_mut_slice<T: Element>(self) -> Option<&'a mut [T]> {
        // SAFETY: the buffer was made from a `&'a mut [T]` of `count` elements, as its dtype says,
        // and is given up for it.
        (T::DTYPE == self.dtype)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.start.cast().as_ptr(), self.count) })
    }

    /// Copies all of `source`.
    ///
    /// # Panics
    /// If dtype or count differ.
    pub fn copy_from(&mut self, source: HostBuf<'_>) {
        assert_eq!((self.dtype, self.count), (source.dtype, source.count), "copy between unlike buffers");
        // SAFETY: both are valid for `bytes()`; `self` is exclusive, so they do not overlap; the
        // type is the same, so every copied element is a valid one.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start.as_ptr(), self.bytes()) }
    }

    /// Copies elements that came as bytes, in this machine's order, from wherever: of a byte that
    /// is no `bool` the lowest bit counts.
    ///
    /// # Panics
    /// If there are not as many bytes as the elements have.
    ///
    /// ```
    /// use consonance_kernels::memory::HostBufMut;
    /// let mut words = [0u16; 2];
    /// HostBufMut::from(words.as_mut_slice()).copy_from_bytes(&[1, 1, 2, 2]);
    /// assert_eq!(words, [0x0101, 0x0202]);
    /// ```
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) {
        assert_eq!(self.bytes(), bytes.len(), "bytes of {self:?}");
        // SAFETY: both are valid for so many bytes; `self` is exclusive, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr(), bytes.len()) }
        // SAFETY: the bytes are this buffer's, which is exclusive.
        unsafe { make_valid(self.dtype, self.start.as_ptr(), bytes.len()) }
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

/// Makes elements of `dtype` of bytes that another process may have written. Of most types every
/// pattern of bits is an element; a byte of a `bool` is 0 or 1.
///
/// # Safety
/// `start` is valid for reads and writes of `bytes` bytes, which nobody else touches.
#[inline]
pub(crate) unsafe fn make_valid(dtype: DType, start: *mut u8, bytes: usize) {
    if dtype == DType::Bool {
        for at in 0..bytes {
            // SAFETY: within the bytes that the caller vouches for.
            unsafe { *start.add(at) &= 1 }
        }
    }
}
