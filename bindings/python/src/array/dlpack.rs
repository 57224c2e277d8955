//! The structs of DLPack 1, by which libraries of arrays exchange tensors: `dlpack.h`.

use std::ffi::{CStr, c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Device {
    pub(super) kind: c_int,
    pub(super) id: i32,
}

impl Device {
    /// Whether this process reads and writes the device's memory as its own: `kDLCPU`,
    /// `kDLCUDAHost` and `kDLROCMHost`.
    pub(super) fn is_host(self) -> bool {
        matches!(self.kind, 1 | 3 | 11)
    }

    /// Returns the number of the GPU of NVIDIA's: `kDLCUDA`.
    pub(super) fn gpu(self) -> Option<usize> {
        usize::try_from(self.id).ok().filter(|_| self.kind == 2)
    }

    pub(super) fn name(self) -> String {
        let kind = match self.kind {
            2 | 13 => "cuda",
            4 => "opencl",
            7 => "vulkan",
            8 => "metal",
            10 => "rocm",
            14 => "oneapi",
            15 => "webgpu",
            kind => return format!("device type {kind} of DLPack"),
        };
        format!("{kind}:{}", self.id)
    }
}

#[repr(C)]
pub(super) struct DataType {
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
pub(super) struct Tensor {
    pub(super) data: *mut c_void,
    pub(super) device: Device,
    pub(super) dimensions: i32,
    pub(super) dtype: DataType,
    pub(super) shape: *const i64,
    /// In elements. Null if the elements follow each other.
    pub(super) strides: *const i64,
    pub(super) byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub(super) struct Versioned {
    pub(super) version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub(super) flags: u64,
    pub(super) tensor: Tensor,
}

/// The flag of a tensor that must not be written.
pub(super) const READ_ONLY: u64 = 1;

/// `DLPackExchangeAPI`: a table of functions of a type, which are called with the interpreter's
/// lock.
#[repr(C)]
pub(super) struct Exchange {
    pub(super) version: [u32; 2],
    previous: *const c_void,
    allocate: Option<unsafe extern "C" fn()>,
    managed: Option<unsafe extern "C" fn()>,
    to_object: Option<unsafe extern "C" fn()>,
    /// Fills in a view of an object's memory, which is valid while the object is not changed.
    /// Returns 0, or -1 with an exception set.
    pub(super) view: Option<View>,
    stream: Option<unsafe extern "C" fn()>,
}

pub(super) type View = unsafe extern "C" fn(object: *mut c_void, view: *mut Tensor) -> c_int;

/// The names of the capsules of [`Exchange`], [`Versioned`] and, before DLPack 1, [`Tensor`].
pub(super) const EXCHANGE: &CStr = c"dlpack_exchange_api";
pub(super) const VERSIONED: &CStr = c"dltensor_versioned";
pub(super) const UNVERSIONED: &CStr = c"dltensor";
