//! Lazy views of PyTorch, whose memory has other values than they: conjugates and negatives.

use crate::failure::Bad;
use consonance::raw::Class;
use consonance_c::codes::Type;
use pyo3::{intern, prelude::*};

/// The conversion between the values of an array and its memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Lazy {
    is_conjugate: bool,
    is_negative: bool,
}

impl Lazy {
    /// Asks a tensor of PyTorch. A view of its memory by DLPack does not tell.
    pub(super) fn of(object: &Bound<'_, PyAny>, of: Type, argument: &'static str) -> Result<Lazy, Bad> {
        let py = object.py();
        let is_conjugate = of.parts > 1 && object.call_method0(intern!(py, "is_conj"))?.is_truthy()?;
        let is_negative = object.call_method0(intern!(py, "is_neg"))?.is_truthy()?;
        if is_negative && of.dtype.class() != Class::Float {
            let expected = "a tensor that is no negative view: call resolve_neg()";
            return Err(Bad::value(argument, expected, format!("a negative view of {}", of.name)));
        }
        Ok(Lazy { is_conjugate, is_negative })
    }

    /// Whether the memory has other values.
    pub(super) fn differs(self) -> bool {
        self.is_conjugate || self.is_negative
    }

    /// Makes the values from the memory's, or the memory's from the values.
    pub(super) fn convert(self, packed: &mut [u8], of: Type) {
        let sign = if cfg!(target_endian = "little") { of.dtype.size() - 1 } else { 0 };
        for (index, part) in packed.chunks_exact_mut(of.dtype.size()).enumerate() {
            let is_imaginary = index % of.parts == 1;
            if self.is_negative != (self.is_conjugate && is_imaginary) {
                part[sign] ^= 0x80;
            }
        }
    }
}
