//! Arrays of Python as buffers.
//!
//! **Invariant**: memory of an array is read and written only between the start of a call and its
//! end. A call that blocks borrows the array's object. A call that was started owns a reference to
//! it ([`Loans`]). Programs must not change an array's size, nor write to it, before the call ends:
//! the rule of all libraries that work on arrays without the interpreter's lock.

mod dlpack;
mod layout;
mod lazy_views;
mod loans;
mod on_device;

pub(crate) use loans::Loans;

use self::{layout::Layout, lazy_views::Lazy};
use crate::{
    failure::Bad,
    types::{self, bytes},
};
use consonance::{DType, SharedMemory, World, raw::Space};
use consonance_c::codes::Type;
use numpy::{
    PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
    npyffi::{_PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE},
};
use pyo3::{
    exceptions::{PyBufferError, PyRuntimeError},
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyCapsule, PyCapsuleMethods, PyDict, PyType},
};
use std::{mem::MaybeUninit, ops::Range};

/// The memory of an array and the type of its elements.
pub(crate) struct Array {
    start: *mut u8,
    count: usize,
    of: Type,
    /// The memory that the elements lie in.
    space: Space,
    arrangement: Arrangement,
    lazy: Lazy,
    is_read_only: bool,
}

/// The order of the elements in memory.
enum Arrangement {
    /// They follow each other.
    Packed,
    /// They are apart.
    Apart(Box<Layout>),
    /// They are those of several arrays, one after the other.
    Listed(Vec<Array>),
}

// SAFETY: an address may be used on any thread. The memory is used according to the invariant of
// this module.
unsafe impl Send for Array {}

