//! A device as all ranks of this process use it.

use super::{
    absence::Absent,
    address::Found,
    context::Context,
    driver::{Device, Driver},
    failure::Failure,
    fold::Fold,
    kernels::Kernels,
    memory::{DeviceMemory, PinnedMemory},
    stream::Stream,
};
use crate::{
    cuda::{
        kernels::{MOST, Stage},
        sys::CUresult,
    },
    memory::{self, DeviceBlock, HostBuf, HostBufMut, Space},
};
use consonance_spec::{DType, ReduceOp};
use std::{
    collections::BTreeMap,
    io, mem,
    num::NonZeroUsize,
    process,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Memory is allocated in multiples of this many bytes.
const GRANULE: usize = 512;

/// Upper bound on each copy between the host and a device.
const PATIENCE: Duration = Duration::from_secs(60);

/// The driver, and the process that loaded it: a driver does not work in a child of it.
static DRIVER: OnceLock<(Result<Driver, Absent>, u32)> = OnceLock::new();

/// The devices that are in use, by their numbers. They stay until the process ends.
static GPUS: Mutex<BTreeMap<usize, Arc<Gpu>>> = Mutex::new(BTreeMap::new());

/// A device as all ranks of this process use it: one stream does all their work in order, so that
/// a later access comes after what is enqueued.
///
/// ```
/// use consonance_kernels::{cuda::Gpu, memory::Memory};
/// use consonance_spec::DType;
///
/// // Without a driver or a device the error says what is missing.
/// if let Ok(gpu) = Gpu::get(0) {
///     let memory = Memory::from(gpu.alloc(DType::F32, 3)?);
///     assert_eq!(memory.to_host(0, 3)?.as_buf().as_slice::<f32>(), Some(&[0.0; 3][..]));
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Gpu {
    kernels: Kernels,
    stream: Stream,
    /// Memory that was dropped, by its bytes. Work of a later owner comes after that of an earlier
    /// one, because all of it is on the stream.
    pool: Mutex<BTreeMap<usize, Vec<DeviceMemory>>>,
    /// Pinned memory that no copy has, of [`COPY_BYTES`](Gpu::COPY_BYTES) bytes each: as much as
    /// threads copied at once.
    pinned: Mutex<Vec<PinnedMemory>>,
}

/// A block of a device's memory.
struct Block {
    gpu: Arc<Gpu>,
    /// Taken by the drop alone.
    memory: Option<DeviceMemory>,
}

impl Gpu {
    /// Upper bound on the sources and on the targets of a [`fold`](Gpu::fold).
    pub const MOST_SOURCES: usize = MOST;

    /// The bytes that one copy between the host and a device moves at most: pinned memory of this
    /// size is kept.
    pub const COPY_BYTES: usize = 4 << 20;

    /// Returns the number of devices. The driver is loaded once.
    ///
    /// # Errors
    /// What is missing.
    pub fn count() -> Result<usize, Absent> {
        Gpu::driver().map(Driver::device_count)
    }

    fn driver() -> Result<&'static Driver, Absent> {
        let (driver, _) = DRIVER.get_or_init(|| (Driver::load(), process::id()));
        driver.as_ref().map_err(Absent::clone)
    }

    /// Checks that this process has loaded the driver, or none of those that it was forked from.
    pub(super) fn check_process() -> io::Result<()> {
        match DRIVER.get() {
            Some((Ok(_), process)) if *process != process::id() => {
                let why = "the CUDA driver was loaded before this process was forked, and works in one process";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            _ => Ok(()),
        }
    }

    /// Returns the device with this number. It is opened once.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if there is none; the driver's;
    /// [`Unsupported`](io::ErrorKind::Unsupported) in a child that was forked after the driver was
    /// loaded, as from all other calls.
    pub fn get(ordinal: usize) -> io::Result<Arc<Gpu>> {
        // First: a thread of the parent may have held the lock.
        Gpu::check_process()?;
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.get(&ordinal) {
            return Ok(gpu.clone());
        }
        let absent = |absent: Absent| io::Error::new(io::ErrorKind::NotFound, absent);
        let device = Gpu::driver().and_then(|driver| driver.device(ordinal)).map_err(absent)?;
        let gpu = Arc::new(Gpu::open(&device).map_err(io::Error::other)?);
        gpus.insert(ordinal, gpu.clone());
        Ok(gpu)
    }

    /// Returns the device with this number, if this process has opened it.
    pub(super) fn opened(ordinal: usize) -> Option<Arc<Gpu>> {
        Gpu::all_opened().into_iter().find(|gpu| gpu.device().ordinal() == ordinal)
    }

    /// Returns the devices that this process has opened.
    pub(super) fn all_opened() -> Vec<Arc<Gpu>> {
        match Gpu::check_process() {
            Ok(()) => GPUS.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect(),
            Err(_) => Vec::new(),
        }
    }

    fn open(device: &Device) -> Result<Gpu, Failure> {
        let context = Context::new(device)?;
        let (kernels, stream) = (Kernels::new(&context), Stream::new(&context)?);
        Ok(Gpu { kernels, stream, pool: Mutex::default(), pinned: Mutex::default() })
    }

    pub(super) fn context(&self) -> &Context {
        self.stream.context()
    }

    /// Returns the stream that has the work of all ranks.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Checks that the device has this many bytes from an address on, of this process or of another
    /// library. In a child that was forked after the driver was loaded nothing is checked.
    ///
    /// # Errors
    /// What there is.
    pub fn expect_memory(&self, address: u64, bytes: usize) -> Result<(), Found> {
        match Gpu::check_process() {
            Ok(()) => self.context().expect_memory(address, bytes as u64),
            Err(_) => Ok(()),
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.context().device()
    }

    /// Returns the space of the device's memory.
    pub fn space(&self) -> Space {
        Space::Cuda(self.device().ordinal() as u32)
    }

    /// Allocates `count` zero elements: in memory that was dropped, if some has this size, because
    /// the driver waits for the device when it frees.
    ///
    /// # Errors
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory), with the bytes that are free; the driver's.
    pub fn alloc(self: &Arc<Gpu>, dtype: DType, count: usize) -> io::Result<memory::DeviceMemory> {
        Gpu::check_process()?;
        let too_large = || io::Error::new(io::ErrorKind::OutOfMemory, format!("{count} elements of {dtype}"));
        let bytes = count.checked_mul(dtype.size()).ok_or_else(too_large)?;
        let memory = self.take(bytes).map_err(|failure| self.no_memory(failure, bytes))?;
        if bytes > 0 {
            self.stream.fill(memory.slice(0), bytes, 0).map_err(io::Error::other)?;
        }
        let block = Box::new(Block { gpu: self.clone(), memory: Some(memory) });
        // SAFETY: the block owns memory of these bytes, zeros, which are valid elements of every
        // type; its space and address are always the same. Only work on its buffers accesses it.
        Ok(unsafe { memory::DeviceMemory::new(block, dtype, count) })
    }

    /// Takes memory of at least so many bytes from the pool, or else from the driver. A device
    /// without memory gets back what the pool has.
    fn take(&self, bytes: usize) -> Result<DeviceMemory, Failure> {
        let rounded = bytes.max(1).checked_next_multiple_of(GRANULE).unwrap_or(bytes);
        if let Some(memory) = self.pool().get_mut(&rounded).and_then(Vec::pop) {
            return Ok(memory);
        }
        DeviceMemory::new(self.context(), rounded).or_else(|failure| {
            // Another thread may have emptied the pool meanwhile.
            drop(mem::take(&mut *self.pool()));
            DeviceMemory::new(self.context(), rounded).map_err(|_| failure)
        })
    }

    fn pool(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<DeviceMemory>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn no_memory(&self, failure: Failure, bytes: usize) -> io::Error {
        match failure {
            Failure::Driver { device, error } if error.code == CUresult::OUT_OF_MEMORY => {
                let free = self.context().free_bytes().map_or("?".to_owned(), |free| free.to_string());
                let why = format!("cuda:{device} has no memory for {bytes} bytes; {free} are free");
                io::Error::new(io::ErrorKind::OutOfMemory, why)
            }
            failure => io::Error::other(failure),
        }
    }

    /// Copies the bytes at an address of the device to host memory, after the work that is
    /// enqueued.
    ///
    /// # Errors
    /// If the context has no such memory; the driver's.
    pub fn read(&self, from: u64, into: HostBufMut<'_>) -> io::Result<()> {
        let (size, mut rest, mut from) = (into.dtype().size(), into, from);
        while rest.count() > 0 {
            let count = rest.count().min(Gpu::COPY_BYTES / size);
            let (mut part, after) = rest.split_at(count);
            let slice = self.context().slice(from);
            let pinned = self.copied(|pinned| self.stream.read(slice, pinned, count * size)?.wait(soon()))?;
            part.copy_from_bytes(&pinned.as_slice()[..count * size]);
            self.keep(pinned);
            (rest, from) = (after, from.wrapping_add((count * size) as u64));
        }
        Ok(())
    }

    /// Copies elements to an address of the device, after the work that is enqueued.
    ///
    /// # Errors
    /// If the context has no such memory; the driver's.
    pub fn write(&self, from: HostBuf<'_>, to: u64) -> io::Result<()> {
        for (index, bytes) in from.as_bytes().chunks(Gpu::COPY_BYTES).enumerate() {
            let slice = self.context().slice(to.wrapping_add((index * Gpu::COPY_BYTES) as u64));
            let pinned = self.copied(|mut pinned| {
                HostBufMut::from(&mut pinned.as_mut_slice()[..bytes.len()]).copy_from_bytes(bytes);
                self.stream.write(pinned, slice, bytes.len())?.wait(soon())
            })?;
            self.keep(pinned);
        }
        Ok(())
    }

    /// Copies by means of pinned memory: the kept one, or new.
    fn copied(&self, copy: impl FnOnce(PinnedMemory) -> Result<PinnedMemory, Failure>) -> io::Result<PinnedMemory> {
        Gpu::check_process()?;
        let kept = self.pinned.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let pinned = kept.map_or_else(|| PinnedMemory::new(self.context(), Gpu::COPY_BYTES), Ok);
        pinned.and_then(copy).map_err(io::Error::other)
    }

    fn keep(&self, pinned: PinnedMemory) {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).push(pinned);
    }

    /// Enqueues the reduction of `count` elements at each address of `sources`, in canonical order,
    /// to each address of `targets`. A target is equal to a source or disjoint from it.
    ///
    /// # Errors
    /// If the operation is not defined on the type, or the context has no such memory at an
    /// address; the driver's.
    pub fn fold(
        &self,
        op: ReduceOp,
        dtype: DType,
        (sources, targets): (&[u64], &[u64]),
        count: usize,
    ) -> io::Result<()> {
        Gpu::check_process()?;
        if count == 0 {
            return Ok(());
        }
        let slices = |addresses: &[u64]| addresses.iter().map(|&at| self.context().slice(at)).collect::<Vec<_>>();
        let (sources, targets) = (slices(sources), slices(targets));
        let divisor = sources.len() as u64;
        let (sources, targets, most_blocks) = (&sources[..], &targets[..], u32::MAX);
        let fold = Fold { stage: Stage::Whole, op, dtype, sources, targets, count, divisor, most_blocks };
        fold.enqueue(&self.kernels, &self.stream).map_err(io::Error::other)
    }

    /// Enqueues writing the element with these `bits` `count` times, from an address on.
    ///
    /// # Errors
    /// If the context has no such memory at the address; the driver's.
    pub fn fill(&self, dtype: DType, to: u64, count: usize, bits: u64) -> io::Result<()> {
        Gpu::check_process()?;
        if count == 0 {
            return Ok(());
        }
        self.kernels.fill(&self.stream, dtype, self.context().slice(to), count, bits).map_err(io::Error::other)
    }

    /// Waits until the work that is enqueued has ended.
    ///
    /// # Errors
    /// Those of the work; [`TimedOut`](io::ErrorKind::TimedOut) with the last work at the deadline.
    pub fn wait(&self, deadline: Instant) -> io::Result<()> {
        Gpu::check_process()?;
        self.stream.wait(deadline).map_err(|failure| match failure {
            Failure::Timeout { .. } => io::Error::new(io::ErrorKind::TimedOut, failure),
            failure => io::Error::other(failure),
        })
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

impl Block {
    fn address(&self, offset: usize) -> u64 {
        self.memory.as_ref().expect("only the drop takes it").slice(offset).address()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = self.memory.take().expect("a block is dropped once");
        if Gpu::check_process().is_err() {
            // The memory is the parent's.
            return mem::forget(memory);
        }
        self.gpu.pool().entry(memory.bytes()).or_default().push(memory);
    }
}

impl DeviceBlock for Block {
    fn space(&self) -> Space {
        self.gpu.space()
    }

    fn start(&self) -> NonNull<u8> {
        let address = NonZeroUsize::new(self.address(0) as usize);
        NonNull::without_provenance(address.expect("a driver gives no memory at address zero"))
    }

    fn read(&self, offset: usize, into: HostBufMut<'_>) -> io::Result<()> {
        self.gpu.read(self.address(offset), into)
    }

    fn write(&mut self, offset: usize, from: HostBuf<'_>) -> io::Result<()> {
        self.gpu.write(from, self.address(offset))
    }
}
