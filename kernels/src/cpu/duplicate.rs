//! Copies of whole buffers: into new memory, into vectors, and of bytes.
//!
//! They are methods of the types in `memory/`, which itself copies nothing: these copies, too, are
//! made in the ways that the [knobs](crate::tuning) choose.

use super::copy::copy_private;
use crate::memory::{HostBuf, HostBufMut, HostMemory, make_valid};
use consonance_spec::{DType, Element};

impl HostMemory {
    /// Copies all parts, one after the other, into new memory.
    ///
    /// # Panics
    /// If a part is of another type.
    pub fn concat(dtype: DType, parts: &[HostBuf<'_>]) -> HostMemory {
        // The same memory may be a part many times, so nothing bounds the sum of the counts.
        let count = parts.iter().try_fold(0usize, |count, part| count.checked_add(part.count()));
        let count = count.expect("more elements than numbers");
        // SAFETY: the parts together fill all elements, below.
        let mut memory = unsafe { HostMemory::uninit(dtype, count) };
        let start = memory.as_buf_mut().as_mut_ptr();
        let mut bytes = 0;
        for part in parts {
            assert_eq!(part.dtype(), dtype, "parts of one type");
            // SAFETY: the memory is as long as all parts, and new, so no part overlaps it.
            unsafe { copy_private(part.as_ptr(), start.add(bytes), part.bytes()) };
            bytes += part.bytes();
        }
        memory
    }

    /// Returns the elements as a vector. Copies nothing if they [came from
    /// one](HostMemory::from_vec).
    ///
    /// # Errors
    /// The memory itself, if the elements are not of type `T`.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, HostMemory> {
        self.into_own_vec().or_else(|memory| match memory.as_buf().as_slice() {
            Some(elements) => Ok(to_vec(elements)),
            None => Err(memory),
        })
    }
}

/// Copies the elements.
impl From<HostBuf<'_>> for HostMemory {
    fn from(buf: HostBuf<'_>) -> Self {
        HostMemory::concat(buf.dtype(), &[buf])
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

impl HostBufMut<'_> {
    /// Copies elements given as bytes in this machine's byte order. The bytes may come from
    /// anywhere: for `bool` only the lowest bit of each byte counts.
    ///
    /// # Panics
    /// If `bytes` has another length than the elements.
    ///
    /// ```
    /// # mod consonance { pub mod raw { pub use consonance_kernels::memory::*; } }
    /// use consonance::raw::HostBufMut;
    /// let mut words = [0u16; 2];
    /// HostBufMut::from(words.as_mut_slice()).copy_from_bytes(&[1, 1, 2, 2]);
    /// assert_eq!(words, [0x0101, 0x0202]);
    /// ```
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) {
        assert_eq!(self.bytes(), bytes.len(), "bytes of {self:?}");
        let (dtype, target) = (self.dtype(), self.as_mut_ptr());
        // SAFETY: both are valid for `bytes.len()` bytes; `self` is exclusive, so they do not
        // overlap.
        unsafe { copy_private(bytes.as_ptr(), target, bytes.len()) }
        // SAFETY: the bytes are those of this buffer, which is exclusive.
        unsafe { make_valid(dtype, target, bytes.len()) }
    }
}

/// Copies the elements into a vector.
///
/// ```
/// use consonance_kernels::cpu::duplicate::to_vec;
/// assert_eq!(to_vec(&[1.5f32; 1000]), [1.5; 1000]);
/// ```
pub fn to_vec<T: Element>(elements: &[T]) -> Vec<T> {
    let mut copy = Vec::<T>::with_capacity(elements.len());
    // SAFETY: the vector has room for all elements, which are initialized by the copy; it is new,
    // so the elements do not overlap it.
    unsafe {
        copy_private(elements.as_ptr().cast(), copy.as_mut_ptr().cast(), size_of_val(elements));
        copy.set_len(elements.len());
    }
    copy
}
