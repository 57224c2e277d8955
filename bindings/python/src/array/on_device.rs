//! Arrays in the memory of a GPU: by DLPack, or by `__cuda_array_interface__`.
//!
//! The stream of the ranks' work on the GPU begins that work after what has made the array: its
//! library is told of the stream, or tells one of its own. A call has ended on the GPU when it
//! returns, or when its request has ended, so that any stream may use the result.

use super::{Arrangement, Array, dlpack, lazy_views::Lazy};
use crate::{failure::Bad, types};
use consonance::raw::{CallerStream, Space};
use pyo3::{exceptions::PyKeyError, intern, prelude::*, types::PyDict};
use std::ffi::c_void;

/// Returns the memory of a device. That of a GPU counts once a communicator of this process is on
/// the GPU.
pub(super) fn space(device: dlpack::Device, argument: &'static str) -> Result<Space, Bad> {
    match device.gpu().filter(|&gpu| CallerStream::handle_of_ranks(gpu).is_some()) {
        Some(gpu) => Ok(Space::Cuda(gpu as u32)),
        None if device.is_host() => Ok(Space::Host),
        None => Err(Bad::value(argument, "an array in host memory", device.name())),
    }
}

/// Adds the stream of the ranks to the options of an export, for an array in the memory of a GPU.
pub(super) fn set_stream(options: &Bound<'_, PyDict>, space: Space) -> PyResult<()> {
    let handle = match space {
        Space::Host => None,
        Space::Cuda(gpu) => CallerStream::handle_of_ranks(gpu as usize),
    };
    handle.map_or(Ok(()), |handle| options.set_item(intern!(options.py(), "stream"), handle.addr()))
}

impl Array {
    /// Checks that the elements of an array in the memory of a GPU follow each other: no copy of
    /// them is made.
    pub(super) fn checked(self, argument: &'static str) -> Result<Array, Bad> {
        match (self.space, &self.arrangement) {
            (Space::Host, _) | (_, Arrangement::Packed) => Ok(self),
            (Space::Cuda(_), Arrangement::Apart(_) | Arrangement::Listed(_)) => {
                let found = format!("others, in memory of {}", self.space);
                Err(Bad::value(argument, "elements that follow each other and are aligned", found))
            }
        }
    }

    /// Returns the view of an object by `__cuda_array_interface__`; `None` if it has none.
    pub(super) fn of_cuda_interface(object: &Bound<'_, PyAny>, argument: &'static str) -> Result<Option<Array>, Bad> {
        let py = object.py();
        let Ok(interface) = object.getattr(intern!(py, "__cuda_array_interface__")) else { return Ok(None) };
        let get = |name: &str| match interface.get_item(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_none())),
            Err(error) if error.is_instance_of::<PyKeyError>(py) => Ok(None),
            Err(error) => Err(error),
        };
        let must = |name: &str| get(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()));
        if get("mask")?.is_some() {
            return Err(Bad::masked(argument));
        }
        let typestr: String = must("typestr")?.extract()?;
        let of = match typestr.as_bytes() {
            [b'<' | b'|', kind, bytes @ ..] => {
                let bytes = std::str::from_utf8(bytes).ok().and_then(|bytes| bytes.parse().ok());
                bytes.and_then(|bytes| types::of_numpy(*kind, bytes))
            }
            _ => None,
        };
        let of = of.ok_or_else(|| Bad::dtype(argument, format!("{typestr:?} of __cuda_array_interface__")))?;
        let (shape, strides) = (must("shape")?.extract::<Vec<usize>>()?, get("strides")?);
        let strides = strides.map(|strides| strides.extract::<Vec<isize>>()).transpose()?;
        let (address, is_read_only) = must("data")?.extract::<(usize, bool)>()?;
        let start = std::ptr::without_provenance_mut(address);
        let count: usize = shape.iter().product();
        if strides.as_ref().is_some_and(|strides| strides.len() != shape.len()) {
            return Err(Bad::value(argument, "a stride for each dimension", "others"));
        }
        let gpu = CallerStream::gpu_of_address(address as u64);
        let space = match gpu {
            Some(gpu) => Space::Cuda(gpu as u32),
            None if count == 0 => Space::Host,
            None => return Err(Bad::value(argument, "an array in host memory", "memory of another device")),
        };
        let array = match strides {
            None => {
                let arrangement = Arrangement::Packed;
                Array { start, count, of, space, arrangement, lazy: Lazy::default(), is_read_only }
            }
            Some(strides) => Array { space, ..Array::new(start, of, &shape, |axis| strides[axis], is_read_only) },
        };
        if let Some((gpu, stream)) = gpu.zip(get("stream")?) {
            let handle: *mut c_void = std::ptr::without_provenance_mut(stream.extract::<usize>()?);
            // SAFETY: the interface promises that it is a stream, as long as the object is.
            let ordered = unsafe { CallerStream::from_raw(gpu, handle) }.and_then(|stream| stream.precede());
            let expected = format!("a stream of cuda:{gpu} in __cuda_array_interface__");
            ordered.map_err(|error| Bad::value(argument, expected, error.to_string()))?;
        }
        array.checked(argument).map(Some)
    }
}
