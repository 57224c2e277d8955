//! Work in order: copies, fills and kernels on a stream, and the events between them.

use super::{
    context::{Context, Retired, Shared, poll},
    failure::Failure,
    launch::{Access, Argument, Grid, check_access, check_grid},
    memory::{DeviceMemory, PinnedMemory},
    module::Function,
};
use crate::cuda::{
    result::{DriverError, has_ended},
    sys::{CUevent, CUstream, EVENT_DEFAULT, Functions, STREAM_NON_BLOCKING},
};
use std::{
    fmt,
    ops::Range,
    ptr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A stream: the device does its work in order. Dropping it does not wait for the work.
pub struct Stream {
    context: Context,
    handle: CUstream,
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
        Ok(Stream { context: context.clone(), handle, last: Mutex::new("no work".to_owned()) })
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies pinned memory to the device, from its byte `offset` on.
    ///
    /// # Errors
    /// If the memory has no room or is of another context; the driver's. The pinned memory is freed.
    pub fn write(&self, from: PinnedMemory, to: &DeviceMemory, offset: usize) -> Result<InFlight<'_>, Failure> {
        let bytes = from.bytes();
        let address = self.place("the target of a copy", to, offset, bytes)?;
        self.same_context("pinned memory", from.context())?;
        self.enqueue(format!("a copy of {bytes} bytes to the device"), |functions, stream, _| {
            // SAFETY: the pinned memory has these bytes, and stays until the copy has ended, because
            // `InFlight` owns it and a context frees nothing before. `place` checked the target.
            unsafe { functions.copy_to_device(address, from.start().0, bytes, stream) }
        })?;
        Ok(InFlight { stream: self, memory: from })
    }

    /// Copies memory of the device, from its byte `offset` on, to all of the pinned memory.
    ///
    /// # Errors
    /// If the memory has not that many bytes or is of another context; the driver's. The pinned
    /// memory is freed.
    pub fn read(&self, from: &DeviceMemory, offset: usize, to: PinnedMemory) -> Result<InFlight<'_>, Failure> {
        let bytes = to.bytes();
        let address = self.place("the source of a copy", from, offset, bytes)?;
        self.same_context("pinned memory", to.context())?;
        self.enqueue(format!("a copy of {bytes} bytes to the host"), |functions, stream, _| {
            // SAFETY: as in `write`. Nobody else reads or writes the pinned memory until the copy has
            // ended, because `InFlight` owns it.
            unsafe { functions.copy_to_host(to.start().0, address, bytes, stream) }
        })?;
        Ok(InFlight { stream: self, memory: to })
    }

    /// Copies bytes within the device, all of `range` to the byte `offset` of `to` and on.
    ///
    /// # Errors
    /// If a memory has not that many bytes or is of another context; the driver's.
    pub fn copy(
        &self,
        from: &DeviceMemory,
        range: Range<usize>,
        to: &DeviceMemory,
        offset: usize,
    ) -> Result<(), Failure> {
        let bytes = range.end.saturating_sub(range.start);
        let source = self.place("the source of a copy", from, range.start, bytes)?;
        let target = self.place("the target of a copy", to, offset, bytes)?;
        self.enqueue(format!("a copy of {bytes} bytes on the device"), |functions, stream, _| {
            // SAFETY: `place` checked both.
            unsafe { functions.copy(target, source, bytes, stream) }
        })
    }

    /// Writes the same byte to all of `range`.
    ///
    /// # Errors
    /// If the memory has not that many bytes or is of another context; the driver's.
    pub fn fill(&self, memory: &DeviceMemory, range: Range<usize>, byte: u8) -> Result<(), Failure> {
        let bytes = range.end.saturating_sub(range.start);
        let target = self.place("the target of a fill", memory, range.start, bytes)?;
        self.enqueue(format!("a fill of {bytes} bytes"), |functions, stream, _| {
            // SAFETY: `place` checked the target.
            unsafe { functions.fill(target, byte, bytes, stream) }
        })
    }

    /// Launches a kernel.
    ///
    /// # Errors
    /// If the grid is none, or the kernel would access what is not alive memory of the stream's
    /// context; the driver's.
    ///
    /// # Safety
    /// `A` is the parameter of the function's kernel, and the kernel is right for this grid.
    pub unsafe fn launch<A: Argument>(&self, function: &Function, grid: Grid, argument: &A) -> Result<(), Failure> {
        self.same_context("the kernel", function.context())?;
        let named = |why| self.context.refuse(format!("kernel {}: {why}", function.name()));
        check_grid(grid, function.most_threads()).map_err(named)?;
        let accesses: Vec<Access> = argument.accesses();
        let mut parameters = [ptr::from_ref(argument).cast_mut().cast()];
        self.enqueue_checked(
            format!("kernel {}", function.name()),
            |shared| accesses.iter().try_for_each(|access| check_access(access, shared)).map_err(named),
            |functions, stream, _| {
                // SAFETY: the function is of a loaded module, which stays until the launch has ended,
                // because its context unloads nothing before. By the caller's promise its parameter
                // is the argument, which the driver copies. By `Argument`'s promise it accesses only
                // the checked bytes; these stay until the launch has ended, too.
                unsafe {
                    functions.launch(
                        function.handle(),
                        grid.blocks,
                        1,
                        1,
                        grid.threads,
                        1,
                        1,
                        0,
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
        self.same_context("the event", &event.context)?;
        // SAFETY: both handles are alive.
        self.enqueue("an event".to_owned(), |functions, stream, _| unsafe {
            functions.record_event(event.handle, stream)
        })
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

    /// Waits until all work has ended, at most until `deadline`.
    ///
    /// # Errors
    /// Those of the work. A timeout names the last work on the stream.
    pub fn wait(&self, deadline: Instant) -> Result<(), Failure> {
        let begin = Instant::now();
        match poll(deadline, || self.is_done())? {
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
        call: impl FnOnce(&Functions, CUstream, &Shared) -> Result<(), DriverError>,
    ) -> Result<(), Failure> {
        self.enqueue_checked(what, |_| Ok(()), call)
    }

    /// Checks and calls while nothing can be freed.
    fn enqueue_checked(
        &self,
        what: String,
        check: impl FnOnce(&Shared) -> Result<(), Failure>,
        call: impl FnOnce(&Functions, CUstream, &Shared) -> Result<(), DriverError>,
    ) -> Result<(), Failure> {
        let shared = self.context.lock();
        check(&shared)?;
        let _entered = self.context.done(self.context.enter())?;
        self.context.done(call(self.context.functions(), self.handle, &shared))?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = what;
        Ok(())
    }

    /// Returns the address of `bytes` bytes of the memory, from its byte `offset` on.
    fn place(&self, name: &str, memory: &DeviceMemory, offset: usize, bytes: usize) -> Result<u64, Failure> {
        self.same_context(name, memory.context())?;
        let left = memory.bytes().checked_sub(offset).filter(|&left| bytes <= left);
        let Some(_) = left else {
            let size = memory.bytes();
            return Err(self
                .context
                .refuse(format!("{name}: expected {bytes} bytes from byte {offset} on, of {size}")));
        };
        Ok(memory.address() + offset as u64)
    }

    fn same_context(&self, name: &str, other: &Context) -> Result<(), Failure> {
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
        self.context.retire(Retired::Stream(self.handle));
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
        let _entered = context.done(context.enter())?;
        let mut handle = CUevent::NULL;
        // SAFETY: writes a handle; the context is current.
        context.done(unsafe { context.functions().create_event(&mut handle, EVENT_DEFAULT) })?;
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
