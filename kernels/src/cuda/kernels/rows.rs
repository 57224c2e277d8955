//! Launches that add rows of a tensor, as a sparse tensor needs it.

use super::{
    fold::Same,
    launch::{Kernel, Launch, Parameters, Unsupported, aligned},
    module::{self, named},
};
use consonance_spec::{DType, ReduceOp, for_each_dtype};

/// The rows that are added, as device addresses of arrays of 64-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The numbers of the rows of the source, group after group. In a group they are in the order
    /// of the contributions.
    pub order: u64,
    /// For each group, where it begins in `order`; then where the last group ends. Each group has 1
    /// to 2^26 rows.
    pub starts: u64,
    /// For each group, the row of the target that it becomes; `None` for the group's own number.
    pub places: Option<u64>,
    /// The number of groups.
    pub groups: u64,
    /// The elements of a row.
    pub width: u64,
}

/// Adds the rows of each group in canonical order, rounded once. `source` and `target` are
/// addresses of elements. No two groups have the same place; the target is disjoint from the
/// source.
///
/// With the rows of a sparse tensor grouped by index this removes duplicates. With the indices as
/// places, and a target [filled](super::fill) with zeros, it makes the dense tensor.
///
/// # Errors
/// If there is no sum of the type, or arguments are out of their limits.
pub fn sum_rows(dtype: DType, source: u64, target: u64, rows: Rows) -> Result<Launch, Unsupported> {
    let op = ReduceOp::Sum;
    op.result(dtype).ok_or(Unsupported::Undefined { op, dtype })?;
    aligned("sources and targets", &[source, target], dtype.size())?;
    aligned("orders, starts and places", &[rows.order, rows.starts, rows.places.unwrap_or(0)], 8)?;
    let same = match Same::new(op, dtype) {
        Same::Of(same) => same,
        Same::Bits(_) => return Err(Unsupported::Type { what: "sums of rows", dtype }),
    };
    let kernel = Kernel { module: module::ROWS, name: for_each_dtype!(named ["rows_sum_" same]) };
    let values = rows.groups.checked_mul(rows.width).ok_or(Unsupported::TooLarge)?;
    let parameters = Parameters::new()
        .u64(source)
        .u64(target)
        .u64(rows.order)
        .u64(rows.starts)
        .u64(rows.places.unwrap_or(0))
        .u64(rows.groups)
        .u64(rows.width);
    Ok(Launch::new(kernel, values, 1, parameters))
}
