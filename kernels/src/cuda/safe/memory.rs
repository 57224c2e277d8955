//! Memory on the device, and memory of the host from which the device copies.

use super::{
    context::{Context, PinnedAddress, Retired},
    failure::Failure,
};
use crate::cuda::{result::DriverError, sys::CUresult};
use std::{
    fmt, ptr, slice,
    time::{Duration, Instant},
};

/// The time that an allocation waits for the device's work, if dropped memory may make room.
const FULL: Duration = Duration::from_secs(1);

/// Memory on a device. Dropping it frees the memory after the work on the context's streams.
pub struct DeviceMemory {
    context: Context,
    address: u64,
    bytes: usize,
}

/// A place in memory on a device: the bytes from an address on.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'m> {
    context: &'m Context,
    address: u64,
}

/// Memory of the host that is never paged out, so that the device copies to and from it while the
/// host goes on.
pub struct PinnedMemory {
    context: Context,
    start: PinnedAddress,
    bytes: usize,
}

// SAFETY: the memory is owned, like a box of bytes.
unsafe impl Sync for PinnedMemory {}

impl DeviceMemory {
    /// Allocates memory. Its bytes may have any values.
    ///
    /// # Errors
    /// The driver's, such as that the device has too little memory.
    pub fn new(context: &Context, bytes: usize) -> Result<DeviceMemory, Failure> {
        let has_dropped = context.reclaim() > 0;
        let mut allocated = DeviceMemory::alloc(context, bytes);
        let is_full = matches!(&allocated, Err(error) if error.code == CUresult::OUT_OF_MEMORY);
        // Dropped memory, not freed because a stream has work, may be enough.
        if is_full && has_dropped && context.is_free_by(Instant::now() + FULL) {
            allocated = DeviceMemory::alloc(context, bytes);
        }
        let address = context.done(allocated)?;
        context.lock().note_memory(address, bytes);
        Ok(DeviceMemory { context: context.clone(), address, bytes })
    }

    fn alloc(context: &Context, bytes: usize) -> Result<u64, DriverError> {
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes an address; the context is current. The driver refuses to allocate
        // nothing.
        unsafe { context.functions().alloc(&mut address, bytes.max(1)) }.map(|()| address)
    }

    /// Returns the address of the first byte, on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the context that the memory belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl DeviceMemory {
    /// Returns the part of the memory from byte `offset` on. Work on it checks that it has enough
    /// bytes.
    pub fn slice(&self, offset: usize) -> DeviceSlice<'_> {
        self.context.slice(self.address.wrapping_add(offset as u64))
    }
}

impl Context {
    /// Returns the place at an address on the device. Work on it checks that the context has memory
    /// there.
    pub fn slice(&self, address: u64) -> DeviceSlice<'_> {
        DeviceSlice { context: self, address }
    }
}

impl<'m> DeviceSlice<'m> {
    /// Returns the context that the memory belongs to.
    pub fn context(&self) -> &'m Context {
        self.context
    }

    /// Returns the address of the first byte, on the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.context.retire(Retired::Memory(self.address));
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context.device().ordinal();
        write!(f, "DeviceMemory(cuda:{device}, {} bytes at {:#x})", self.bytes, self.address)
    }
}

impl PinnedMemory {
    /// Allocates memory, filled with zeros.
    ///
    /// # Errors
    /// The driver's, such as that the host has too little memory.
    pub fn new(context: &Context, bytes: usize) -> Result<PinnedMemory, Failure> {
        let _entered = context.done(context.enter())?;
        let mut start = ptr::null_mut();
        // SAFETY: writes an address; the context is current. The driver refuses to allocate
        // nothing.
        context.done(unsafe { context.functions().alloc_host(&mut start, bytes.max(1)) })?;
        // SAFETY: the allocation has that many bytes, and nobody else has its address.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { context: context.clone(), start: PinnedAddress(start), bytes })
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the allocation has these bytes, which `new` initialized. The device does not
        // access them: work on them owns this value until it has ended.
        unsafe { slice::from_raw_parts(self.start.0.cast(), self.bytes) }
    }

    /// Returns the bytes, exclusive.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.0.cast(), self.bytes) }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the context that the memory belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn start(&self) -> PinnedAddress {
        self.start
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.context.retire(Retired::Pinned(self.start));
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.bytes)
    }
}
