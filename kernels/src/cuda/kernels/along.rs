//! Launches that reduce a tensor along an axis.

use super::{
    fold::{Accumulator, Bitwise, Same},
    launch::{Kernel, Launch, Parameters, Unsupported, aligned},
    module::{self, named},
};
use consonance_spec::{
    DType,
    ReduceOp::{self, And, Max, Mean, Min, Or, Product, Sum, Xor},
    for_each_dtype,
};

/// The number of consecutive elements along the axis that are reduced in lanes.
pub const BLOCK: u64 = 4096;

/// Rows of accumulators that a launch of [`tree`] combines into one.
const FAN: u64 = 16;

/// The threads that reduce the lanes of a result.
const LANES: u64 = 32;

/// Reduces a row-major tensor of the shape `[outer, axis, inner]` along its middle axis.
///
/// `source` is the address of the elements. `target` is the address of the
/// [accumulators](Accumulator) of each [block](BLOCK), of the shape `[outer, blocks, inner]` with
/// `blocks = axis.div_ceil(BLOCK)`. [`tree`] combines the blocks, and [`finish`](super::finish)
/// makes results of the accumulators of all replicas. A result of no elements is the operation's
/// identity, which the caller [fills](super::fill) in.
///
/// # Errors
/// If the operation is not defined on the type, the axis is empty, or arguments are out of their
/// limits.
pub fn along(op: ReduceOp, dtype: DType, source: u64, target: u64, shape: [u64; 3]) -> Result<Launch, Unsupported> {
    let accumulator = Accumulator::new(op, dtype).ok_or(Unsupported::Undefined { op, dtype })?;
    aligned("sources", &[source], dtype.size())?;
    aligned("targets", &[target], accumulator.bytes(dtype))?;
    let (kernel, units) = match (accumulator, Same::new(op, dtype)) {
        (Accumulator::Element, Same::Bits(op)) => (bits(op, "along_and", "along_or", "along_xor"), dtype.size() as u64),
        (Accumulator::Element, Same::Of(dtype)) => (of(op, dtype), 1),
        (Accumulator::F32 | Accumulator::I64 | Accumulator::I128, _) => (of(op, dtype), 1),
    };
    let [outer, axis, inner] = shape;
    if axis == 0 {
        return Err(Unsupported::Number { what: "elements along the axis", expected: 1..=u64::MAX, found: 0 });
    }
    let inner = inner.checked_mul(units).ok_or(Unsupported::TooLarge)?;
    let blocks = axis.div_ceil(BLOCK);
    let values = product([outer, blocks, inner])?;
    product([outer, axis, inner])?;
    let parameters = Parameters::new().u64(source).u64(target).u64(axis).u64(inner).u64(blocks).u64(values);
    Ok(Launch::new(kernel, values, if inner == 1 { LANES } else { LANES / 4 }, parameters))
}

/// Returns how many rows [`tree`] makes of `rows`.
pub fn tree_groups(rows: u64) -> u64 {
    rows.div_ceil(FAN)
}

/// Combines neighbouring rows of accumulators by the balanced tree, 16 at a time: from the shape
/// `[outer, rows, inner]` to `[outer, tree_groups(rows), inner]`. Launches follow each other until
/// there is one row.
///
/// # Errors
/// If the operation is not defined on the type, or arguments are out of their limits.
pub fn tree(op: ReduceOp, dtype: DType, source: u64, target: u64, shape: [u64; 3]) -> Result<Launch, Unsupported> {
    let accumulator = Accumulator::new(op, dtype).ok_or(Unsupported::Undefined { op, dtype })?;
    aligned("sources and targets", &[source, target], accumulator.bytes(dtype))?;
    let (kernel, units) = match (accumulator, Same::new(op, dtype)) {
        (Accumulator::Element, Same::Bits(op)) => (bits(op, "tree_and", "tree_or", "tree_xor"), dtype.size() as u64),
        (Accumulator::Element, Same::Of(dtype)) => (tree_of(op, dtype), 1),
        (Accumulator::F32, _) => (tree_of(op, DType::F32), 1),
        (Accumulator::I64, _) => (tree_of(Sum, DType::U64), 1),
        (Accumulator::I128, _) => (Kernel { module: module::ALONG_TOTAL, name: "tree_i128" }, 1),
    };
    let [outer, rows, inner] = shape;
    let inner = inner.checked_mul(units).ok_or(Unsupported::TooLarge)?;
    let groups = tree_groups(rows);
    product([outer, rows, inner])?;
    let values = product([outer, groups, inner])?;
    let parameters = Parameters::new().u64(source).u64(target).u64(rows).u64(groups).u64(inner).u64(values);
    Ok(Launch::new(kernel, values, 1, parameters))
}

fn product(sizes: [u64; 3]) -> Result<u64, Unsupported> {
    // Addresses are sizes times at most 16 bytes.
    let product = sizes.into_iter().try_fold(16u64, u64::checked_mul).ok_or(Unsupported::TooLarge)?;
    Ok(product / 16)
}

fn bits(op: Bitwise, and: &'static str, or: &'static str, xor: &'static str) -> Kernel {
    let name = match op {
        Bitwise::And => and,
        Bitwise::Or => or,
        Bitwise::Xor => xor,
    };
    Kernel { module: module::ALONG_BITS, name }
}

fn of(op: ReduceOp, dtype: DType) -> Kernel {
    let is_float = dtype.mean() == Some(dtype);
    let name = match op {
        Mean if !is_float => for_each_dtype!(named ["along_mean_" dtype]),
        Sum | Mean => for_each_dtype!(named ["along_sum_" dtype]),
        Product => for_each_dtype!(named ["along_product_" dtype]),
        Min => for_each_dtype!(named ["along_min_" dtype]),
        Max => for_each_dtype!(named ["along_max_" dtype]),
        And => "along_and",
        Or => "along_or",
        Xor => "along_xor",
    };
    Kernel { module: module::along(dtype), name }
}

fn tree_of(op: ReduceOp, dtype: DType) -> Kernel {
    let name = match op {
        Sum | Mean => for_each_dtype!(named ["tree_sum_" dtype]),
        Product => for_each_dtype!(named ["tree_product_" dtype]),
        Min => for_each_dtype!(named ["tree_min_" dtype]),
        Max => for_each_dtype!(named ["tree_max_" dtype]),
        And => "tree_and",
        Or => "tree_or",
        Xor => "tree_xor",
    };
    Kernel { module: module::along(dtype), name }
}
