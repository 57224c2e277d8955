//! The rules of exact reductions, whose results are rounded once.

use super::{
    axis::Flat,
    nest::{Leaf, Path, Value},
};
use crate::{Axes, Error, ReduceOp, Result, Tensor};
use consonance_kernels::cpu::exact;

/// Checks a leaf for an exact reduction, whatever the other replicas pass.
///
/// # Errors
/// [`Error::InvalidCall`] for an operation other than sum and mean, an element type other than f32
/// and f64, rows, an axis out of range, or elements that are not in the memory of the host.
pub(crate) fn check(call: &'static str, op: ReduceOp, leaf: &Leaf, axes: &Axes) -> Result<()> {
    let path = || leaf.path.to_string();
    let Value::Dense(tensor) = &leaf.value else {
        return Err(Error::invalid(call, path(), "a tensor", "IndexedSlices"));
    };
    check_op(call, op)?;
    if !exact::is_defined(op, tensor.dtype()) {
        return Err(Error::invalid(call, path(), "elements of f32 or f64", tensor.dtype().to_string()));
    }
    axes.resolve(call, &leaf.path, tensor.rank())?;
    tensor.host().map(drop)
}

/// Checks the operation of an exact reduction.
///
/// # Errors
/// [`Error::InvalidCall`] for an operation other than sum and mean.
pub(crate) fn check_op(call: &'static str, op: ReduceOp) -> Result<ReduceOp> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => Ok(op),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            Err(Error::invalid(call, "op", "sum or mean", op.name()))
        }
    }
}

/// Returns the view of a [checked](check) tensor along the axes, and the shape of the result.
pub(crate) fn view(call: &'static str, path: &Path, tensor: &Tensor, axes: &Axes) -> Result<(Flat, Vec<usize>)> {
    let removed = axes.resolve(call, path, tensor.rank())?.unwrap_or_else(|| vec![false; tensor.rank()]);
    Ok((Flat::new(tensor, &removed)?, Flat::kept(tensor, &removed)))
}
