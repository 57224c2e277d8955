//! The arrays that a call borrows until its end.

use super::{Arrangement, Array, layout::Layout};
use crate::{failure::Bad, types::bytes};
use consonance::{
    DType,
    raw::{Buf, BufMut, Space},
};
use pyo3::prelude::*;
use std::{num::NonZero, ptr::NonNull};

/// The arrays of a call, and copies of those whose elements do not follow each other. It lives
/// until the call has ended: the call's buffers lie in it.
pub(crate) struct Loans {
    /// The objects of a call that is started. One that blocks borrows them.
    owners: Vec<Py<PyAny>>,
    keeps: bool,
    copies: Vec<Copied>,
    /// Whether an array lies in the memory of a GPU, which the call may leave at work.
    on_device: bool,
}

struct Copied {
    /// In words, so that elements of any type are aligned.
    memory: Vec<u64>,
    array: Array,
    /// Whether the call writes it.
    goes_back: bool,
}

impl Loans {
    /// Makes the loans of a call that is `started`, or that blocks.
    pub(crate) fn new(started: bool) -> Loans {
        Loans { owners: Vec::new(), keeps: started, copies: Vec::new(), on_device: false }
    }

    /// Whether an array lies in the memory of a GPU.
    pub(crate) fn are_on_device(&self) -> bool {
        self.on_device
    }

    /// Returns the memory of an array that is lent.
    fn space(&mut self, array: &Array) -> Space {
        self.on_device |= array.is_on_device();
        array.space
    }

    /// Keeps an object until the call has ended.
    pub(crate) fn keep(&mut self, object: &Bound<'_, PyAny>) {
        if self.keeps {
            self.owners.push(object.clone().unbind());
        }
    }

