//! A device as this process uses it, with the list of what is alive on it.

use super::{driver::Device, failure::Failure};
use crate::cuda::{
    result::{DriverError, has_ended},
    sys::{CUcontext, CUdeviceptr, CUmodule, CUstream, Functions},
};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    ffi::c_void,
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The time that the last owner of a context waits for the device's work. Then it leaves
/// behind the memory that the work may use.
const CLOSE: Duration = Duration::from_secs(1);

/// The pause between two queries of work that takes long: it is far below what anyone notices, and
/// costs no processor time.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The number of queries without a pause between them: most copies and kernels end meanwhile, and a
/// pause is longer than they are.
const QUICK: usize = 32;

/// The first pause. It doubles from query to query.
const FIRST_PAUSE: Duration = Duration::from_micros(10);

/// A device as this process uses it: the device's primary context, which all libraries of the
/// process share. Clones are the same context.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    device: Device,
    handle: CUcontext,
    shared: Mutex<Shared>,
}

/// The resources that are alive. A thread that frees, and one that launches, holds its lock:
/// nothing is freed between the check of a launch and the launch.
#[derive(Default)]
pub(super) struct Shared {
    /// The device's memory that has an owner: the bytes at each address.
    live: BTreeMap<CUdeviceptr, usize>,
    /// The memory that is retired: the bytes at each address.
    dropped: BTreeMap<CUdeviceptr, usize>,
    /// All streams that are not destroyed, the retired ones too.
    streams: Vec<CUstream>,
    retired: Vec<Retired>,
}

/// Memory of the context's own at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// The number of bytes from there on.
    Alive(u64),
    /// Memory that was dropped, and is not freed yet.
    Dropped,
}

/// A thing that has no owner anymore, and that work may still use.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retired {
    Memory(CUdeviceptr),
    Pinned(PinnedAddress),
    Module(CUmodule),
    Stream(CUstream),
}

/// The address of pinned memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedAddress(pub(super) *mut c_void);

// SAFETY: whoever has the address decides what may be done with it; here it is only freed.
unsafe impl Send for PinnedAddress {}

/// While this lives, the context is the thread's current one.
pub(super) struct Entered<'c> {
    device: &'c Device,
    /// A thread leaves what it entered.
    thread: PhantomData<*const ()>,
}

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Device) -> Result<Context, Failure> {
        let mut handle = CUcontext::NULL;
        // SAFETY: writes a handle. `drop` releases the context once.
        let retained = unsafe { device.driver().functions().retain_context(&mut handle, device.handle()) };
        retained.map_err(|error| Failure::Driver { device: device.ordinal(), error })?;
        Ok(Context(Arc::new(Inner { device: device.clone(), handle, shared: Mutex::default() })))
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns how many bytes of the device's memory are free.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> Result<usize, Failure> {
        let (mut free, mut total) = (0, 0);
        let _entered = self.done(self.enter())?;
        // SAFETY: writes two numbers; the context is current.
        self.done(unsafe { self.functions().memory_info(&mut free, &mut total) })?;
        Ok(free)
    }

    /// Frees what was dropped, if no stream has work left. Returns how many things are left to
    /// free. Allocating and dropping do this, too.
    pub fn reclaim(&self) -> usize {
        self.0.reclaim(&mut self.0.lock())
    }

    /// Frees what was dropped, as soon as no stream has work left. Returns whether nothing is left
    /// to free at `deadline`.
    pub(super) fn is_free_by(&self, deadline: Instant) -> bool {
        poll(deadline, || Ok::<_, Infallible>(self.reclaim() == 0)).unwrap_or(false)
    }

    pub(super) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        self.0.enter()
    }

    pub(super) fn functions(&self) -> &Functions {
        self.0.functions()
    }

    pub(super) fn handle(&self) -> CUcontext {
        self.0.handle
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock()
    }

    /// Gives the thing to the queue of what is freed after the work, and frees what can be.
    pub(super) fn retire(&self, retired: Retired) {
        let mut shared = self.0.lock();
        if let Retired::Memory(address) = retired
            && let Some(bytes) = shared.live.remove(&address)
        {
            shared.dropped.insert(address, bytes);
        }
        shared.retired.push(retired);
        self.0.reclaim(&mut shared);
    }

    /// Names the device in an error of the driver.
    pub(super) fn done<T>(&self, result: Result<T, DriverError>) -> Result<T, Failure> {
        result.map_err(|error| Failure::Driver { device: self.0.device.ordinal(), error })
    }

    /// Returns the refusal of an argument.
    pub(super) fn refuse(&self, why: String) -> Failure {
        Failure::Refused { device: self.0.device.ordinal(), why }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.0.device)
    }
}

impl Shared {
    pub(super) fn note_memory(&mut self, address: CUdeviceptr, bytes: usize) {
        self.live.insert(address, bytes);
    }

    pub(super) fn note_stream(&mut self, stream: CUstream) {
        self.streams.push(stream);
    }

