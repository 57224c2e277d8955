//! Elements in the memory of a machine.

use super::Machine;
use crate::compare::Verdict;
use consonance_kernels::memory::HostBuf;
use consonance_spec::{DType, Element, for_each_dtype};

/// What is in the bytes before the elements, which nothing may write.
const BEFORE: u8 = 0xa5;

/// Elements that begin some elements after an address that suits every vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) address: u64,
    before: usize,
    bytes: usize,
}

impl Buffer {
    /// Allocates `count` elements of `size` bytes, `offset` elements after a multiple of 256.
    pub(super) fn new(machine: &mut impl Machine, size: usize, count: usize, offset: usize) -> Result<Buffer, String> {
        let (before, bytes) = (offset * size, count * size);
        let start = machine.alloc(before + bytes)?;
        machine.write(start, &vec![BEFORE; before])?;
        Ok(Buffer { address: start + before as u64, before, bytes })
    }

    /// Allocates elements with these bytes.
    pub(super) fn of(machine: &mut impl Machine, bytes: &[u8], size: usize, offset: usize) -> Result<Buffer, String> {
        let buffer = Buffer::new(machine, size, bytes.len() / size, offset)?;
        machine.write(buffer.address, bytes)?;
        Ok(buffer)
    }

    /// Returns the bytes of the elements.
    ///
    /// # Errors
    /// If the bytes before the elements have changed, or an element was never written.
    pub(super) fn read(&self, machine: &mut impl Machine) -> Result<Vec<u8>, String> {
        let before = machine.read(self.address - self.before as u64, self.before)?;
        if before.iter().any(|&byte| byte != BEFORE) {
            return Err("wrote before the first element".to_owned());
        }
        machine.read(self.address, self.bytes)
    }
}

/// Returns the bytes of elements.
pub(super) fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    HostBuf::from(elements).as_bytes().to_vec()
}

/// Returns the bits of elements. All NaNs have the same.
pub(super) fn bits(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    macro_rules! is_nan {
        ($bits:ident, $dtype:ident; $({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match $dtype { $(DType::$variant => is_nan!($class $type, $bits),)* }
        };
        (Float $type:ty, $bits:ident) => { <$type>::from_bits($bits as _).is_nan() };
        ($class:ident $type:ty, $bits:ident) => { false };
    }
    let one = |element: &[u8]| {
        let mut word = [0; 8];
        word[..element.len()].copy_from_slice(element);
        let bits = u64::from_le_bytes(word);
        if for_each_dtype!(is_nan bits, dtype;) { u64::MAX } else { bits }
    };
    bytes.chunks_exact(dtype.size()).map(one).collect()
}

/// Compares the bytes of elements.
pub(super) fn same(what: &str, dtype: DType, found: &[u8], expected: &[u8]) -> Verdict {
    if found.len() != expected.len() {
        return Err(format!("{what}: {} bytes, expected {}", found.len(), expected.len()));
    }
    let (found, expected) = (bits(dtype, found), bits(dtype, expected));
    match (0..found.len()).find(|&at| found[at] != expected[at]) {
        Some(at) => Err(format!("{what}: {dtype} element {at} is {:#x}, expected {:#x}", found[at], expected[at])),
        None => Ok(()),
    }
}
