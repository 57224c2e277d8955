//! A device that pretends, for tests. Its elements lie in host memory; its addresses are of no
//! memory of the host. Writes are enqueued, and done when the device is asked.

use super::{
    device::{DeviceBlock, DeviceMemory},
    host_memory::HostMemory,
    space::{Buf, Space},
    view::{HostBuf, HostBufMut},
};
use consonance_spec::DType;
use std::{
    collections::BTreeMap,
    io,
    num::NonZeroUsize,
    ptr::NonNull,
    sync::{Mutex, MutexGuard},
};

/// The first address of the device, and the alignment of its blocks.
const FIRST: usize = 1 << 20;
const ALIGNMENT: usize = 256;

static DEVICE: Mutex<Device> = Mutex::new(Device { blocks: BTreeMap::new(), enqueued: Vec::new(), next: FIRST });

struct Device {
    /// The elements of each block, by its address.
    blocks: BTreeMap<usize, HostMemory>,
    /// The address and the elements of each write.
    enqueued: Vec<(usize, HostMemory)>,
    /// The address of the next block.
    next: usize,
}

impl Device {
    fn get() -> MutexGuard<'static, Device> {
        DEVICE.lock().expect("nobody panics holding the device")
    }

    fn finish(&mut self) {
        for (address, elements) in std::mem::take(&mut self.enqueued) {
            // A block is freed after the writes to it.
            let (start, block) = self.blocks.range_mut(..=address).next_back().expect("a block of the device");
            let first = (address - start) / block.dtype().size();
            let mut target = block.as_buf_mut().slice(first..first + elements.count());
            target.copy_from_bytes(elements.as_buf().as_bytes());
        }
    }
}

/// Allocates zero elements on the device, which says that it has this number.
pub fn alloc(device: u32, dtype: DType, count: usize) -> io::Result<DeviceMemory> {
    let elements = HostMemory::try_zeroed(dtype, count)?;
    let mut all = Device::get();
    let start = all.next;
    all.next += (count * dtype.size() + 1).next_multiple_of(ALIGNMENT);
    all.blocks.insert(start, elements);
    drop(all);
    // SAFETY: no device has these elements, so that none accesses them. The space and the address
    // are always the same.
    Ok(unsafe { DeviceMemory::new(Box::new(Block { device, start }), dtype, count) })
}

/// Returns the elements of a buffer of the device after all writes that are enqueued.
///
/// # Panics
/// If the device has no such block.
pub fn read(buf: &Buf<'_>) -> HostMemory {
    let mut device = Device::get();
    device.finish();
    let address = buf.start().addr().get();
    let (start, block) = device.blocks.range(..=address).next_back().expect("a block of the device");
    let first = (address - start) / block.dtype().size();
    block.as_buf().slice(first..first + buf.count()).into()
}

/// Enqueues a write of `elements` to a buffer of the device.
pub fn enqueue(buf: &Buf<'_>, elements: HostMemory) {
    Device::get().enqueued.push((buf.start().addr().get(), elements));
}

/// Does the writes that are enqueued.
pub fn finish() {
    Device::get().finish();
}

/// Returns the number of writes that are enqueued.
pub fn enqueued() -> usize {
    Device::get().enqueued.len()
}

struct Block {
    device: u32,
    start: usize,
}

impl DeviceBlock for Block {
    fn space(&self) -> Space {
        Space::Cuda(self.device)
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::without_provenance(NonZeroUsize::new(self.start).expect("an address above zero"))
    }

    fn read(&self, offset: usize, into: HostBufMut<'_>) -> io::Result<()> {
        let (mut device, mut into) = (Device::get(), into);
        device.finish();
        let block = &device.blocks[&self.start];
        let first = offset / block.dtype().size();
        into.copy_from_bytes(block.as_buf().slice(first..first + into.count()).as_bytes());
        Ok(())
    }

    fn write(&mut self, offset: usize, from: HostBuf<'_>) -> io::Result<()> {
        Device::get().enqueued.push((self.start + offset, from.into()));
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut device = Device::get();
        device.finish();
        device.blocks.remove(&self.start);
    }
}
