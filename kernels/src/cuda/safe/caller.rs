//! Streams and memory of other libraries.

use super::{
    failure::Failure,
    gpu::Gpu,
    stream::{Event, Stream},
};
use crate::memory::{self, DeviceBlock, HostBuf, HostBufMut, Space};
use consonance_spec::DType;
use std::{any::Any, ffi::c_void, fmt, io, num::NonZeroUsize, ptr::NonNull, sync::Arc};

/// A stream of another library, on a GPU that this process uses. It is borrowed: its owner destroys
/// it. Clones are the same stream.
///
/// The work of ranks on a GPU is on one stream of their own. Two events order it and the caller's:
/// [`precede`](CallerStream::precede) and [`follow`](CallerStream::follow). Neither waits on the
/// host. Memory of this library that work of the caller's stream uses is dropped after a
/// [`precede`](CallerStream::precede): else ranks may write to it before that work has ended.
#[derive(Clone)]
pub struct CallerStream {
    gpu: Arc<Gpu>,
    stream: Arc<Stream>,
}

impl CallerStream {
    /// Borrows a stream of the GPU with this number, in its primary context, which libraries on
    /// CUDA's runtime (PyTorch, CuPy, JAX) use.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if there is no such GPU;
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the stream is of another GPU or context;
    /// the driver's.
    ///
    /// # Safety
    /// `handle` is a `CUstream` (a `cudaStream_t`) that is not destroyed before the last clone of
    /// this value is dropped, or one of the driver's own: 0 or 1 for the legacy default stream, 2
    /// for that of the thread.
    pub unsafe fn from_raw(gpu: usize, handle: *mut c_void) -> io::Result<CallerStream> {
        let gpu = Gpu::get(gpu)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { Stream::borrowed(gpu.context(), handle) };
        let stream = stream.map_err(|failure| match failure {
            Failure::Refused { .. } => io::Error::new(io::ErrorKind::InvalidInput, failure),
            Failure::Driver { .. } | Failure::Timeout { .. } => io::Error::other(failure),
        })?;
        Ok(CallerStream { gpu, stream: Arc::new(stream) })
    }

    /// Returns the driver's handle of the stream that has the work of all ranks on a GPU, for
    /// libraries that order their work before that of another stream (DLPack). `None` if this
    /// process has not opened such a GPU. The stream stays until the process ends.
    pub fn handle_of_ranks(gpu: usize) -> Option<*mut c_void> {
        Gpu::opened(gpu).map(|gpu| gpu.stream().handle())
    }

    /// Returns the GPU that this process has opened and that has memory at this address.
    pub fn gpu_of_address(address: u64) -> Option<usize> {
        let gpus = Gpu::all_opened();
        let gpu = gpus.iter().find(|gpu| gpu.expect_memory(address, 1).is_ok());
        gpu.map(|gpu| gpu.device().ordinal())
    }

    /// Returns the space of the memory of the stream's GPU.
    pub fn space(&self) -> Space {
        self.gpu.space()
    }

    /// Whether the stream's work is being captured into a graph, where no work of ranks can be.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_captured(&self) -> io::Result<bool> {
        Gpu::check_process()?;
        self.stream.is_captured().map_err(io::Error::other)
    }

    /// Lets all that ranks enqueue on the GPU from now on begin after the work that the stream has
    /// now.
    ///
    /// # Errors
    /// The driver's.
    pub fn precede(&self) -> io::Result<()> {
        CallerStream::order(&self.stream, self.gpu.stream())
    }

    /// Lets the work that the stream gets from now on begin after all that ranks have enqueued on
    /// the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn follow(&self) -> io::Result<()> {
        CallerStream::order(self.gpu.stream(), &self.stream)
    }

    fn order(first: &Stream, second: &Stream) -> io::Result<()> {
        Gpu::check_process()?;
        let event = Event::untimed(first.context()).map_err(io::Error::other)?;
        first.record(&event).and_then(|()| second.wait_for(&event)).map_err(io::Error::other)
    }

    /// Makes memory of `count` elements at an address that another library has allocated on the
    /// stream's GPU. It begins as the stream's work until now leaves it. Ranks may write it: before
    /// the stream's own work uses it again, call [`follow`](CallerStream::follow). At the end
    /// `owner` is dropped, after a `follow`, so that it may free the memory in the stream's order.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the GPU has no such memory there, or the
    /// address is not aligned for the elements; the driver's.
    ///
    /// # Safety
    /// Until `owner` is dropped, the memory is allocated, each of its elements is valid (a `bool`
    /// is 0 or 1), and the stream's order is that of all other accesses to it.
    pub unsafe fn memory(
        &self,
        dtype: DType,
        start: NonNull<u8>,
        count: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> io::Result<memory::DeviceMemory> {
        let refuse = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let bytes = count.checked_mul(dtype.size()).ok_or_else(|| refuse(format!("{count} elements of {dtype}")))?;
        let address = start.addr().get() as u64;
        if !address.is_multiple_of(dtype.size() as u64) {
            return Err(refuse(format!("the address {address:#x} is not aligned for elements of {dtype}")));
        }
        self.gpu.expect_memory(address, bytes).map_err(|found| {
            refuse(format!("expected {bytes} bytes of memory of {} at {address:#x}, found {found}", self.space()))
        })?;
        self.precede()?;
        let block = Borrowed { stream: self.clone(), address: start.addr(), _owner: owner };
        // SAFETY: by the caller's promise; the block keeps the owner, and its space and address are
        // always the same.
        Ok(unsafe { memory::DeviceMemory::new(Box::new(block), dtype, count) })
    }
}

impl fmt::Debug for CallerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallerStream({}, {:?})", self.space(), self.stream.handle())
    }
}

/// Memory that another library has allocated.
struct Borrowed {
    stream: CallerStream,
    address: NonZeroUsize,
    _owner: Box<dyn Any + Send + Sync>,
}

impl DeviceBlock for Borrowed {
    fn space(&self) -> Space {
        self.stream.space()
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::without_provenance(self.address)
    }

    fn read(&self, offset: usize, into: HostBufMut<'_>) -> io::Result<()> {
        self.stream.gpu.read((self.address.get() + offset) as u64, into)
    }

    fn write(&mut self, offset: usize, from: HostBuf<'_>) -> io::Result<()> {
        self.stream.gpu.write(from, (self.address.get() + offset) as u64)
    }
}

/// Leaves the memory to the stream, before the owner is dropped.
impl Drop for Borrowed {
    fn drop(&mut self) {
        // A driver that fails here runs no later work of the stream, either.
        _ = self.stream.follow();
    }
}