impl Array {
    /// Returns the view of a NumPy array, or of any object with DLPack.
    pub(crate) fn of(object: &Bound<'_, PyAny>, argument: &'static str) -> Result<Array, Bad> {
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            return Array::of_numpy(array, argument);
        }
        let Exports { view, may_be_lazy } = Exports::of(&object.get_type());
        let array = match view {
            Some(view) => Array::of_view(object, view, argument)?,
            None => Array::of_capsule(object, argument)?,
        };
        if !may_be_lazy {
            return Ok(array);
        }
        if matches!(array.of.name, "u8" | "i8") {
            check_whole_bytes(object, argument)?;
        }
        let lazy = Lazy::of(object, array.of, argument)?;
        array.made_of(lazy).checked(argument)
    }

    /// Returns the view of an object by the function of its type.
    fn of_view(object: &Bound<'_, PyAny>, view: dlpack::View, argument: &'static str) -> Result<Array, Bad> {
        let mut tensor = MaybeUninit::<dlpack::Tensor>::uninit();
        // SAFETY: the function is that of the object's type, and the interpreter's lock is held.
        let status = unsafe { view(object.as_ptr().cast(), tensor.as_mut_ptr()) };
        if status != 0 {
            let raised = PyErr::fetch(object.py());
            let parts = bcomplex_parts(object).map(|parts| Array::of_view(&parts, view, argument));
            return parts.map_or_else(|| Err(undescribed(object, argument, raised)), |array| Ok(array?.of_pairs()));
        }
        // SAFETY: the function has filled it in.
        let tensor = unsafe { tensor.assume_init() };
        if tensor.device.gpu().is_some() {
            // The function orders nothing on a GPU.
            return Array::of_capsule(object, argument);
        }
        // SAFETY: the object is not changed meanwhile.
        unsafe { Array::of_tensor(&tensor, false, argument) }
    }

    fn of_numpy(array: &Bound<'_, PyUntypedArray>, argument: &'static str) -> Result<Array, Bad> {
        // A subclass: its mask would be ignored.
        if !array.is_exact_instance_of::<PyUntypedArray>() && array.hasattr(intern!(array.py(), "mask"))? {
            return Err(Bad::masked(argument));
        }
        let dtype = array.dtype();
        let of = match dtype.is_native_byteorder() {
            Some(false) => None,
            _ => types::of_numpy(dtype.kind(), dtype.itemsize())
                .or_else(|| types::of_name(&dtype.typeobj().name().ok()?.to_string())),
        };
        let of = of.ok_or_else(|| Bad::dtype(argument, dtype.to_string()))?;
        // SAFETY: the fields of an array may be read while its object is borrowed.
        let (start, flags) = unsafe {
            let fields = _PyArray_GET_ITEM_DATA(array.as_array_ptr());
            ((*fields).data.cast(), (*fields).flags)
        };
        let strides = array.strides();
        Ok(Array::new(start, of, array.shape(), |axis| strides[axis], flags & NPY_ARRAY_WRITEABLE == 0))
    }

    /// Returns the view of an object by its method `__dlpack__`.
    fn of_capsule(object: &Bound<'_, PyAny>, argument: &'static str) -> Result<Array, Bad> {
        let py = object.py();
        let Ok(export) = object.getattr(intern!(py, "__dlpack__")) else {
            let array = Array::of_cuda_interface(object, argument)?;
            return array.ok_or_else(|| Bad::object(argument, object));
        };
        // The device first: an object on a GPU would copy its data, or wait. What JAX traces has
        // none.
        let Ok(device) = object.getattr(intern!(py, "__dlpack_device__")) else {
            return Err(Bad::traced(argument, object));
        };
        let device = device.call0()?.extract::<(i32, i32)>()?;
        let space = on_device::space(dlpack::Device { kind: device.0, id: device.1 }, argument)?;
        let (options, least) = (PyDict::new(py), PyDict::new(py));
        options.set_item(intern!(py, "max_version"), (1, 0))?;
        on_device::set_stream(&options, space)?;
        on_device::set_stream(&least, space)?;
        // Libraries before DLPack 1 do not know the version.
        let exported = export.call((), Some(&options)).or_else(|_| export.call((), Some(&least)));
        let exported = exported.map_err(|raised| undescribed(object, argument, raised))?;
        let capsule = exported.cast_into::<PyCapsule>().map_err(PyErr::from)?;
        // Its destructor frees the tensor, since nobody takes it over. The object itself keeps the
        // memory.
        if let Ok(tensor) = capsule.pointer_checked(Some(dlpack::VERSIONED)) {
            // SAFETY: a capsule of this name has such a struct.
            let tensor = unsafe { tensor.cast::<dlpack::Versioned>().as_ref() };
            if tensor.version[0] == 1 {
                let is_read_only = tensor.flags & dlpack::READ_ONLY != 0;
                // SAFETY: the capsule keeps what the struct points to.
                return unsafe { Array::of_tensor(&tensor.tensor, is_read_only, argument) };
            }
        }
        let tensor = capsule.pointer_checked(Some(dlpack::UNVERSIONED))?;
        // SAFETY: as above. The older struct begins with the tensor. It cannot tell whether the
        // tensor may be written: JAX's, which use it, may not.
        unsafe { Array::of_tensor(tensor.cast::<dlpack::Tensor>().as_ref(), true, argument) }
    }

    /// # Safety
    /// The tensor's shape and strides may be read.
    unsafe fn of_tensor(tensor: &dlpack::Tensor, is_read_only: bool, argument: &'static str) -> Result<Array, Bad> {
        let space = on_device::space(tensor.device, argument)?;
        let dlpack::DataType { code, bits, lanes } = tensor.dtype;
        let of = types::of_dlpack(code, bits, lanes);
        let of = of.ok_or_else(|| Bad::dtype(argument, format!("code {code} with {bits} bits of DLPack")))?;
        let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
        let mut shape = [0; MAX_DIMENSIONS];
        let expected = || Bad::value(argument, format!("at most {MAX_DIMENSIONS} dimensions"), dimensions.to_string());
        let shape = shape.get_mut(..dimensions).ok_or_else(expected)?;
        for (axis, size) in shape.iter_mut().enumerate() {
            // SAFETY: the caller's promise, here and below.
            *size = usize::try_from(unsafe { tensor.shape.add(axis).read() }).unwrap_or(0);
        }
        if tensor.data.is_null() && !shape.contains(&0) {
            return Err(Bad::value(argument, "an array in memory", "one without memory"));
        }
        let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        let width = bytes(of) as isize;
        if tensor.strides.is_null() {
            let count = shape.iter().product();
            return Ok(Array {
                start,
                count,
                of,
                space,
                arrangement: Arrangement::Packed,
                lazy: Lazy::default(),
                is_read_only,
            });
        }
        // SAFETY: as above.
        let stride = |axis| unsafe { tensor.strides.add(axis).read() } as isize * width;
        Array { space, ..Array::new(start, of, shape, stride, is_read_only) }.checked(argument)
    }

    fn new(start: *mut u8, of: Type, shape: &[usize], strides: impl Fn(usize) -> isize, is_read_only: bool) -> Array {
        let count = shape.iter().product();
        let arrangement = match Layout::new(shape, strides, bytes(of)) {
            Some(layout) => Arrangement::Apart(Box::new(layout)),
            None if count > 0 && !start.addr().is_multiple_of(of.dtype.size()) => {
                Arrangement::Apart(Box::new(Layout::misaligned(count, bytes(of))))
            }
            None => Arrangement::Packed,
        };
        Array { start, count, of, space: Space::Host, arrangement, lazy: Lazy::default(), is_read_only }
    }

    /// Returns the array whose values `lazy` makes from its memory.
    fn made_of(mut self, lazy: Lazy) -> Array {
        if lazy.differs() && self.is_packed() && self.count > 0 {
            // They are copied as elements that are apart are.
            self.arrangement = Arrangement::Apart(Box::new(Layout::misaligned(self.count, bytes(self.of))));
        }
        Array { lazy, ..self }
    }

    /// Returns the array of complex numbers of bf16 whose parts these are.
    fn of_pairs(self) -> Array {
        let arrangement = match self.arrangement {
            Arrangement::Apart(layout) => Arrangement::Apart(Box::new(layout.of_pairs())),
            arrangement => arrangement,
        };
        Array { count: self.count / 2, of: types::BCOMPLEX32, arrangement, ..self }
    }

    /// Returns several arrays of one type as one, and the number of elements of each.
    pub(crate) fn listed(arrays: Vec<Array>, argument: &'static str) -> Result<(Array, Vec<usize>), Bad> {
        let first = arrays.first().ok_or_else(|| Bad::value(argument, "one array or more", "an empty list"))?;
        let of = first.of;
        if let Some(other) = arrays.iter().find(|array| array.of != of) {
            let expected = format!("arrays of one type, {}", of.name);
            return Err(Bad::value(argument, expected, other.of.name));
        }
        let space = first.space;
        if let Some(other) = arrays.iter().find(|array| array.space != space) {
            return Err(Bad::value(argument, format!("arrays in memory of {space}"), other.space.to_string()));
        }
        let counts: Vec<usize> = arrays.iter().map(|array| array.count).collect();
        let (start, count) = (first.start, counts.iter().sum());
        let is_read_only = arrays.iter().any(|array| array.is_read_only);
        let mut next = start.addr();
        let follow = arrays.iter().all(|array| {
            let follows =
                matches!(array.arrangement, Arrangement::Packed) && (array.start.addr() == next || array.count == 0);
            next += array.count * bytes(of);
            follows
        });
        let arrangement = if follow { Arrangement::Packed } else { Arrangement::Listed(arrays) };
        let array = Array { start, count, of, space, arrangement, lazy: Lazy::default(), is_read_only };
        Ok((array.checked(argument)?, counts))
    }

    /// Whether the elements follow each other.
    fn is_packed(&self) -> bool {
        matches!(self.arrangement, Arrangement::Packed)
    }

    /// Returns the type of the elements.
    pub(crate) fn of_type(&self) -> Type {
        self.of
    }

    /// Whether the elements lie in the memory of a GPU.
    pub(crate) fn is_on_device(&self) -> bool {
        self.space != Space::Host
    }

    /// Whether the array cannot be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the number of elements of the runtime's type: two for a complex number.
    pub(crate) fn parts(&self) -> usize {
        self.count * self.of.parts
    }

    /// Returns the range of addresses in which the elements lie.
    fn extent(&self) -> Range<usize> {
        let (first, end) = match &self.arrangement {
            Arrangement::Packed => (0, (self.count * bytes(self.of)) as isize),
            Arrangement::Apart(layout) => layout.extent(bytes(self.of)),
            Arrangement::Listed(arrays) => {
                let extents = || arrays.iter().filter(|array| array.count > 0).map(Array::extent);
                let start = extents().map(|extent| extent.start).min().unwrap_or(0);
                return start..extents().map(|extent| extent.end).max().unwrap_or(0);
            }
        };
        self.start.addr().wrapping_add_signed(first)..self.start.addr().wrapping_add_signed(end)
    }

    /// Whether this and `other` share memory.
    pub(crate) fn meets(&self, other: &Array) -> bool {
        if self.space != other.space {
            return false;
        }
        let (own, others) = (self.extent(), other.extent());
        own.start < others.end && others.start < own.end
    }

    /// Whether this is the same memory as `other`, element by element. Arrays without elements have
    /// no memory, and may have the same address.
    pub(crate) fn is(&self, other: &Array) -> bool {
        self.count > 0
            && self.space == other.space
            && self.start == other.start
            && self.count == other.count
            && self.is_packed()
            && other.is_packed()
    }

    /// Whether this is the block of a rank in `other`, of as many elements for each rank.
    pub(crate) fn is_block(&self, other: &Array, world: World) -> bool {
        let first = self.count * world.rank() * bytes(self.of);
        let fits = self.of == other.of && self.count * world.size() == other.count;
        fits && self.is_packed() && other.is_packed() && self.start == other.start.wrapping_add(first)
    }

    /// Checks that an array can be written.
    fn check_output(&self, argument: &'static str) -> Result<(), Bad> {
        if self.is_read_only {
            return Err(Bad::value(argument, "an array that can be written", "one that is read-only"));
        }
        if self.overlaps() {
            return Err(Bad::value(argument, "elements apart from each other", "an array that overlaps in itself"));
        }
        Ok(())
    }

    /// Whether two elements share a byte. Arrays of a list overlap if they lie between each other,
    /// too.
    fn overlaps(&self) -> bool {
        match &self.arrangement {
            Arrangement::Packed => false,
            Arrangement::Apart(layout) => layout.overlaps(bytes(self.of)),
            Arrangement::Listed(arrays) => {
                let mut extents: Vec<Range<usize>> =
                    arrays.iter().filter(|array| array.count > 0).map(Array::extent).collect();
                extents.sort_unstable_by_key(|extent| extent.start);
                arrays.iter().any(Array::overlaps) || extents.windows(2).any(|pair| pair[1].start < pair[0].end)
            }
        }
    }

    /// Whether some bool is neither 0 nor 1, in elements that follow each other.
    fn has_odd_bools(&self) -> bool {
        if self.of.dtype != DType::Bool || self.count == 0 || self.is_on_device() {
            return false;
        }
        // SAFETY: the invariant of this module; each element is a byte.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.count) };
        bytes.iter().any(|&byte| byte > 1)
    }
}

