//! Buffers in the memory of the host or of a device.
//!
//! A [`Buf`] says in which [`Space`] its elements lie. Reducers, copies and endpoints take a
//! [`HostBuf`], which only host memory gives, so they never get a device address.

use super::view::{HostBuf, HostBufMut};
use consonance_spec::{DType, Element};
use std::{fmt, marker::PhantomData, ops::Range, ptr::NonNull};

/// The memory that an address belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The memory of the processor.
    #[default]
    Host,
    /// The memory of the CUDA device with this number.
    Cuda(u32),
}

/// Writes `host` or `cuda:0`.
impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Host => f.pad("host"),
            Space::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A shared buffer in any space, whose element type is a value.
#[derive(Clone, Copy)]
pub struct Buf<'a> {
    start: NonNull<u8>,
    count: usize,
    dtype: DType,
    space: Space,
    lifetime: PhantomData<&'a [u8]>,
}

/// An exclusive buffer in any space, whose element type is a value.
pub struct BufMut<'a> {
    start: NonNull<u8>,
    count: usize,
    dtype: DType,
    space: Space,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `Buf` of host memory is a `HostBuf`, and a `BufMut` a `HostBufMut`, which are `Send`
// and `Sync`. Elements in another space are accessed only by its device.
unsafe impl Send for Buf<'_> {}
// SAFETY: as above.
unsafe impl Sync for Buf<'_> {}
// SAFETY: as above.
unsafe impl Send for BufMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for BufMut<'_> {}

impl<'a> From<HostBuf<'a>> for Buf<'a> {
    fn from(buf: HostBuf<'a>) -> Self {
        Buf { start: buf.start, count: buf.count, dtype: buf.dtype, space: Space::Host, lifetime: PhantomData }
    }
}

impl<'a> From<HostBufMut<'a>> for BufMut<'a> {
    fn from(buf: HostBufMut<'a>) -> Self {
        BufMut { start: buf.start, count: buf.count, dtype: buf.dtype, space: Space::Host, lifetime: PhantomData }
    }
}

impl<'a, T: Element> From<&'a [T]> for Buf<'a> {
    fn from(slice: &'a [T]) -> Self {
        HostBuf::from(slice).into()
    }
}

impl<'a, T: Element> From<&'a mut [T]> for BufMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        HostBufMut::from(slice).into()
    }
}

impl<'a> Buf<'a> {
    /// Returns the element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Returns the memory that the elements lie in.
    #[inline]
    pub fn space(&self) -> Space {
        self.space
    }

    /// Returns the address of the first element, in its [space](Buf::space).
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the elements, if they lie in host memory.
    #[inline]
    pub fn host(self) -> Option<HostBuf<'a>> {
        let Buf { start, count, dtype, .. } = self;
        (self.space == Space::Host).then_some(HostBuf { start, count, dtype, lifetime: PhantomData })
    }

    /// Returns a buffer of no elements in `space`.
    pub fn empty(space: Space, dtype: DType) -> Buf<'a> {
        // Aligned for every type.
        Buf { start: NonNull::<u128>::dangling().cast(), count: 0, dtype, space, lifetime: PhantomData }
    }

    /// Makes a buffer of `count` elements of `dtype` at the address `start` in `space`, for
    /// pointers that come from another language.
    ///
    /// # Safety
    /// In host memory `start` is aligned for the Rust type of `dtype`, and valid for reads of
    /// `count` elements during `'a`. Each element is valid (a `bool` is 0 or 1). Nobody writes the
    /// elements during `'a`. They have at most `isize::MAX` bytes. In another space the same holds
    /// for its device.
    ///
    /// ```
    /// # mod consonance {
    /// #     pub use consonance_spec::DType;
    /// #     pub mod raw { pub use consonance_kernels::memory::*; }
    /// # }
    /// use consonance::{DType, raw::{Buf, Space}};
    /// use std::ptr::NonNull;
    /// let words = [1.5f32, 2.5];
    /// // SAFETY: the slice lives longer than the buffer.
    /// let buf = unsafe { Buf::from_raw(Space::Host, DType::F32, NonNull::from(&words).cast(), words.len()) };
    /// assert_eq!(buf.host().unwrap().as_slice::<f32>(), Some(&words[..]));
    /// ```
    pub unsafe fn from_raw(space: Space, dtype: DType, start: NonNull<u8>, count: usize) -> Buf<'a> {
        Buf { start, count, dtype, space, lifetime: PhantomData }
    }

    /// Returns the elements in `range`.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(self, range: Range<usize>) -> Buf<'a> {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} elements", self.count);
        let offset = range.start * self.dtype.size();
        let start = self.start.map_addr(|start| start.checked_add(offset).expect("elements have addresses"));
        Buf { start, count: range.end - range.start, ..self }
    }
}

