//! Another library on a device, for tests: it has a stream and memory that ranks have not made. It
//! works on NVIDIA's driver, too.

use consonance_kernels::{
    cuda::{CallerStream, Context, DeviceMemory, Driver, PinnedMemory, Stream},
    memory::{self, BufMut, HostBuf, HostMemory, Space},
};
use consonance_spec::DType;
use std::{
    any::Any,
    io,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

/// Longer than any work of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A library with one stream on a device.
pub struct OtherLibrary {
    device: usize,
    stream: Arc<Stream>,
}

/// Memory of another library.
pub struct OtherMemory(DeviceMemory);

/// The memory and the stream of a view, which keeps them.
struct Owner {
    _memory: Arc<OtherMemory>,
    _stream: Arc<Stream>,
    _other: Box<dyn Any + Send + Sync>,
}

impl OtherLibrary {
    /// Makes the library's stream on a device.
    ///
    /// # Panics
    /// Without the device.
    pub fn on(device: usize) -> OtherLibrary {
        let driver = Driver::load().expect("a driver");
        let context = Context::new(&driver.device(device).expect("a device")).expect("a context");
        OtherLibrary { device, stream: Arc::new(Stream::new(&context).expect("a stream")) }
    }

    /// Returns the stream, for calls that take one. It stays until the process ends.
    ///
    /// # Panics
    /// If the stream is refused.
    pub fn caller(&self) -> CallerStream {
        self.caller_on(self.device).expect("a stream of the device")
    }

    /// Returns the stream as one of any device.
    ///
    /// # Errors
    /// Those of [`CallerStream::from_raw`].
    pub fn caller_on(&self, device: usize) -> io::Result<CallerStream> {
        // Never destroyed: the caller's stream may have clones.
        std::mem::forget(self.stream.clone());
        // SAFETY: the stream is alive.
        unsafe { CallerStream::from_raw(device, self.stream.handle()) }
    }

    /// Allocates memory.
    ///
    /// # Panics
    /// If the device has too little.
    pub fn alloc(&self, bytes: usize) -> Arc<OtherMemory> {
        Arc::new(OtherMemory(DeviceMemory::new(self.stream.context(), bytes).expect("memory")))
    }

    /// Returns a view of the memory, which keeps `owner` until its end.
    ///
    /// # Errors
    /// Those of [`CallerStream::memory`].
    pub fn view(
        &self,
        memory: &Arc<OtherMemory>,
        (dtype, count): (DType, usize),
        owner: Box<dyn Any + Send + Sync>,
    ) -> io::Result<memory::DeviceMemory> {
        let owner = Owner { _memory: memory.clone(), _stream: self.stream.clone(), _other: owner };
        // SAFETY: the owner keeps the memory. The tests give it valid elements, in the stream's
        // order.
        unsafe { self.caller().memory(dtype, at(memory.address()), count, Box::new(owner)) }
    }

    /// Enqueues a copy to the device. Does not wait.
    ///
    /// # Panics
    /// If the driver refuses it.
    pub fn write(&self, elements: HostBuf<'_>, to: u64) {
        let bytes = elements.as_bytes();
        let mut pinned = PinnedMemory::new(self.stream.context(), bytes.len()).expect("pinned memory");
        pinned.as_mut_slice().copy_from_slice(bytes);
        let slice = self.stream.context().slice(to);
        drop(self.stream.write(pinned, slice, bytes.len()).expect("a copy"));
    }

    /// Enqueues a copy on the device. Does not wait.
    ///
    /// # Panics
    /// If the driver refuses it.
    pub fn copy(&self, from: u64, to: u64, bytes: usize) {
        let slice = |address| self.stream.context().slice(address);
        self.stream.copy(slice(from), slice(to), bytes).expect("a copy");
    }

    /// Returns the elements at an address, after the stream's work.
    ///
    /// # Panics
    /// If the work fails.
    pub fn read(&self, from: u64, dtype: DType, count: usize) -> HostMemory {
        let mut elements = HostMemory::zeroed(dtype, count);
        let bytes = count * dtype.size();
        let pinned = PinnedMemory::new(self.stream.context(), bytes).expect("pinned memory");
        let slice = self.stream.context().slice(from);
        let copy = self.stream.read(slice, pinned, bytes).and_then(|copy| copy.wait(Instant::now() + PATIENCE));
        elements.as_buf_mut().copy_from_bytes(&copy.expect("a copy").as_slice()[..bytes]);
        elements
    }

    /// Whether the stream's work has ended.
    ///
    /// # Panics
    /// If the work fails.
    pub fn is_done(&self) -> bool {
        self.stream.is_done().expect("a query")
    }

    /// Returns the address of pinned memory of the host, which stays until the process ends.
    ///
    /// # Panics
    /// If the host has too little.
    pub fn pinned_address(&self, bytes: usize) -> u64 {
        let pinned = PinnedMemory::new(self.stream.context(), bytes).expect("pinned memory");
        let address = pinned.as_slice().as_ptr().addr() as u64;
        std::mem::forget(pinned);
        address
    }
}

impl OtherMemory {
    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.address()
    }
}

/// Returns a buffer of elements at an address, which nobody has checked.
pub fn unchecked(device: u32, dtype: DType, address: u64, count: usize) -> BufMut<'static> {
    // SAFETY: the tests use the buffer in calls that are refused, or keep the memory alive.
    unsafe { BufMut::from_raw(Space::Cuda(device), dtype, at(address), count) }
}

fn at(address: u64) -> NonNull<u8> {
    NonNull::new(std::ptr::without_provenance_mut(address as usize)).expect("an address of the driver")
}
