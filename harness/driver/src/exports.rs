//! The functions of the driver.

use crate::{
    event::{Event, Record},
    machine::Machine,
    objects::{Objects, call},
    pinned_memory::Pinned,
    texts::text,
    work::{Stream, Work},
};
use consonance_kernels::{
    cuda::{
        INTERPRETER,
        sys::{
            CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream, CUuuid, Functions,
            attribute, function_attribute, jit, pointer_attribute,
        },
    },
    for_each_driver_function,
};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    slice,
    sync::Arc,
};

/// The version of the driver: 12.0.
const VERSION: c_int = 12_000;

/// The device's compute capability, its number of multiprocessors, and the largest block.
const CAPABILITY: (c_int, c_int) = (7, 5);
const MULTIPROCESSORS: c_int = 2;
const MOST_THREADS: c_int = 1024;

macro_rules! table {
    ($($method:ident = $symbol:ident($($rest:tt)*);)*) => {
        /// The functions. That this compiles shows that each has the type that `sys` declares, and
        /// that none is absent.
        pub const FUNCTIONS: Functions = Functions { $($method: $symbol),* };
    };
}

for_each_driver_function!(table);

/// Defines functions of the driver. The first name in the brackets is the state's.
macro_rules! exports {
    ($(fn $symbol:ident($state:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        /// The driver's function of this name.
        ///
        /// # Safety
        /// As the driver's manual demands: pointers are valid for what the function reads and
        /// writes.
        #[allow(non_snake_case, reason = "the driver's name")]
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $symbol($($argument: $type),*) -> CUresult {
            call(stringify!($symbol), move |$state| $body)
        }
    )*};
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` is null, or valid for a write.
///
/// # Errors
/// If `to` is null.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), CUresult> {
    if to.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

exports! {
    fn cuInit(state, flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        state.is_initialized = true;
        if state.plan.devices == 0 { Err(CUresult::NO_DEVICE) } else { Ok(()) }
    }

    fn cuGetErrorName(_state, code: CUresult, to: *mut *const c_char) {
        let (name, _) = text(code).ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: by the caller's promise.
        unsafe { give(to, name.as_ptr()) }
    }

    fn cuGetErrorString(_state, code: CUresult, to: *mut *const c_char) {
        let (_, words) = text(code).ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: by the caller's promise.
        unsafe { give(to, words.as_ptr()) }
    }

    fn cuDriverGetVersion(_state, version: *mut c_int) {
        // SAFETY: by the caller's promise.
        unsafe { give(version, VERSION) }
    }

    fn cuDeviceGetCount(state, count: *mut c_int) {
        // SAFETY: by the caller's promise.
        unsafe { give(count, state.plan.devices as c_int) }
    }

    fn cuDeviceGet(state, to: *mut CUdevice, ordinal: c_int) {
        state.numbered(ordinal)?;
        // SAFETY: by the caller's promise.
        unsafe { give(to, ordinal) }
    }

    fn cuDeviceGetName(state, name: *mut c_char, bytes: c_int, number: CUdevice) {
        state.numbered(number)?;
        let room = usize::try_from(bytes).map_err(|_| CUresult::INVALID_VALUE)?;
        if name.is_null() || room <= INTERPRETER.len() {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: by the caller's promise there is room for that many bytes.
        let to = unsafe { slice::from_raw_parts_mut(name.cast::<u8>(), INTERPRETER.len() + 1) };
        to[..INTERPRETER.len()].copy_from_slice(INTERPRETER.as_bytes());
        to[INTERPRETER.len()] = 0;
        Ok(())
    }

    fn cuDeviceGetUuid_v2(state, uuid: *mut CUuuid, number: CUdevice) {
        let number = state.numbered(number)?;
        // SAFETY: by the caller's promise.
        unsafe { give(uuid, state.plan.uuid(number)) }
    }

    fn cuDeviceGetAttribute(state, value: *mut c_int, name: c_int, number: CUdevice) {
        state.numbered(number)?;
        let found = match name {
            attribute::COMPUTE_CAPABILITY_MAJOR => CAPABILITY.0,
            attribute::COMPUTE_CAPABILITY_MINOR => CAPABILITY.1,
            attribute::MULTIPROCESSOR_COUNT => MULTIPROCESSORS,
            attribute::MAX_THREADS_PER_BLOCK => MOST_THREADS,
            _ => return Err(CUresult::INVALID_VALUE),
        };
        // SAFETY: by the caller's promise.
        unsafe { give(value, found) }
    }

    fn cuDeviceTotalMem_v2(state, bytes: *mut usize, number: CUdevice) {
        state.numbered(number)?;
        // SAFETY: by the caller's promise.
        unsafe { give(bytes, state.plan.memory) }
    }

    fn cuDevicePrimaryCtxRetain(state, context: *mut CUcontext, number: CUdevice) {
        let number = state.numbered(number)?;
        // SAFETY: by the caller's promise.
        unsafe { give(context, CUcontext(Objects::context_of(number) as *mut c_void))? };
        *state.retained.entry(number).or_default() += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(state, number: CUdevice) {
        let number = state.numbered(number)?;
        state.expect_idle("cuDevicePrimaryCtxRelease_v2");
        match state.retained.get_mut(&number).filter(|count| **count > 0) {
            Some(count) => {
                *count -= 1;
                Ok(())
            }
            None => state.misused("released a context that is not retained", CUresult::INVALID_CONTEXT),
        }
    }

    fn cuCtxPushCurrent_v2(state, context: CUcontext) {
        state.push_context(context.0 as u64)
    }

    fn cuCtxPopCurrent_v2(state, context: *mut CUcontext) {
        let left = state.pop_context()?;
        // SAFETY: by the caller's promise.
        unsafe { give(context, CUcontext(left as *mut c_void)) }
    }

    fn cuModuleLoadDataEx(
        state, module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int,
        values: *mut *mut c_void,
    ) {
        state.device()?;
        if image.is_null() || count > 0 && (options.is_null() || values.is_null()) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: by the caller's promise the image is a text that ends with a zero, and there are
        // as many options and values as `count` says.
        let (image, options, values) = unsafe {
            let count = count as usize;
            let (options, values) = match count {
                0 => (&[][..], &[][..]),
                _ => (slice::from_raw_parts(options, count), slice::from_raw_parts(values, count)),
            };
            (CStr::from_ptr(image.cast()), options, values)
        };
        let value = |name| options.iter().zip(values).find(|(option, _)| **option == name).map(|(_, value)| *value);
        let log = value(jit::ERROR_LOG).zip(value(jit::ERROR_LOG_BYTES)).map(|(log, bytes)| (log, bytes as usize));
        match image.to_str().map_err(|error| error.to_string()).and_then(Machine::load) {
            Ok(program) => {
                let handle = state.new_handle();
                state.modules.insert(handle, program);
                // SAFETY: by the caller's promise.
                unsafe { give(module, CUmodule(handle as *mut c_void)) }
            }
            Err(why) => {
                if let Some((log, bytes)) = log.filter(|(log, bytes)| !log.is_null() && *bytes > 0) {
                    let kept = &why.as_bytes()[..why.len().min(bytes - 1)];
                    // SAFETY: by the caller's promise the log has that many bytes.
                    let log = unsafe { slice::from_raw_parts_mut(log.cast::<u8>(), kept.len() + 1) };
                    log[..kept.len()].copy_from_slice(kept);
                    log[kept.len()] = 0;
                }
                Err(CUresult::INVALID_PTX)
            }
        }
    }

    fn cuModuleUnload(state, module: CUmodule) {
        state.device()?;
        state.expect_idle("cuModuleUnload");
        let module = module.0 as u64;
        state.kernels.retain(|_, (of, _)| *of != module);
        match state.modules.remove(&module) {
            Some(_) => Ok(()),
            None => state.misused("unloaded a module that is not loaded", CUresult::INVALID_HANDLE),
        }
    }

    fn cuModuleGetFunction(state, function: *mut CUfunction, module: CUmodule, name: *const c_char) {
        state.device()?;
        let module = module.0 as u64;
        let Some(program) = state.modules.get(&module) else {
            return state.misused("asked a module that is not loaded", CUresult::INVALID_HANDLE);
        };
        // SAFETY: by the caller's promise the name ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUresult::NOT_FOUND)?;
        let kernel = Arc::new(program.kernel(name).ok_or(CUresult::NOT_FOUND)?);
        let handle = state.new_handle();
        state.kernels.insert(handle, (module, kernel));
        // SAFETY: by the caller's promise.
        unsafe { give(function, CUfunction(handle as *mut c_void)) }
    }

    fn cuFuncGetAttribute(state, value: *mut c_int, name: c_int, function: CUfunction) {
        if !state.kernels.contains_key(&(function.0 as u64)) {
            return state.misused("asked a kernel that is not loaded", CUresult::INVALID_HANDLE);
        }
        let found = match name {
            // A launch fails that has more threads than its kernel allows.
            function_attribute::MAX_THREADS_PER_BLOCK => MOST_THREADS,
            // The interpreter gives each register of the text one of its own.
            function_attribute::REGISTERS => 0,
            _ => return Err(CUresult::INVALID_VALUE),
        };
        // SAFETY: by the caller's promise.
        unsafe { give(value, found) }
    }

    fn cuMemGetInfo_v2(state, free: *mut usize, total: *mut usize) {
        state.device()?;
        // SAFETY: by the caller's promise.
        unsafe {
            give(free, state.plan.memory.saturating_sub(state.machine.bytes()))?;
            give(total, state.plan.memory)
        }
    }

    fn cuMemAlloc_v2(state, address: *mut CUdeviceptr, bytes: usize) {
        let device = state.device()?;
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if bytes > state.plan.memory.saturating_sub(state.machine.bytes()) {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        let allocated = state.machine.allocate(device, bytes);
        // SAFETY: by the caller's promise.
        unsafe { give(address, allocated) }
    }

    fn cuMemFree_v2(state, address: CUdeviceptr) {
        state.device()?;
        state.expect_idle("cuMemFree_v2");
        match state.machine.free(address) {
            true => Ok(()),
            false => state.misused("freed memory that is not alive", CUresult::INVALID_VALUE),
        }
    }

    fn cuPointerGetAttributes(
        state, count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: CUdeviceptr,
    ) {
        state.device()?;
        let on_device = state.machine.allocation_at(address);
        let is_pinned = on_device.is_none()
            && state.pinned.range(..=address as usize).next_back().is_some_and(|(start, pinned)| {
                address as usize - start < pinned.bytes()
            });
        let (start, bytes, device) = on_device.unwrap_or_default();
        for index in 0..count as usize {
            // SAFETY: by the caller's promise there are so many attributes, each with a place for a
            // value of its type.
            unsafe {
                let value = *values.add(index);
                match *attributes.add(index) {
                    pointer_attribute::MEMORY_TYPE => give::<u32>(value.cast(), match (on_device, is_pinned) {
                        (Some(_), _) => pointer_attribute::DEVICE,
                        (None, true) => pointer_attribute::HOST,
                        (None, false) => 0,
                    })?,
                    pointer_attribute::DEVICE_ORDINAL => give::<c_int>(value.cast(), match on_device {
                        Some(_) => device as c_int,
                        None => -2,
                    })?,
                    pointer_attribute::RANGE_START => give::<CUdeviceptr>(value.cast(), start)?,
                    pointer_attribute::RANGE_BYTES => give::<usize>(value.cast(), bytes)?,
                    _ => return Err(CUresult::INVALID_VALUE),
                }
            }
        }
        Ok(())
    }

    fn cuMemAllocHost_v2(state, memory: *mut *mut c_void, bytes: usize) {
        state.device()?;
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let pinned = Pinned::new(bytes).ok_or(CUresult::OUT_OF_MEMORY)?;
        let address = pinned.address();
        state.pinned.insert(address, pinned);
        // SAFETY: by the caller's promise.
        unsafe { give(memory, address as *mut c_void) }
    }

    fn cuMemFreeHost(state, memory: *mut c_void) {
        state.device()?;
        state.expect_idle("cuMemFreeHost");
        match state.pinned.remove(&(memory as usize)) {
            Some(_) => Ok(()),
            None => state.misused("freed pinned memory that is not alive", CUresult::INVALID_VALUE),
        }
    }

    fn cuMemcpyHtoDAsync_v2(state, to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        state.enqueue(stream.0 as u64, Work::Write { from: from as usize, to, bytes })
    }

    fn cuMemcpyDtoHAsync_v2(state, to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        state.copies += 1;
        let has_wrong_bit = state.plan.flip == Some(state.copies);
        state.enqueue(stream.0 as u64, Work::Read { from, to: to as usize, bytes, has_wrong_bit })
    }

    fn cuMemcpyDtoDAsync_v2(state, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        state.enqueue(stream.0 as u64, Work::Copy { from, to, bytes })
    }

    fn cuMemsetD8Async(state, to: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream) {
        state.enqueue(stream.0 as u64, Work::Fill { to, byte, bytes })
    }

    fn cuStreamCreate(state, stream: *mut CUstream, _flags: c_uint) {
        let device = state.device()?;
        let handle = state.new_handle();
        state.streams.insert(handle, Stream::new(device));
        // SAFETY: by the caller's promise.
        unsafe { give(stream, CUstream(handle as *mut c_void)) }
    }

    fn cuStreamGetCtx(state, stream: CUstream, context: *mut CUcontext) {
        state.device()?;
        let Some(of) = state.streams.get(&(stream.0 as u64)).map(|stream| stream.device) else {
            return state.misused("asked a stream that is not alive", CUresult::INVALID_HANDLE);
        };
        // SAFETY: by the caller's promise.
        unsafe { give(context, CUcontext(Objects::context_of(of) as *mut c_void)) }
    }

    fn cuStreamIsCapturing(state, stream: CUstream, status: *mut c_int) {
        state.device()?;
        if !state.streams.contains_key(&(stream.0 as u64)) {
            return state.misused("asked a stream that is not alive", CUresult::INVALID_HANDLE);
        }
        // SAFETY: by the caller's promise.
        unsafe { give(status, state.plan.captures.into()) }
    }

    fn cuStreamQuery(state, stream: CUstream) {
        match state.query(stream.0 as u64)? {
            true => Ok(()),
            false => Err(CUresult::NOT_READY),
        }
    }

    fn cuStreamDestroy_v2(state, stream: CUstream) {
        state.device()?;
        match state.streams.remove(&(stream.0 as u64)) {
            Some(stream) if stream.has_work() => {
                state.misused("destroyed a stream that has work", CUresult::SUCCESS)
            }
            Some(_) => Ok(()),
            None => state.misused("destroyed a stream that is not alive", CUresult::INVALID_HANDLE),
        }
    }

    fn cuEventCreate(state, event: *mut CUevent, _flags: c_uint) {
        state.device()?;
        let handle = state.new_handle();
        state.events.insert(handle, Event::default());
        // SAFETY: by the caller's promise.
        unsafe { give(event, CUevent(handle as *mut c_void)) }
    }

    fn cuEventRecord(state, event: CUevent, stream: CUstream) {
        let (event, point) = (event.0 as u64, Record::new(stream.0 as u64));
        if !state.events.contains_key(&event) {
            return state.misused("recorded an event that is not alive", CUresult::INVALID_HANDLE);
        }
        state.enqueue(point.stream, Work::Event(point.clone()))?;
        state.events.insert(event, Event { recorded: Some(point) });
        Ok(())
    }

    fn cuStreamWaitEvent(state, stream: CUstream, event: CUevent, flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let Some(event) = state.events.get(&(event.0 as u64)) else {
            return state.misused("waits for an event that is not alive", CUresult::INVALID_HANDLE);
        };
        // An event that was never recorded is over.
        match event.recorded.clone() {
            Some(point) => state.enqueue(stream.0 as u64, Work::Wait(point)),
            None => Ok(()),
        }
    }

    fn cuEventQuery(state, event: CUevent) {
        let Some(event) = state.events.get(&(event.0 as u64)) else {
            return state.misused("asked an event that is not alive", CUresult::INVALID_HANDLE);
        };
        let Some(point) = event.recorded.clone() else { return Ok(()) };
        if point.time().is_none() {
            state.advance(point.stream, Some(&point))?;
        }
        point.time().map(drop).ok_or(CUresult::NOT_READY)
    }

    fn cuEventElapsedTime(state, milliseconds: *mut f32, from: CUevent, to: CUevent) {
        let event = |event: CUevent| state.events.get(&(event.0 as u64));
        let (Some(from), Some(to)) = (event(from), event(to)) else {
            return state.misused("asked an event that is not alive", CUresult::INVALID_HANDLE);
        };
        let (from, to) = from.recorded.as_ref().zip(to.recorded.as_ref()).ok_or(CUresult::INVALID_HANDLE)?;
        let (from, to) = from.time().zip(to.time()).ok_or(CUresult::NOT_READY)?;
        // SAFETY: by the caller's promise.
        unsafe { give(milliseconds, to.saturating_duration_since(from).as_secs_f32() * 1e3) }
    }

    fn cuEventDestroy_v2(state, event: CUevent) {
        match state.events.remove(&(event.0 as u64)) {
            Some(_) => Ok(()),
            None => state.misused("destroyed an event that is not alive", CUresult::INVALID_HANDLE),
        }
    }

    fn cuLaunchKernel(
        state, function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let Some((_, kernel)) = state.kernels.get(&(function.0 as u64)) else {
            return state.misused("launched a kernel that is not loaded", CUresult::INVALID_HANDLE);
        };
        let kernel = Arc::clone(kernel);
        if shared_bytes != 0 || !extra.is_null() || parameters.is_null() {
            return state.misused("launched with arguments that this driver does not take", CUresult::INVALID_VALUE);
        }
        let mut bytes = Vec::new();
        for (index, (offset, size)) in kernel.parameters().into_iter().enumerate() {
            bytes.resize(offset, 0);
            // SAFETY: by the caller's promise there is a pointer for each parameter of the kernel,
            // to as many bytes as the parameter has.
            bytes.extend_from_slice(unsafe { slice::from_raw_parts((*parameters.add(index)).cast::<u8>(), size) });
        }
        let (blocks, threads) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        state.enqueue(stream.0 as u64, Work::Launch { kernel, blocks, threads, parameters: bytes })
    }
}
