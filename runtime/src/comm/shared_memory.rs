//! Memory that all ranks of a group can read and write in place.

use crate::value::display;
use consonance_kernels::memory::HostMemory;
use consonance_spec::Element;
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// Elements in memory that all ranks of a group can read and write in place: see
/// [`Communicator::alloc`](crate::Communicator::alloc).
///
/// Its slices follow the rules of borrowing, with one exception: a process that writes to the
/// memory outside of a collective changes data that another process may have borrowed. Collectives
/// never do this. Such a process can make results wrong. It cannot make an invalid element: only
/// types whose every bit pattern is valid are shared. `bool` is not such a type. For it,
/// [`Communicator::alloc`](crate::Communicator::alloc) between processes allocates private memory,
/// and collectives stage it.
pub struct SharedMemory<T> {
    memory: HostMemory,
    element: PhantomData<T>,
}

impl<T: Element> SharedMemory<T> {
    /// Wraps memory whose elements are of this type.
    pub(super) fn new(memory: HostMemory) -> SharedMemory<T> {
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

/// Prints the type, the number of elements, and of many elements the first and last.
///
/// ```
/// use consonance::Communicator;
/// let memory = Communicator::threads(1).remove(0).alloc::<u8>(100)?;
/// assert_eq!(format!("{memory:?}"), "u8[100] [0, 0, 0, 0, 0, 0, 0, 0, …, 0, 0, 0, 0, 0, 0, 0, 0]");
/// # Ok::<(), consonance::Error>(())
/// ```
impl<T: Element> fmt::Debug for SharedMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display::write_slice(f, self.memory.as_buf())
    }
}
