//! Work in order: copies, fills and kernels on a stream, and the events between them.

use super::{
    context::{Context, Retired, Shared, poll},
    failure::Failure,
    launch::{Access, check_access, check_geometry},
    memory::{DeviceSlice, PinnedMemory},
    module::Function,
};
use crate::cuda::{
    kernels::Launch,
    result::{DriverError, has_ended},
    sys::{
        CUcontext, CUevent, CUstream, EVENT_DEFAULT, EVENT_DISABLE_TIMING, Functions, STREAM_NON_BLOCKING, WAIT_DEFAULT,
    },
};
use std::{
    ffi::{c_uint, c_void},
    fmt, ptr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A stream: the device does its work in order. Dropping it does not wait for the work.
pub struct Stream {
    context: Context,
    handle: CUstream,
    /// Whether another library made the stream, and destroys it.
    is_borrowed: bool,
    /// The work that was enqueued last, for errors.
    last: Mutex<String>,
}

/// A point in the work of a stream, with its time.
pub struct Event {
    context: Context,
    handle: CUevent,
}

/// A copy between the device and pinned memory, which gives the memory back when it has ended.
/// Dropping it leaves the memory to the device until then.
#[must_use = "the copy may not have ended, and has the memory"]
pub struct InFlight<'s> {
    stream: &'s Stream,
    memory: PinnedMemory,
}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Stream, Failure> {
        let _entered = context.done(context.enter())?;
        let mut handle = CUstream::NULL;
        // SAFETY: writes a handle; the context is current.
        context.done(unsafe { context.functions().create_stream(&mut handle, STREAM_NON_BLOCKING) })?;
        context.lock().note_stream(handle);
        Ok(Stream::of(context, handle, false))
    }

    fn of(context: &Context, handle: CUstream, is_borrowed: bool) -> Stream {
        Stream { context: context.clone(), handle, is_borrowed, last: Mutex::new("no work".to_owned()) }
    }

    /// Borrows a stream of another library, for events alone: the context frees memory without
    /// regard to its work.
    ///
    /// # Errors
    /// If the stream is of another context; the driver's.
    ///
    /// # Safety
    /// The handle is a stream of the driver that is not destroyed before this value is dropped, or
    /// one of the driver's own: 0 and 1 for the legacy default stream, 2 for that of the thread. No
    /// work but events is enqueued on it.
    pub unsafe fn borrowed(context: &Context, handle: *mut c_void) -> Result<Stream, Failure> {
        let handle = CUstream(handle);
        let _entered = context.done(context.enter())?;
        let mut of = CUcontext::NULL;
        // SAFETY: the stream is alive; writes a handle.
        context.done(unsafe { context.functions().stream_context(handle, &mut of) })?;
        if of != context.handle() {
            let device = context.device().ordinal();
            let why =
                format!("expected a stream of the primary context of cuda:{device}, found one of another context");
            return Err(context.refuse(why));
        }
        Ok(Stream::of(context, handle, true))
    }

    /// Returns the driver's handle, a `CUstream`, for other libraries. It is alive as long as this.
    pub fn handle(&self) -> *mut c_void {
        self.handle.0
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies the first `bytes` bytes of pinned memory to the device.
    ///
    /// # Errors
    /// If a memory has not that many bytes or is of another context; the driver's. The pinned
    /// memory is freed.
    pub fn write(&self, from: PinnedMemory, to: DeviceSlice<'_>, bytes: usize) -> Result<InFlight<'_>, Failure> {
        self.expect_pinned(&from, bytes)?;
        let check = |shared: &Shared| self.place("the target of a copy", to, bytes, shared);
        self.enqueue_checked(format!("a copy of {bytes} bytes to the device"), check, |functions, stream| {
            // SAFETY: the pinned memory has these bytes, and stays until the copy has ended,
            // because `InFlight` owns it and a context frees nothing before. `place` checked the
            // target.
            unsafe { functions.copy_to_device(to.address(), from.start().0, bytes, stream) }
        })?;
        Ok(InFlight { stream: self, memory: from })
    }

    /// Copies memory of the device to the first `bytes` bytes of pinned memory.
    ///
    /// # Errors
    /// If a memory has not that many bytes or is of another context; the driver's. The pinned
    /// memory is freed.
    pub fn read(&self, from: DeviceSlice<'_>, to: PinnedMemory, bytes: usize) -> Result<InFlight<'_>, Failure> {
        self.expect_pinned(&to, bytes)?;
        let check = |shared: &Shared| self.place("the source of a copy", from, bytes, shared);
        self.enqueue_checked(format!("a copy of {bytes} bytes to the host"), check, |functions, stream| {
            // SAFETY: as in `write`. Nobody else reads or writes the pinned memory until the copy
            // has ended, because `InFlight` owns it.
            unsafe { functions.copy_to_host(to.start().0, from.address(), bytes, stream) }
        })?;
        Ok(InFlight { stream: self, memory: to })
    }

    /// Copies bytes within the device.
    ///
    /// # Errors
    /// If a memory has not that many bytes or is of another context, or if they overlap; the
    /// driver's.
    pub fn copy(&self, from: DeviceSlice<'_>, to: DeviceSlice<'_>, bytes: usize) -> Result<(), Failure> {
        if from.address().abs_diff(to.address()) < bytes as u64 {
            return Err(self.context.refuse("the source and the target of a copy overlap".to_owned()));
        }
        let check = |shared: &Shared| {
            self.place("the source of a copy", from, bytes, shared)?;
            self.place("the target of a copy", to, bytes, shared)
        };
        self.enqueue_checked(format!("a copy of {bytes} bytes on the device"), check, |functions, stream| {
            // SAFETY: `place` checked both.
            unsafe { functions.copy(to.address(), from.address(), bytes, stream) }
        })
    }

    /// Writes the same byte `bytes` times.
    ///
    /// # Errors
    /// If the memory has not that many bytes or is of another context; the driver's.
    pub fn fill(&self, to: DeviceSlice<'_>, bytes: usize, byte: u8) -> Result<(), Failure> {
        let check = |shared: &Shared| self.place("the target of a fill", to, bytes, shared);
        self.enqueue_checked(format!("a fill of {bytes} bytes"), check, |functions, stream| {
            // SAFETY: `place` checked the target.
            unsafe { functions.fill(to.address(), byte, bytes, stream) }
        })
    }

    /// Launches a kernel.
    ///
    /// # Errors
    /// If the geometry is none, or an access is not to alive memory of the stream's context; the
    /// driver's.
    ///
    /// # Safety
    /// The launch is one of the function's kernel: its geometry and shared memory are the kernel's,
    /// and its bytes the kernel's only parameter. Besides memory of its own, the kernel accesses
    /// only the bytes of `accesses`.
    pub unsafe fn launch(&self, function: &Function, launch: &Launch, accesses: &[Access]) -> Result<(), Failure> {
        self.expect_own("the kernel", function.context())?;
        let named = |why| self.context.refuse(format!("kernel {}: {why}", function.name()));
        check_geometry(launch, function.most_threads()).map_err(named)?;
        // The driver copies the bytes as the kernel's structure, whose alignment is at most that of
        // these words.
        let mut words = vec![0u128; launch.parameters.len().div_ceil(size_of::<u128>())];
        for (word, bytes) in words.iter_mut().zip(launch.parameters.chunks(size_of::<u128>())) {
            let mut whole = [0; size_of::<u128>()];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u128::from_ne_bytes(whole);
        }
        let mut parameters = [words.as_mut_ptr().cast()];
        self.enqueue_checked(
            format!("kernel {}", function.name()),
            |shared| accesses.iter().try_for_each(|access| check_access(access, &self.context, shared)).map_err(named),
            |functions, stream| {
                // SAFETY: the function is of a loaded module, which stays until the launch has
                // ended, because its context unloads nothing before. By the caller's promise its
                // parameter has these bytes, which the driver copies, and it accesses only the
                // checked bytes; their memory stays until the launch has ended, too.
                unsafe {
                    functions.launch(
                        function.handle(),
                        launch.grid,
                        1,
                        1,
                        launch.block,
                        1,
                        1,
                        launch.shared_bytes,
                        stream,
                        parameters.as_mut_ptr(),
                        ptr::null_mut(),
                    )
                }
            },
        )
    }

    /// Marks this point of the work by the event.
    ///
    /// # Errors
    /// If the event is of another context; the driver's.
    pub fn record(&self, event: &Event) -> Result<(), Failure> {
        self.expect_own("the event", &event.context)?;
        // SAFETY: both handles are alive.
        self.enqueue("an event".to_owned(), |functions, stream| unsafe { functions.record_event(event.handle, stream) })
    }

    /// Lets the work that is enqueued from now on begin after that before the event, which may be
    /// of another stream. The event may be dropped at once.
    ///
    /// # Errors
    /// If the event is of another context; the driver's.
    pub fn wait_for(&self, event: &Event) -> Result<(), Failure> {
        self.expect_own("the event", &event.context)?;
        self.enqueue("a wait for an event".to_owned(), |functions, stream| {
            // SAFETY: both handles are alive. The driver keeps what the wait needs of the event.
            unsafe { functions.wait_event(stream, event.handle, WAIT_DEFAULT) }
        })
    }

    /// Whether the stream's work is being captured into a graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_captured(&self) -> Result<bool, Failure> {
        let (_entered, mut status) = (self.context.done(self.context.enter())?, 0);
        // SAFETY: the stream is alive; writes one number.
        self.context.done(unsafe { self.context.functions().is_capturing(self.handle, &mut status) })?;
        Ok(status != 0)
    }

    /// Whether all work has ended.
    ///
    /// # Errors
    /// Those of the work.
    pub fn is_done(&self) -> Result<bool, Failure> {
        let _entered = self.context.done(self.context.enter())?;
        // SAFETY: the stream is not destroyed.
        self.context.done(has_ended(unsafe { self.context.functions().query_stream(self.handle) }))
    }

    /// Waits until all work that was enqueued before has ended, at most until `deadline`.
    ///
    /// # Errors
    /// Those of the work. A timeout names the last work on the stream.
    pub fn wait(&self, deadline: Instant) -> Result<(), Failure> {
        let begin = Instant::now();
        if self.is_done()? {
            return Ok(());
        }
        // Others may enqueue more work meanwhile.
        let end = Event::new(&self.context)?;
        {
            let _entered = self.context.done(self.context.enter())?;
            // SAFETY: both handles are alive.
            self.context.done(unsafe { self.context.functions().record_event(end.handle, self.handle) })?;
        }
        match poll(deadline, || end.is_done())? {
            true => Ok(()),
            false => Err(Failure::Timeout {
                device: self.context.device().ordinal(),
                work: self.last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                time: deadline.saturating_duration_since(begin),
            }),
        }
    }

    fn enqueue(
        &self,
        what: String,
        call: impl FnOnce(&Functions, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), Failure> {
        self.enqueue_checked(what, |_| Ok(()), call)
    }

    /// Checks and calls while nothing can be freed.
    fn enqueue_checked(
        &self,
        what: String,
        check: impl FnOnce(&Shared) -> Result<(), Failure>,
        call: impl FnOnce(&Functions, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), Failure> {
        let shared = self.context.lock();
        check(&shared)?;
        let _entered = self.context.done(self.context.enter())?;
        self.context.done(call(self.context.functions(), self.handle))?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = what;
        Ok(())
    }

    /// Checks that the slice has `bytes` bytes of memory that is alive.
    fn place(&self, name: &str, slice: DeviceSlice<'_>, bytes: usize, shared: &Shared) -> Result<(), Failure> {
        self.expect_own(name, slice.context())?;
        let address = slice.address();
        let found = self.context.find(shared, address, bytes as u64);
        found.map_err(|found| {
            self.context.refuse(format!("{name}: expected {bytes} bytes at {address:#x}, found {found}"))
        })
    }

    fn expect_pinned(&self, memory: &PinnedMemory, bytes: usize) -> Result<(), Failure> {
        self.expect_own("pinned memory", memory.context())?;
        match memory.bytes() {
            size if size < bytes => {
                Err(self.context.refuse(format!("pinned memory: expected at least {bytes} bytes, found {size}")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn expect_own(&self, name: &str, other: &Context) -> Result<(), Failure> {
        if self.context.handle() == other.handle() {
            return Ok(());
        }
        Err(self.context.refuse(format!(
            "{name} is of {:?}, the stream of {:?}",
            other.device(),
            self.context.device()
        )))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_borrowed {
            self.context.retire(Retired::Stream(self.handle));
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream(cuda:{})", self.context.device().ordinal())
    }
}

impl Event {
    /// Makes an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Event, Failure> {
        Event::with(context, EVENT_DEFAULT)
    }

    /// Makes an event without a time, which only orders.
    ///
    /// # Errors
    /// The driver's.
    pub fn untimed(context: &Context) -> Result<Event, Failure> {
        Event::with(context, EVENT_DISABLE_TIMING)
    }

    fn with(context: &Context, flags: c_uint) -> Result<Event, Failure> {
        let _entered = context.done(context.enter())?;
        let mut handle = CUevent::NULL;
        // SAFETY: writes a handle; the context is current.
        context.done(unsafe { context.functions().create_event(&mut handle, flags) })?;
        Ok(Event { context: context.clone(), handle })
    }

    /// Whether the work before the event has ended. It has if the event was never recorded.
    ///
    /// # Errors
    /// Those of the work.
    pub fn is_done(&self) -> Result<bool, Failure> {
        let _entered = self.context.done(self.context.enter())?;
        // SAFETY: the event is not destroyed.
        self.context.done(has_ended(unsafe { self.context.functions().query_event(self.handle) }))
    }

    /// Returns the time between an earlier event and this one.
    ///
    /// # Errors
    /// If one of them was not recorded, or its work has not ended; the driver's.
    pub fn since(&self, earlier: &Event) -> Result<Duration, Failure> {
        let _entered = self.context.done(self.context.enter())?;
        let mut milliseconds = 0.0;
        // SAFETY: neither event is destroyed; writes one number.
        let elapsed = unsafe { self.context.functions().elapsed(&mut milliseconds, earlier.handle, self.handle) };
        self.context.done(elapsed)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is destroyed once. The driver keeps what its work needs, and returns at
        // once.
        if let Err(error) = unsafe { self.context.functions().destroy_event(self.handle) } {
            let device = self.context.device();
            device.driver().note_leak(format!("cuda:{}: an event is not freed: {error}", device.ordinal()));
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(cuda:{})", self.context.device().ordinal())
    }
}

impl InFlight<'_> {
    /// Waits until the copy has ended, and the other work before it on the stream; at most until
    /// `deadline`. Returns the pinned memory.
    ///
    /// # Errors
    /// As for [`Stream::wait`]. The pinned memory is freed after the work.
    pub fn wait(self, deadline: Instant) -> Result<PinnedMemory, Failure> {
        self.stream.wait(deadline)?;
        Ok(self.memory)
    }
}

impl fmt::Debug for InFlight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({:?})", self.memory)
    }
}
