//! Conversions of elements, scaling and comparison, with every pair of types.

use super::{
    Machine,
    buffer::{Buffer, bits, bytes, same},
};
use crate::{
    compare::with_type,
    sample::{Sample, sample},
};
use consonance_kernels::cuda::kernels::{cast, compare, scale};
use consonance_spec::{Class, DType, bf16, f16, for_each_dtype, number::Number};

/// An element as a number that holds it exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exact {
    Integer(i128),
    Real(f64),
}

/// Returns the bytes of the number in another type, by arithmetic that rounds once.
pub(crate) fn converted(number: Exact, to: DType) -> Vec<u8> {
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
    let above = (0..=infinity).collect::<Vec<u16>>().partition_point(|&bits| {
        let value = if bits == infinity { end } else { value(bits) };
        value < magnitude
    }) as u16;
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

pub(crate) fn exact<T: Number>(element: T) -> Exact {
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

/// Judges the conversion of `count` elements to every type. Returns the number of conversions.
///
/// # Errors
/// The difference from arithmetic that rounds once.
pub fn cast_all(dtype: DType, count: usize, seed: u64, machine: &mut impl Machine) -> Result<usize, String> {
    for_each_dtype!(with_type dtype, cast_from(count, seed, machine);)
}

fn cast_from<T: Sample>(count: usize, seed: u64, machine: &mut impl Machine) -> Result<usize, String> {
    let elements: Vec<T> = sample(seed, count);
    for &to in DType::ALL {
        let source = Buffer::of(machine, &bytes(&elements), T::DTYPE.size(), 1)?;
        let target = Buffer::new(machine, to.size(), count, 1)?;
        let launch = cast(T::DTYPE, to, source.address, target.address, count as u64).map_err(|e| e.to_string())?;
        machine.run(&launch.at_most(2))?;
        let expected: Vec<u8> = elements.iter().flat_map(|&element| converted(exact(element), to)).collect();
        let what = format!("{} as {to}, seed {seed}", T::DTYPE);
        let found = target.read(machine)?;
        same(&what, to, &found, &expected).map_err(|wrong| {
            let at = bits(to, &found).iter().zip(bits(to, &expected)).position(|(a, b)| *a != b);
            format!("{wrong}, of {:?}", at.map(|at| elements[at]))
        })?;
    }
    Ok(DType::ALL.len())
}

/// Judges products with a factor, in place and apart. Returns the number of launches.
///
/// # Errors
/// The difference from the product in the accumulation type, rounded once.
pub fn scale_all(count: usize, offset: usize, seed: u64, machine: &mut impl Machine) -> Result<usize, String> {
    let mut launches = 0;
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.class() == Class::Float) {
        for factor in [0.3, -0.0, f64::INFINITY, 0.125, 1e-42] {
            launches += for_each_dtype!(with_type dtype, scale_one(count, offset, seed, factor, machine);)?;
        }
    }
    Ok(launches)
}

fn scale_one<T: Sample>(
    count: usize,
    offset: usize,
    seed: u64,
    factor: f64,
    machine: &mut impl Machine,
) -> Result<usize, String> {
    let elements: Vec<T> = sample(seed, count);
    let product = |element: &T| match (exact(*element), T::DTYPE.size()) {
        (Exact::Real(real), 8) => converted(Exact::Real(real * factor), T::DTYPE),
        (Exact::Real(real), _) => converted(Exact::Real((real as f32 * factor as f32).into()), T::DTYPE),
        (Exact::Integer(_), _) => Vec::new(),
    };
    let expected: Vec<u8> = elements.iter().flat_map(product).collect();
    let source = Buffer::of(machine, &bytes(&elements), T::DTYPE.size(), offset)?;
    for target in [Buffer::new(machine, T::DTYPE.size(), count, offset + 1)?, source] {
        let launch =
            scale(T::DTYPE, source.address, target.address, count as u64, factor).map_err(|e| e.to_string())?;
        machine.run(&launch.at_most(2))?;
        let what = format!("{} times {factor}, {count} elements at {offset}, seed {seed}", T::DTYPE);
        same(&what, T::DTYPE, &target.read(machine)?, &expected)?;
    }
    Ok(2)
}

/// Judges the comparison of elements with themselves, and with one of them changed. Returns the
/// number of launches.
///
/// # Errors
/// If the first difference is not found.
pub fn compare_arrays(dtype: DType, count: usize, seed: u64, machine: &mut impl Machine) -> Result<usize, String> {
    for_each_dtype!(with_type dtype, compare_one(count, seed, machine);)
}

fn compare_one<T: Sample>(count: usize, seed: u64, machine: &mut impl Machine) -> Result<usize, String> {
    let left = bytes::<T>(&sample(seed, count));
    let size = T::DTYPE.size();
    let places = [None, Some(0), Some(count / 2), Some(count.saturating_sub(1))];
    for place in places {
        let mut right = left.clone();
        if let Some(byte) = place.and_then(|place| right.get_mut(place * size)) {
            *byte ^= 1;
        }
        let (left_bits, right_bits) = (bits(T::DTYPE, &left), bits(T::DTYPE, &right));
        let expected = (0..count).find(|&at| left_bits[at] != right_bits[at]).map_or(u64::MAX, |at| at as u64);
        let (a, b) = (Buffer::of(machine, &left, size, 1)?, Buffer::of(machine, &right, size, 0)?);
        let launch = |results| {
            let launch = compare(T::DTYPE, a.address, b.address, count as u64, results);
            launch.map(|launch| launch.at_most(3)).map_err(|error| error.to_string())
        };
        // The grid does not depend on the address of the results.
        let blocks = launch(0)?.grid;
        let results = Buffer::new(machine, 8, blocks as usize, 0)?;
        machine.run(&launch(results.address)?)?;
        let found = bits(DType::U64, &results.read(machine)?).into_iter().min();
        if found != Some(expected) {
            return Err(format!(
                "{count} elements of {}, changed at {place:?}: the first difference is {found:?}, expected {expected}",
                T::DTYPE
            ));
        }
    }
    Ok(places.len())
}
