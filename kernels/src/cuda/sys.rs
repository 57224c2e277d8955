//! Declarations of the driver's functions, and how they are found in its library.
//!
//! A function has one row in [`for_each_driver_function!`](crate::for_each_driver_function). The
//! types and numbers are those of NVIDIA's `cuda.h`, which keeps them for all later drivers.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A device's number, as the driver has it.
pub type CUdevice = c_int;
/// An address in the memory of a device.
pub type CUdeviceptr = u64;
/// The bytes of a device's UUID.
pub type CUuuid = [u8; 16];
/// The result of a function of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct CUresult(pub c_int);

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// No handle.
            pub const NULL: $name = $name(std::ptr::null_mut());
        }

        // SAFETY: a handle is a name that only the driver looks up. The driver takes it from any
        // thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context: a device as this process uses it.
    CUcontext
    /// A loaded module.
    CUmodule
    /// A kernel of a module.
    CUfunction
    /// A stream.
    CUstream
    /// An event.
    CUevent
}

macro_rules! results {
    ($($(#[$doc:meta])* $name:ident = $code:literal)*) => {
        impl CUresult {
            $($(#[$doc])* pub const $name: CUresult = CUresult($code);)*
        }
    };
}

results! {
    /// The function did what it was asked.
    SUCCESS = 0
    /// An argument is outside its range.
    INVALID_VALUE = 1
    /// The device has too little memory.
    OUT_OF_MEMORY = 2
    /// `cuInit` was not called.
    NOT_INITIALIZED = 3
    /// The library is the toolkit's stub for linkers, and no driver.
    STUB_LIBRARY = 34
    /// There is no device.
    NO_DEVICE = 100
    /// There is no device of this number.
    INVALID_DEVICE = 101
    /// No context is current on the thread.
    INVALID_CONTEXT = 201
    /// The text is no valid PTX.
    INVALID_PTX = 218
    /// The PTX is of a later version than the driver knows.
    UNSUPPORTED_PTX_VERSION = 222
    /// A handle names nothing.
    INVALID_HANDLE = 400
    /// There is nothing of this name.
    NOT_FOUND = 500
    /// The work has not ended yet.
    NOT_READY = 600
    /// A kernel accessed memory that is not there.
    ILLEGAL_ADDRESS = 700
    /// A kernel took longer than the system lets it.
    LAUNCH_TIMEOUT = 702
    /// A kernel failed.
    LAUNCH_FAILED = 719
    /// An error that has no other code.
    UNKNOWN = 999
}

/// Properties of a device that `cuDeviceGetAttribute` returns.
pub mod attribute {
    use std::ffi::c_int;

    /// The maximum number of threads of a block.
    pub const MAX_THREADS_PER_BLOCK: c_int = 1;
    /// The number of multiprocessors.
    pub const MULTIPROCESSOR_COUNT: c_int = 16;
    /// The first number of the compute capability.
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// The second number of the compute capability.
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
}

/// Properties of a kernel that `cuFuncGetAttribute` returns.
pub mod function_attribute {
    use std::ffi::c_int;

    /// The maximum number of threads of a block of this kernel.
    pub const MAX_THREADS_PER_BLOCK: c_int = 0;
    /// The number of registers of a thread.
    pub const REGISTERS: c_int = 4;
}

/// Properties of an address that `cuPointerGetAttributes` returns.
pub mod pointer_attribute {
    use std::ffi::c_int;

    /// The kind of memory: [`HOST`] or [`DEVICE`]; 0 if the driver does not know the address.
    pub const MEMORY_TYPE: c_int = 2;
    /// The number of the device.
    pub const DEVICE_ORDINAL: c_int = 9;
    /// The first address of the allocation.
    pub const RANGE_START: c_int = 11;
    /// The number of bytes of the allocation.
    pub const RANGE_BYTES: c_int = 12;

    /// Memory of the host.
    pub const HOST: u32 = 1;
    /// Memory of a device.
    pub const DEVICE: u32 = 2;
}

/// Options of the compiler in the driver.
pub mod jit {
    use std::ffi::c_int;

    /// The buffer for its messages.
    pub const INFO_LOG: c_int = 3;
    /// The number of bytes of that buffer.
    pub const INFO_LOG_BYTES: c_int = 4;
    /// The buffer for errors.
    pub const ERROR_LOG: c_int = 5;
    /// The number of bytes of that buffer.
    pub const ERROR_LOG_BYTES: c_int = 6;
}

/// A stream that does not wait for the work of the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;

/// An event with a time.
pub const EVENT_DEFAULT: c_uint = 0;

/// An event without a time.
pub const EVENT_DISABLE_TIMING: c_uint = 2;

/// A wait of a stream for an event without options.
pub const WAIT_DEFAULT: c_uint = 0;

/// Calls a macro with the functions of the driver that Consonance calls: a method's name, the name
/// in the library, and the arguments.
#[macro_export]
macro_rules! for_each_driver_function {
    ($callback:ident) => {
        $callback! {
            init = cuInit(flags: c_uint);
            error_name = cuGetErrorName(code: CUresult, text: *mut *const c_char);
            error_string = cuGetErrorString(code: CUresult, text: *mut *const c_char);
            driver_version = cuDriverGetVersion(version: *mut c_int);
            device_count = cuDeviceGetCount(count: *mut c_int);
            device = cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
            device_name = cuDeviceGetName(name: *mut c_char, bytes: c_int, device: CUdevice);
            device_uuid = cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
            device_attribute = cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
            device_memory = cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
            retain_context = cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
            release_context = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
            push_context = cuCtxPushCurrent_v2(context: CUcontext);
            pop_context = cuCtxPopCurrent_v2(context: *mut CUcontext);
            load_module = cuModuleLoadDataEx(
                module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int,
                values: *mut *mut c_void
            );
            unload_module = cuModuleUnload(module: CUmodule);
            module_function = cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
            function_attribute = cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction);
            memory_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            alloc = cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
            free = cuMemFree_v2(address: CUdeviceptr);
            pointer_attributes = cuPointerGetAttributes(
                count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: CUdeviceptr
            );
            alloc_host = cuMemAllocHost_v2(memory: *mut *mut c_void, bytes: usize);
            free_host = cuMemFreeHost(memory: *mut c_void);
            copy_to_device = cuMemcpyHtoDAsync_v2(
                to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream
            );
            copy_to_host = cuMemcpyDtoHAsync_v2(
                to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream
            );
            copy = cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
            fill = cuMemsetD8Async(to: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);
            create_stream = cuStreamCreate(stream: *mut CUstream, flags: c_uint);
            query_stream = cuStreamQuery(stream: CUstream);
            destroy_stream = cuStreamDestroy_v2(stream: CUstream);
            stream_context = cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
            is_capturing = cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
            wait_event = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
            create_event = cuEventCreate(event: *mut CUevent, flags: c_uint);
            record_event = cuEventRecord(event: CUevent, stream: CUstream);
            query_event = cuEventQuery(event: CUevent);
            elapsed = cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);
            destroy_event = cuEventDestroy_v2(event: CUevent);
            launch = cuLaunchKernel(
                function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
                block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void,
                extra: *mut *mut c_void
            );
        }
    };
}

macro_rules! declare {
    ($($method:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        /// The driver's functions, each as a pointer of its type.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $(#[doc = concat!("`", stringify!($symbol), "`")]
            pub $method: unsafe extern "system" fn($($argument: $type),*) -> CUresult,)*
        }

        /// The functions' names in the library.
        pub const SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];

        impl Functions {
            /// Finds the functions in a library.
            ///
            /// # Safety
            /// The library's functions of these names are the driver's. It stays loaded while they
            /// are used.
            ///
            /// # Errors
            /// The first name that the library lacks.
            pub(super) unsafe fn of(library: &libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($method: {
                        let name = concat!(stringify!($symbol), "\0").as_bytes();
                        // SAFETY: by the caller's promise the symbol is a function of this type.
                        *unsafe { library.get(name) }.map_err(|_| stringify!($symbol))?
                    },)*
                })
            }
        }
    };
}

for_each_driver_function!(declare);
