//! Conversions of elements by arithmetic that rounds once.

use super::job::bytes;
use consonance_spec::{DType, bf16, f16, number::Number};

/// An element as a number that holds it exactly.
#[derive(Clone, Copy, Debug)]
pub(super) enum Exact {
    Integer(i128),
    Real(f64),
}

/// Returns the bytes of the number in another type, by arithmetic that rounds once.
pub(super) fn converted(number: Exact, to: DType) -> Vec<u8> {
    macro_rules! integer {
        ($type:ty) => {
            match number {
                Exact::Integer(integer) => (integer as $type).to_le_bytes().to_vec(),
                Exact::Real(real) => (real as $type).to_le_bytes().to_vec(),
            }
        };
    }
    match to {
        DType::Bool => vec![match number {
            Exact::Integer(integer) => (integer != 0).into(),
            Exact::Real(real) => (real != 0.0).into(),
        }],
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::U8 => integer!(u8),
        DType::U16 => integer!(u16),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        DType::F32 => integer!(f32),
        DType::F64 => integer!(f64),
        DType::F16 => nearest(number, 0x7c00, |bits| f16::from_bits(bits).to_f64()).to_le_bytes().to_vec(),
        DType::Bf16 => nearest(number, 0x7f80, |bits| bf16::from_bits(bits).to_f64()).to_le_bytes().to_vec(),
    }
}

/// Returns the bits of the float of 16 bits that is nearest to the number, ties to even. `infinity`
/// is its infinity, `value` the value of its other bits.
fn nearest(number: Exact, infinity: u16, value: impl Fn(u16) -> f64) -> u16 {
    let (magnitude, negative) = match number {
        Exact::Real(real) if real.is_nan() => return infinity | 1 << (infinity.trailing_zeros() - 1),
        Exact::Real(real) => (real.abs(), real.is_sign_negative()),
        // An integer that f64 does not hold is not half-way between two of these floats, and stays
        // on its side when it is rounded toward zero with a last bit for what is lost.
        Exact::Integer(integer) => (sticky(integer.unsigned_abs()), integer < 0),
    };
    // Infinity stands for the number that would follow the greatest.
    let end = 2.0 * value(infinity - 1) - value(infinity - 2);
    let is_below = |bits: u16| magnitude > if bits == infinity { end } else { value(bits) };
    // Count the numbers from 0 on that are below: bit by bit.
    let above = (0..16).rev().map(|bit| 1 << bit).fold(0, |found: u16, bit| {
        if found + bit <= infinity + 1 && is_below(found + bit - 1) { found + bit } else { found }
    });
    let bits = if above > infinity {
        infinity
    } else if above == 0 {
        0
    } else {
        let high = if above == infinity { end } else { value(above) };
        let (down, up) = (magnitude - value(above - 1), high - magnitude);
        if up < down || up == down && above.is_multiple_of(2) { above } else { above - 1 }
    };
    bits | u16::from(negative) << 15
}

/// Returns the integer as f64, rounded to odd.
fn sticky(magnitude: u128) -> f64 {
    let lost = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let upper = magnitude >> lost;
    (upper | u128::from(upper << lost != magnitude)) as f64 * 2f64.powi(lost as i32)
}

pub(super) fn exact<T: Number>(element: T) -> Exact {
    let raw = bytes(&[element]);
    let mut word = [0; 8];
    word[..raw.len()].copy_from_slice(&raw);
    let bits = u64::from_le_bytes(word);
    match T::DTYPE {
        DType::F16 => Exact::Real(f16::from_bits(bits as u16).to_f64()),
        DType::Bf16 => Exact::Real(bf16::from_bits(bits as u16).to_f64()),
        DType::F32 => Exact::Real(f32::from_bits(bits as u32).into()),
        DType::F64 => Exact::Real(f64::from_bits(bits)),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            let unused = 64 - 8 * raw.len();
            Exact::Integer(((bits << unused) as i64 >> unused).into())
        }
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => Exact::Integer(bits.into()),
    }
}