impl<'a> BufMut<'a> {
    /// Returns the element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Returns the memory that the elements lie in.
    #[inline]
    pub fn space(&self) -> Space {
        self.space
    }

    /// Returns the elements in `range`.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(self, range: Range<usize>) -> BufMut<'a> {
        let Buf { start, count, dtype, space, .. } = self.as_buf().slice(range);
        BufMut { start, count, dtype, space, lifetime: PhantomData }
    }

    /// Returns the elements, shared.
    pub fn as_buf(&self) -> Buf<'_> {
        let BufMut { start, count, dtype, space, .. } = *self;
        Buf { start, count, dtype, space, lifetime: PhantomData }
    }

    /// Returns the elements, if they lie in host memory.
    #[inline]
    pub fn host(self) -> Option<HostBufMut<'a>> {
        let BufMut { start, count, dtype, .. } = self;
        (self.space == Space::Host).then_some(HostBufMut { start, count, dtype, lifetime: PhantomData })
    }

    /// Returns a buffer of no elements in `space`.
    pub fn empty(space: Space, dtype: DType) -> BufMut<'a> {
        // Aligned for every type.
        BufMut { start: NonNull::<u128>::dangling().cast(), count: 0, dtype, space, lifetime: PhantomData }
    }

    /// Makes a buffer of `count` elements of `dtype` at the address `start` in `space`, for
    /// pointers that come from another language.
    ///
    /// # Safety
    /// As for [`Buf::from_raw`]. In addition, `start` is valid for writes, and nobody else reads or
    /// writes the elements during `'a`.
    ///
    /// ```
    /// # mod consonance {
    /// #     pub use consonance_spec::DType;
    /// #     pub mod raw { pub use consonance_kernels::memory::*; }
    /// # }
    /// use consonance::{DType, raw::{BufMut, Space}};
    /// use std::ptr::NonNull;
    /// let mut words = [1.5f32, 2.5];
    /// // SAFETY: the slice lives longer than the buffer, and is used through it alone meanwhile.
    /// let buf = unsafe { BufMut::from_raw(Space::Host, DType::F32, NonNull::from(&mut words).cast(), 2) };
    /// buf.host().unwrap().into_mut_slice::<f32>().unwrap().fill(0.0);
    /// assert_eq!(words, [0.0, 0.0]);
    /// ```
    pub unsafe fn from_raw(space: Space, dtype: DType, start: NonNull<u8>, count: usize) -> BufMut<'a> {
        BufMut { start, count, dtype, space, lifetime: PhantomData }
    }
}

impl fmt::Debug for Buf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({}, {}, count {})", self.space, self.dtype, self.count)
    }
}

impl fmt::Debug for BufMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({}, {}, count {})", self.space, self.dtype, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_device_gives_no_host_buffer() {
        // SAFETY: no device has these elements, and nobody asks one for them.
        let (buf, mut recv) = unsafe {
            let start = NonNull::<u128>::dangling().cast();
            (
                Buf::from_raw(Space::Cuda(1), DType::F32, start, 8),
                BufMut::from_raw(Space::Cuda(0), DType::F32, start, 8),
            )
        };
        assert!(buf.host().is_none() && buf.slice(2..6).host().is_none());
        assert_eq!(format!("{:?}", buf.slice(2..6)), "Buf(cuda:1, f32, count 4)");
        assert!(recv.as_buf().space() == Space::Cuda(0) && recv.as_buf().host().is_none() && recv.host().is_none());
        recv = BufMut::empty(Space::Host, DType::F64);
        assert_eq!(recv.host().and_then(|recv| recv.into_mut_slice::<f64>()), Some(&mut [][..]));
    }
}