/// The interfaces by which objects of a type export their memory.
#[derive(Clone, Copy)]
struct Exports {
    /// The function that views them, if the type's table of DLPack has one.
    view: Option<dlpack::View>,
    /// Whether they have the methods of lazy views.
    may_be_lazy: bool,
}

impl Exports {
    fn of(class: &Bound<'_, PyType>) -> Exports {
        /// The first type that was asked for. Most programs have one.
        static FIRST: PyOnceLock<(Py<PyType>, Exports)> = PyOnceLock::new();
        let py = class.py();
        let (first, exports) = FIRST.get_or_init(py, || (class.clone().unbind(), Exports::look_up(class)));
        if first.is(class) { *exports } else { Exports::look_up(class) }
    }

    fn look_up(class: &Bound<'_, PyType>) -> Exports {
        let py = class.py();
        let view = || {
            let table = class.getattr(intern!(py, "__dlpack_c_exchange_api__")).ok()?.cast_into::<PyCapsule>().ok()?;
            let table = table.pointer_checked(Some(dlpack::EXCHANGE)).ok()?;
            // SAFETY: a capsule of this name has such a table, which is never freed.
            let table = unsafe { table.cast::<dlpack::Exchange>().as_ref() };
            table.view.filter(|_| table.version[0] == 1)
        };
        let has = |name| class.hasattr(name).unwrap_or(false);
        Exports { view: view(), may_be_lazy: has(intern!(py, "is_conj")) && has(intern!(py, "is_neg")) }
    }
}