    /// Returns a buffer that is read. It is a copy if the array `meets` an output.
    pub(crate) fn input(&mut self, array: Array, meets: Option<&Array>) -> Buf<'static> {
        let (of, parts, space) = (array.of, array.parts(), self.space(&array));
        // In the memory of a GPU, memory that meets is refused by the call.
        let meets = || !array.is_on_device() && meets.is_some_and(|other| array.meets(other));
        let copies = !array.is_packed() || array.has_odd_bools() || meets();
        let start = if copies { self.copy(array, true, false) } else { array.start };
        // SAFETY: the invariant of the module. The address is aligned, and bools are 0 or 1: if
        // not, this is a copy.
        unsafe { Buf::from_raw(space, of.dtype, at(start, of.dtype), parts) }
    }

    /// Returns a buffer that is read and written.
    pub(crate) fn in_place(&mut self, array: Array, argument: &'static str) -> Result<BufMut<'static>, Bad> {
        array.check_output(argument)?;
        Ok(self.write(array, true))
    }

    /// Returns a buffer that is written.
    pub(crate) fn output(&mut self, array: Array, argument: &'static str) -> Result<BufMut<'static>, Bad> {
        array.check_output(argument)?;
        Ok(self.write(array, false))
    }

    /// Returns the buffer of the root of a broadcast: it is only read, and may be read-only.
    pub(crate) fn source(&mut self, array: Array) -> BufMut<'static> {
        let (of, parts, space) = (array.of, array.parts(), self.space(&array));
        // On a GPU the call itself copies what the root sends.
        let is_read_only = array.is_read_only && !array.is_on_device();
        let copies = is_read_only || !array.is_packed() || array.has_odd_bools();
        let start = if copies { self.copy(array, true, false) } else { array.start };
        // SAFETY: as in `input`.
        unsafe { BufMut::from_raw(space, of.dtype, at(start, of.dtype), parts) }
    }

    fn write(&mut self, array: Array, is_read: bool) -> BufMut<'static> {
        let (of, parts, space) = (array.of, array.parts(), self.space(&array));
        let copies = !array.is_packed() || array.has_odd_bools();
        let start = if copies { self.copy(array, is_read, true) } else { array.start };
        // SAFETY: as in `input`.
        unsafe { BufMut::from_raw(space, of.dtype, at(start, of.dtype), parts) }
    }

    /// Makes a copy of an array, whose elements follow each other. Bools become 0 or 1.
    fn copy(&mut self, array: Array, is_read: bool, goes_back: bool) -> *mut u8 {
        let mut memory = vec![0u64; (array.count * bytes(array.of)).div_ceil(size_of::<u64>())];
        let start = memory.as_mut_ptr().cast::<u8>();
        if is_read {
            // SAFETY: there is room for all elements, and the array's memory is lent.
            unsafe { transfer(&array, start, Direction::FromArray) };
            if array.of.dtype == DType::Bool {
                // SAFETY: as above; each element is a byte.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start, array.count) };
                bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
        self.copies.push(Copied { memory, array, goes_back });
        start
    }

    /// Copies results into the arrays that they belong to: the call has ended.
    pub(crate) fn give_back(&mut self) {
        for Copied { memory, array, .. } in self.copies.iter_mut().filter(|copied| copied.goes_back) {
            // SAFETY: the array's memory is lent still, and can be written.
            unsafe { transfer(array, memory.as_mut_ptr().cast(), Direction::ToArray) };
        }
    }
}

/// Returns the address, or for null, which has no elements, any other that is aligned.
fn at(start: *mut u8, dtype: DType) -> NonNull<u8> {
    let aligned = NonZero::new(dtype.size()).expect("every element has bytes");
    NonNull::new(start).unwrap_or(NonNull::without_provenance(aligned))
}

#[derive(Clone, Copy)]
enum Direction {
    FromArray,
    ToArray,
}

/// Copies the elements of an array to or from `packed`, where they follow each other.
///
/// # Safety
/// The array's elements and as many in `packed` can be read and written, and do not overlap.
unsafe fn transfer(array: &Array, packed: *mut u8, direction: Direction) {
    let packed_layout;
    let layout = match &array.arrangement {
        Arrangement::Apart(layout) => &**layout,
        Arrangement::Packed => {
            packed_layout = Layout::misaligned(array.count, bytes(array.of));
            &packed_layout
        }
        Arrangement::Listed(arrays) => {
            let mut packed = packed;
            for array in arrays {
                // SAFETY: the caller's promise.
                unsafe {
                    transfer(array, packed, direction);
                    packed = packed.add(array.count * bytes(array.of));
                }
            }
            return;
        }
    };
    let convert = || {
        if array.lazy.differs() {
            // SAFETY: the caller's promise. The memory is lent to nobody else.
            let packed = unsafe { std::slice::from_raw_parts_mut(packed, array.count * bytes(array.of)) };
            array.lazy.convert(packed, array.of);
        }
    };
    if let Direction::ToArray = direction {
        convert();
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (array.count, bytes(array.of)) {
            (0, _) => {}
            (_, 1) => elements::<1>(array.start, layout, packed, direction),
            (_, 2) => elements::<2>(array.start, layout, packed, direction),
            (_, 4) => elements::<4>(array.start, layout, packed, direction),
            (_, 8) => elements::<8>(array.start, layout, packed, direction),
            (_, 16) => elements::<16>(array.start, layout, packed, direction),
            (_, bytes) => unreachable!("no element has {bytes} bytes"),
        }
    }
    if let Direction::FromArray = direction {
        convert();
    }
}

/// # Safety
/// As for [`transfer`]; an element has `BYTES` bytes.
unsafe fn elements<const BYTES: usize>(start: *mut u8, layout: &Layout, packed: *mut u8, direction: Direction) {
    let (start, mut packed) = (start.cast::<[u8; BYTES]>(), packed.cast::<[u8; BYTES]>());
    // SAFETY: the caller's promise. Arrays of bytes are aligned anywhere.
    layout.each(|offset| unsafe {
        let element = start.byte_offset(offset);
        match direction {
            Direction::FromArray => packed.write(element.read()),
            Direction::ToArray => element.write(packed.read()),
        }
        packed = packed.add(1);
    });
}
