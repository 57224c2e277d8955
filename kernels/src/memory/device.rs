//! Owned elements in any space.

use super::{
    host_memory::HostMemory,
    space::{Buf, BufMut, Space},
    view::{HostBuf, HostBufMut},
};
use consonance_spec::DType;
use std::{fmt, io, ptr::NonNull};

/// Owned elements, in host memory or in the memory of a device.
#[derive(Debug)]
pub enum Memory {
    /// In host memory.
    Host(HostMemory),
    /// In the memory of a device.
    Device(DeviceMemory),
}

/// Owned elements in the memory of a device.
pub struct DeviceMemory {
    block: Box<dyn DeviceBlock>,
    dtype: DType,
    count: usize,
}

/// An allocation in the memory of a device, as its engine has it. Dropping it frees the memory,
/// after all calls that are enqueued on it.
pub trait DeviceBlock: Send + Sync {
    /// Returns the space of the allocation, which is not the host's.
    fn space(&self) -> Space;

    /// Returns the address of the first byte, in the [space](DeviceBlock::space).
    fn start(&self) -> NonNull<u8>;

    /// Copies the bytes from `offset` on to host memory, after all calls that are enqueued on them.
    ///
    /// # Errors
    /// The device's.
    fn read(&self, offset: usize, into: HostBufMut<'_>) -> io::Result<()>;

    /// Copies host memory to the bytes from `offset` on.
    ///
    /// # Errors
    /// The device's.
    fn write(&mut self, offset: usize, from: HostBuf<'_>) -> io::Result<()>;
}

impl Memory {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Memory::Host(memory) => memory.dtype(),
            Memory::Device(memory) => memory.dtype,
        }
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        match self {
            Memory::Host(memory) => memory.count(),
            Memory::Device(memory) => memory.count,
        }
    }

    /// Returns the memory that the elements lie in.
    pub fn space(&self) -> Space {
        match self {
            Memory::Host(_) => Space::Host,
            Memory::Device(memory) => memory.block.space(),
        }
    }

    /// Whether the elements may be written.
    pub fn is_writable(&self) -> bool {
        match self {
            Memory::Host(memory) => memory.is_writable(),
            Memory::Device(_) => true,
        }
    }

    /// Returns the elements, shared.
    pub fn as_buf(&self) -> Buf<'_> {
        match self {
            Memory::Host(memory) => memory.as_buf().into(),
            // SAFETY: the block has these elements, and lives as long as the buffer.
            Memory::Device(DeviceMemory { block, dtype, count }) => unsafe {
                Buf::from_raw(block.space(), *dtype, block.start(), *count)
            },
        }
    }

    /// Returns the elements, exclusive.
    pub fn as_buf_mut(&mut self) -> BufMut<'_> {
        match self {
            Memory::Host(memory) => memory.as_buf_mut().into(),
            // SAFETY: the block has these elements, and is borrowed as long as the buffer lives.
            Memory::Device(DeviceMemory { block, dtype, count }) => unsafe {
                BufMut::from_raw(block.space(), *dtype, block.start(), *count)
            },
        }
    }

    /// Returns the elements if they lie in host memory.
    pub fn host(&self) -> Option<&HostMemory> {
        match self {
            Memory::Host(memory) => Some(memory),
            Memory::Device(_) => None,
        }
    }

    /// Returns the elements if they lie in host memory, exclusive.
    pub fn host_mut(&mut self) -> Option<&mut HostMemory> {
        match self {
            Memory::Host(memory) => Some(memory),
            Memory::Device(_) => None,
        }
    }

    /// Copies `count` elements from `start` on to host memory.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub fn to_host(&self, start: usize, count: usize) -> io::Result<HostMemory> {
        match self {
            Memory::Host(memory) => Ok(memory.as_buf().slice(start..start + count).into()),
            Memory::Device(memory) => memory.to_host(start, count),
        }
    }
}

impl From<HostMemory> for Memory {
    fn from(memory: HostMemory) -> Memory {
        Memory::Host(memory)
    }
}

impl From<DeviceMemory> for Memory {
    fn from(memory: DeviceMemory) -> Memory {
        Memory::Device(memory)
    }
}

impl DeviceMemory {
    /// Makes memory of `count` elements in `block`.
    ///
    /// # Safety
    /// Until `block` is dropped, its space and its address stay the same, and the address is valid
    /// there for `count` elements, each a valid one, which nothing else accesses.
    ///
    /// # Panics
    /// If the block says that it is in host memory.
    pub unsafe fn new(block: Box<dyn DeviceBlock>, dtype: DType, count: usize) -> DeviceMemory {
        assert_ne!(block.space(), Space::Host, "host memory is a `HostMemory`");
        DeviceMemory { block, dtype, count }
    }

    /// Copies host memory to the elements from `start` on.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// If the types differ, or there are fewer elements.
    pub fn write(&mut self, start: usize, from: HostBuf<'_>) -> io::Result<()> {
        assert_eq!(from.dtype(), self.dtype, "elements of one type");
        assert!(from.count() <= self.count && start <= self.count - from.count(), "elements of this memory");
        self.block.write(start * self.dtype.size(), from)
    }

    fn to_host(&self, start: usize, count: usize) -> io::Result<HostMemory> {
        assert!(count <= self.count && start <= self.count - count, "elements of this memory");
        let mut memory = HostMemory::try_unspecified(self.dtype, count)?;
        self.block.read(start * self.dtype.size(), memory.as_buf_mut())?;
        Ok(memory)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({}, {}, count {})", self.block.space(), self.dtype, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pretended;

    #[test]
    fn memory_of_a_device_is_copied_and_gives_no_host_elements() -> io::Result<()> {
        let mut device = pretended::alloc(3, DType::I32, 4)?;
        device.write(1, [5i32, 6].as_slice().into())?;
        let mut memory = Memory::from(device);
        assert_eq!((memory.space(), memory.dtype(), memory.count()), (Space::Cuda(3), DType::I32, 4));
        assert!(memory.host().is_none() && memory.host_mut().is_none() && memory.as_buf().host().is_none());
        assert_eq!((memory.as_buf_mut().space(), memory.as_buf().count()), (Space::Cuda(3), 4));
        assert_eq!(memory.to_host(1, 3)?.as_buf().as_slice::<i32>(), Some(&[5, 6, 0][..]));
        assert_eq!(format!("{memory:?}"), "Device(DeviceMemory(cuda:3, i32, count 4))");
        Ok(())
    }
}