/// Refuses PyTorch's integers of fewer bits than a byte, such as `uint4`: DLPack describes them as
/// bytes. PyTorch has no arithmetic for them.
fn check_whole_bytes(object: &Bound<'_, PyAny>, argument: &'static str) -> Result<(), Bad> {
    let dtype = object.getattr(intern!(object.py(), "dtype"))?.to_string();
    let name = dtype.strip_prefix("torch.").unwrap_or_default();
    let bits = name.strip_prefix('u').unwrap_or(name).strip_prefix("int");
    match bits.is_some_and(|bits| bits != "8") {
        true => Err(Bad::value(argument, "an array of elements of whole bytes", format!("one of {dtype}"))),
        false => Ok(()),
    }
}

/// Returns the parts of complex numbers of bf16, which PyTorch has and DLPack has not.
fn bcomplex_parts<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let py = object.py();
    let dtype = object.getattr(intern!(py, "dtype")).ok()?.to_string();
    // A view of parts has no conjugate, which `Lazy` makes.
    let plain = || match object.call_method0(intern!(py, "is_conj"))?.is_truthy()? {
        true => object.call_method0(intern!(py, "conj")),
        false => Ok(object.clone()),
    };
    let torch = || py.import(intern!(py, "torch"))?.call_method1(intern!(py, "view_as_real"), (plain()?,));
    (dtype == "torch.bcomplex32").then(torch)?.ok()
}

/// Returns the refusal of an array that DLPack cannot describe, as its library says. The library's
/// words name neither the argument nor the type, and PyTorch adds a trace of its own code.
fn undescribed(object: &Bound<'_, PyAny>, argument: &'static str, raised: PyErr) -> Bad {
    let py = object.py();
    let refuses = raised.is_instance_of::<PyBufferError>(py) || raised.is_instance_of::<PyRuntimeError>(py);
    match object.getattr(intern!(py, "dtype")) {
        Ok(dtype) if refuses => {
            let text = raised.value(py).to_string();
            let found = format!("one of {dtype}: {}", text.lines().next().unwrap_or_default());
            Bad::value(argument, "an array that DLPack can describe", found)
        }
        _ => raised.into(),
    }
}

/// The limit on the dimensions of an array, twice that of NumPy and PyTorch.
const MAX_DIMENSIONS: usize = 128;

/// Returns the address of memory that NumPy reads and writes from now on, and nothing else in this
/// process does.
pub(crate) fn address(memory: &SharedMemory<u64>) -> usize {
    memory.as_ptr().expose_provenance()
}
