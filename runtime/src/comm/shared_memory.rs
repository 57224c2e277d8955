//! Memory that all ranks of a group can read and write in place.

use consonance_kernels::memory::Memory;
use consonance_spec::Element;
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// Elements in memory that all ranks of a group can read and write in place: see
/// [`Communicator::alloc`](crate::Communicator::alloc).
///
/// Its slices are borrowed as any others are, with one exception: a process of the group that
/// writes to the memory outside of a collective changes what another one borrows. Collectives never
/// do. Such a process can make results wrong; it cannot make an invalid element, because only types
/// for which every pattern of bits is valid are shared. Between processes a `bool` is not:
/// [`Communicator::alloc`](crate::Communicator::alloc) gives memory of the rank's own for it, which
/// collectives copy.
pub struct SharedMemory<T> {
    memory: Memory,
    element: PhantomData<T>,
}

impl<T: Element> SharedMemory<T> {
    /// Memory of elements of this type.
    pub(super) fn new(memory: Memory) -> SharedMemory<T> {
        SharedMemory { memory, element: PhantomData }
    }
}

impl<T: Element> Deref for SharedMemory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.as_buf().as_slice().expect("made for this type")
    }
}

impl<T: Element> DerefMut for SharedMemory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_buf_mut().into_mut_slice().expect("made for this type")
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for SharedMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