    /// Returns what of this context's own memory lies at an address: the nearest before it, if it
    /// reaches so far.
    pub(super) fn own_memory_at(&self, address: CUdeviceptr) -> Option<Own> {
        let left = |memory: &BTreeMap<CUdeviceptr, usize>| {
            let (start, bytes) = memory.range(..=address).next_back()?;
            (*bytes as u64).checked_sub(address - start)
        };
        let is_dropped = || left(&self.dropped).filter(|left| *left > 0).map(|_| Own::Dropped);
        match left(&self.live) {
            Some(0) => is_dropped().or(Some(Own::Alive(0))),
            Some(left) => Some(Own::Alive(left)),
            None => is_dropped(),
        }
    }
}

impl Inner {
    fn functions(&self) -> &Functions {
        self.device.driver().functions()
    }

    /// Locks what is alive. A thread that panicked with the lock left it whole: each change is one
    /// call of a collection.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<Entered<'_>, DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { self.functions().push_context(self.handle)? };
        Ok(Entered { device: &self.device, thread: PhantomData })
    }

    /// Whether all streams are without work. Work that failed has ended.
    fn is_idle(&self, shared: &Shared) -> bool {
        // SAFETY: the streams of the list are not destroyed.
        shared.streams.iter().all(|&stream| has_ended(unsafe { self.functions().query_stream(stream) }).unwrap_or(true))
    }

    /// Frees what is retired, if no stream has work left.
    fn reclaim(&self, shared: &mut Shared) -> usize {
        if shared.retired.is_empty() {
            return 0;
        }
        let Ok(_entered) = self.enter() else { return shared.retired.len() };
        if self.is_idle(shared) {
            for retired in std::mem::take(&mut shared.retired) {
                match retired {
                    Retired::Stream(stream) => shared.streams.retain(|&other| other != stream),
                    Retired::Memory(address) => _ = shared.dropped.remove(&address),
                    Retired::Pinned(_) | Retired::Module(_) => {}
                }
                if let Err(error) = self.free(retired) {
                    self.leak(retired, &error.to_string());
                }
            }
        }
        shared.retired.len()
    }

    fn free(&self, retired: Retired) -> Result<(), DriverError> {
        let functions = self.functions();
        // SAFETY: each retired thing was made by the driver in this context and is freed once,
        // because it is taken out of the list. Its owner is gone and no stream has work left, so
        // that nobody uses it.
        unsafe {
            match retired {
                Retired::Memory(address) => functions.free(address),
                Retired::Pinned(PinnedAddress(memory)) => functions.free_host(memory),
                Retired::Module(module) => functions.unload_module(module),
                Retired::Stream(stream) => functions.destroy_stream(stream),
            }
        }
    }

    fn leak(&self, retired: Retired, why: &str) {
        let what = match retired {
            Retired::Memory(address) => format!("device memory at {address:#x}"),
            Retired::Pinned(PinnedAddress(memory)) => format!("pinned memory at {memory:?}"),
            Retired::Module(_) => "a module".to_owned(),
            Retired::Stream(_) => "a stream".to_owned(),
        };
        self.device.driver().note_leak(format!("cuda:{}: {what} is not freed: {why}", self.device.ordinal()));
    }
}

/// Waits at most [`CLOSE`] for the device's work. What it may still use then is left to it.
impl Drop for Inner {
    fn drop(&mut self) {
        let mut shared = std::mem::take(&mut *self.lock());
        let deadline = Instant::now() + CLOSE;
        let closed = poll(deadline, || Ok::<_, Infallible>(self.reclaim(&mut shared) == 0));
        if closed != Ok(true) {
            let why = format!("the device's work did not end within {CLOSE:?}");
            shared.retired.iter().for_each(|&retired| self.leak(retired, &why));
            let name = format!("cuda:{}: the context is not released: {why}", self.device.ordinal());
            return self.device.driver().note_leak(name);
        }
        // SAFETY: `new` retained it once, and nothing in it has an owner: owners have a clone of
        // the context.
        if let Err(error) = unsafe { self.functions().release_context(self.device.handle()) } {
            let name = format!("cuda:{}: the context is not released: {error}", self.device.ordinal());
            self.device.driver().note_leak(name);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let driver = self.device.driver();
        let mut context = CUcontext::NULL;
        // SAFETY: writes a handle; the thread entered a context.
        if let Err(error) = unsafe { driver.functions().pop_context(&mut context) } {
            driver.note_leak(format!("cuda:{}: the context stays the thread's: {error}", self.device.ordinal()));
        }
    }
}

/// Asks until the answer is yes, an error, or the deadline is over. Returns whether it was yes.
pub(super) fn poll<E>(deadline: Instant, mut ask: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    for _ in 0..QUICK {
        if ask()? {
            return Ok(true);
        }
    }
    let mut pause = FIRST_PAUSE;
    loop {
        if ask()? {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
