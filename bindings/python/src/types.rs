//! Element types of arrays.

use consonance::{DType, ReduceOp, raw::Class};
use consonance_c::codes::{COMPLEX, TYPES, Type};
use pyo3::prelude::*;

/// Types whose elements move and are not reduced: floating-point numbers of 8 bits, and pairs of
/// 4 bits, with the code, width in bits and number of lanes of DLPack of each. Their numbers are
/// not those of the C library, which has no such types.
const SMALL: [((u8, u8, u16), Type); 9] = [
    ((7, 8, 1), byte(107, "float8_e3m4")),
    ((8, 8, 1), byte(108, "float8_e4m3")),
    ((9, 8, 1), byte(109, "float8_e4m3b11fnuz")),
    ((10, 8, 1), byte(110, "float8_e4m3fn")),
    ((11, 8, 1), byte(111, "float8_e4m3fnuz")),
    ((12, 8, 1), byte(112, "float8_e5m2")),
    ((13, 8, 1), byte(113, "float8_e5m2fnuz")),
    ((14, 8, 1), byte(114, "float8_e8m0fnu")),
    ((17, 4, 2), byte(116, "float4_e2m1fn_x2")),
];

const fn byte(number: i32, name: &'static str) -> Type {
    Type { number, name, dtype: DType::U8, parts: 1, on_gpu: false }
}

/// A complex number of two 16-bit parts, which the C library does not have.
const COMPLEX32: Type = Type { number: 115, name: "complex32", dtype: DType::F16, parts: 2, on_gpu: false };

/// The same of bf16, which DLPack does not have.
pub(crate) const BCOMPLEX32: Type =
    Type { number: 117, name: "bcomplex32", dtype: DType::Bf16, parts: 2, on_gpu: false };

/// The types that their parts do not tell.
pub(crate) const OTHERS: [Type; 13] = {
    let mut others = [COMPLEX32; 13];
    let mut index = 0;
    while index < SMALL.len() {
        others[index] = SMALL[index].1;
        index += 1;
    }
    [others[9], others[10]] = COMPLEX;
    others[11] = BCOMPLEX32;
    others
};

/// Returns the type of this code, width in bits and number of lanes of DLPack.
pub(crate) fn of_dlpack(code: u8, bits: u8, lanes: u16) -> Option<Type> {
    let number = match (code, bits) {
        _ if lanes != 1 => return small(code, bits, lanes),
        (6, 8) => 0,
        (0, 8 | 16 | 32 | 64) => 1 + bits.ilog2() - 3,
        (1, 8 | 16 | 32 | 64) => 5 + bits.ilog2() - 3,
        (2, 16) => 9,
        (4, 16) => 10,
        (2, 32) => 11,
        (2, 64) => 12,
        (5, 32) => return Some(COMPLEX32),
        (5, 64) => 13,
        (5, 128) => 14,
        _ => return small(code, bits, lanes),
    };
    Some(TYPES[number as usize])
}

fn small(code: u8, bits: u8, lanes: u16) -> Option<Type> {
    SMALL.iter().find(|(of, _)| *of == (code, bits, lanes)).map(|(_, of)| *of)
}

/// Returns the type of this kind and size in bytes of NumPy.
pub(crate) fn of_numpy(kind: u8, bytes: usize) -> Option<Type> {
    let (code, bits) = (
        match kind {
            b'b' => 6,
            b'i' => 0,
            b'u' => 1,
            b'f' => 2,
            b'c' => 5,
            _ => return None,
        },
        bytes * 8,
    );
    of_dlpack(code, u8::try_from(bits).ok()?, 1)
}

/// Returns the type of this name of the package `ml_dtypes`, which adds types to NumPy.
pub(crate) fn of_name(name: &str) -> Option<Type> {
    if name == "bfloat16" {
        return of_dlpack(4, 16, 1);
    }
    SMALL.iter().map(|(_, of)| *of).find(|of| of.name == name)
}

/// Whether NumPy itself has the type.
pub(crate) fn is_of_numpy(of: Type) -> bool {
    of.number <= 14 && of.dtype != DType::Bf16
}

/// Returns NumPy's type of these elements, or that of `ml_dtypes`, which adds types to NumPy.
pub(crate) fn in_numpy(py: Python<'_>, of: Type) -> PyResult<Bound<'_, PyAny>> {
    if !is_of_numpy(of) {
        let name = if of.dtype == DType::Bf16 && of.parts == 1 { "bfloat16" } else { of.name };
        return py.import("ml_dtypes")?.getattr(name);
    }
    let kind = match (of.dtype.class(), of.parts) {
        (Class::Bool, _) => '?',
        (Class::Signed, _) => 'i',
        (Class::Unsigned, _) => 'u',
        (Class::Float, 1) => 'f',
        (Class::Float, _) => 'c',
    };
    let name = if kind == '?' { "?".to_owned() } else { format!("{kind}{}", bytes(of)) };
    py.import("numpy")?.call_method1("dtype", (name,))
}

/// Returns the size of an element in bytes.
pub(crate) fn bytes(of: Type) -> usize {
    of.dtype.size() * of.parts
}

/// Returns the operation that `op` is on this type, or what is expected instead. On bools a sum is
/// `or` and a product is `and`, as in NumPy and PyTorch.
pub(crate) fn operation(of: Type, op: ReduceOp) -> Result<ReduceOp, &'static str> {
    match (of.dtype.class(), op) {
        _ if SMALL.iter().any(|(_, small)| *small == of) => Err("a type that can be reduced"),
        _ if of.parts > 1 && !matches!(op, ReduceOp::Sum | ReduceOp::Mean) => Err("sum or mean, for complex numbers"),
        (Class::Bool, ReduceOp::Mean) => Err("any operation but mean, for bools"),
        (Class::Bool, ReduceOp::Sum | ReduceOp::Max) => Ok(ReduceOp::Or),
        (Class::Bool, ReduceOp::Product | ReduceOp::Min) => Ok(ReduceOp::And),
        (Class::Bool, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor)
        | (Class::Signed | Class::Unsigned | Class::Float, _) => Ok(op),
    }
}
