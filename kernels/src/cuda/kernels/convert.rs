//! Launches that fill, convert, scale and compare elements.

use super::{
    launch::{Kernel, Launch, Parameters, Unsupported, aligned},
    module::{self, named},
};
use consonance_spec::{Class, DType, for_each_dtype};

/// Fills `count` elements with the element that has these bits.
///
/// # Errors
/// If the address is not aligned, or sizes exceed the address space.
pub fn fill(dtype: DType, target: u64, count: u64, bits: u64) -> Result<Launch, Unsupported> {
    aligned("targets", &[target], dtype.size())?;
    let bytes = count.checked_mul(dtype.size() as u64).ok_or(Unsupported::TooLarge)?;
    let pattern = match dtype.size() {
        1 => u64::from(bits as u8) * 0x0101_0101_0101_0101,
        2 => u64::from(bits as u16) * 0x0001_0001_0001_0001,
        4 => u64::from(bits as u32) * 0x0000_0001_0000_0001,
        _ => bits,
    };
    let head = (target.next_multiple_of(16) - target).min(bytes);
    let vectors = (bytes - head) / 16;
    let kernel = Kernel { module: module::MOVE, name: "fill" };
    let parameters = Parameters::new().u64(target).u64(bytes).u64(head).u64(vectors).u64(pattern);
    Ok(Launch::new(kernel, bytes - 15 * vectors, 1, parameters))
}

/// Converts `count` elements of the type `from` to the type `to`. Numbers are rounded to the
/// nearest, ties to even, where `to` is a float; floats are rounded toward zero and saturate where
/// `to` is an integer, and NaN becomes 0; integers wrap. Only 0 becomes `false`. The target is
/// disjoint from the source, or equal where elements have the same size.
///
/// # Errors
/// If an address is not aligned.
pub fn cast(from: DType, to: DType, source: u64, target: u64, count: u64) -> Result<Launch, Unsupported> {
    aligned("sources", &[source], from.size())?;
    aligned("targets", &[target], to.size())?;
    let kernel = Kernel { module: module::CONVERT, name: "cast" };
    let parameters = Parameters::new().u64(source).u64(target).u64(count).u32(code(from)).u32(code(to));
    Ok(Launch::new(kernel, count, 1, parameters))
}

/// Multiplies `count` floats by `factor` in the accumulation type, and rounds each once. The target
/// is equal to the source or disjoint from it.
///
/// # Errors
/// If the type is not a float, or an address is not aligned.
pub fn scale(dtype: DType, source: u64, target: u64, count: u64, factor: f64) -> Result<Launch, Unsupported> {
    if dtype.class() != Class::Float {
        return Err(Unsupported::Type { what: "scaling", dtype });
    }
    let bytes = dtype.size() as u64;
    aligned("sources and targets", &[source, target], dtype.size())?;
    let (lanes, head) = (16 / bytes, (source.next_multiple_of(16) - source) / bytes);
    let alike = source % 16 == target % 16 && head <= count;
    let (head, vectors) = if alike { (head, (count - head) / lanes) } else { (0, 0) };
    let kernel = Kernel { module: module::CONVERT, name: for_each_dtype!(named ["scale_" dtype]) };
    let parameters = Parameters::new()
        .u64(source)
        .u64(target)
        .u64(count)
        .u64(head)
        .u64(vectors)
        .f64(factor)
        .f32(factor as f32)
        .u32(0);
    Ok(Launch::new(kernel, count - vectors * (lanes - 1), 1, parameters))
}

/// Compares two arrays of `count` elements. Each block of the grid writes a 64-bit index to
/// `results`: of the first element that differs, or `u64::MAX`. The least of the grid's indices is
/// the first difference. Bits are compared, and all NaN are equal.
///
/// # Errors
/// If an address is not aligned.
pub fn compare(dtype: DType, left: u64, right: u64, count: u64, results: u64) -> Result<Launch, Unsupported> {
    aligned("elements", &[left, right], dtype.size())?;
    aligned("results", &[results], 8)?;
    let (infinity, magnitude) = infinity(dtype);
    let kernel = Kernel { module: module::CONVERT, name: "compare" };
    let parameters = Parameters::new()
        .u64(left)
        .u64(right)
        .u64(count)
        .u64(results)
        .u64(infinity)
        .u64(magnitude)
        .u32(dtype.size() as u32)
        .u32(0);
    Ok(Launch::new(kernel, count, 1, parameters))
}

/// Returns the bits of infinity and the bits of a number without its sign. No integer is above its
/// infinity.
fn infinity(dtype: DType) -> (u64, u64) {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 => (u64::MAX, u64::MAX),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (u64::MAX, u64::MAX),
        DType::F16 => (0x7c00, 0x7fff),
        DType::Bf16 => (0x7f80, 0x7fff),
        DType::F32 => (0x7f80_0000, 0x7fff_ffff),
        DType::F64 => (0x7ff0 << 48, u64::MAX >> 1),
    }
}

/// Returns the number of the type in `convert.cu`.
fn code(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 0,
        DType::I8 => 1,
        DType::I16 => 2,
        DType::I32 => 3,
        DType::I64 => 4,
        DType::U8 => 5,
        DType::U16 => 6,
        DType::U32 => 7,
        DType::U64 => 8,
        DType::F16 => 9,
        DType::Bf16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
    }
}
