//! The adjoint of each linear collective, which carries gradients backward.
//!
//! A collective `f` maps the ranks' inputs `x` to the ranks' outputs. Its adjoint maps gradients
//! `y` of the outputs to gradients of the inputs, with `<f(x), y> = <x, f*(y)>`. The inner products
//! are over all ranks.

use crate::{
    collective::{self, Error},
    number::{Number, Reduction},
    op::ReduceOp,
};

/// The adjoint of all_reduce with sum or mean: itself.
pub fn all_reduce<T: Number>(op: ReduceOp, gradients: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    linear::<T>(op)?;
    collective::all_reduce(op, gradients)
}

/// The adjoint of reduce with sum or mean: the root's gradient for all ranks, divided by their
/// number for a mean.
pub fn reduce<T: Number>(op: ReduceOp, gradient: &[T], ranks: usize) -> Result<Vec<Vec<T>>, Error> {
    Ok(collective::broadcast(&divided(op, gradient, ranks)?, ranks))
}

/// The adjoint of broadcast: the sum, for the root.
pub fn broadcast<T: Number>(gradients: &[Vec<T>]) -> Result<Vec<T>, Error> {
    collective::reduce(ReduceOp::Sum, gradients)
}

/// The adjoint of gather with `counts[rank]` elements per rank: each rank gets its part of the
/// root's gradient.
pub fn gather<T: Number>(gradient: &[T], counts: &[usize]) -> Result<Vec<Vec<T>>, Error> {
    collective::scatter_v(gradient, counts)
}

/// The adjoint of scatter, even or not: the concatenated gradients, for the root.
pub fn scatter<T: Number>(gradients: &[Vec<T>]) -> Vec<T> {
    collective::gather(gradients)
}

/// The adjoint of all_gather with `counts[rank]` elements per rank: each rank gets its part of the
/// sum.
pub fn all_gather<T: Number>(gradients: &[Vec<T>], counts: &[usize]) -> Result<Vec<Vec<T>>, Error> {
    collective::reduce_scatter_v(ReduceOp::Sum, gradients, counts)
}

/// The adjoint of reduce_scatter with sum or mean, even or not: all gradients for all ranks,
/// divided by the number of ranks for a mean.
pub fn reduce_scatter<T: Number>(op: ReduceOp, gradients: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    Ok(collective::broadcast(&divided(op, &gradients.concat(), gradients.len())?, gradients.len()))
}

/// The adjoint of all_to_all with `counts[s][r]` elements from rank `s` to rank `r`: every part
/// goes back.
pub fn all_to_all<T: Number>(gradients: &[Vec<T>], counts: &[Vec<usize>]) -> Result<Vec<Vec<T>>, Error> {
    let back: Vec<Vec<usize>> = (0..counts.len()).map(|to| counts.iter().map(|from| from[to]).collect()).collect();
    collective::all_to_all_v(gradients, &back)
}

/// Returns the gradient, divided by the number of ranks for a mean.
fn divided<T: Number>(op: ReduceOp, gradient: &[T], ranks: usize) -> Result<Vec<T>, Error> {
    let Reduction { widen, finish, .. } = linear::<T>(op)?;
    Ok(gradient.iter().map(|&element| finish(widen(element), ranks)).collect())
}

/// Returns the steps of a linear operation. Only sum and mean have an adjoint.
fn linear<T: Number>(op: ReduceOp) -> Result<Reduction<T, T::Acc, T>, Error> {
    let is_linear = matches!(op, ReduceOp::Sum | ReduceOp::Mean);
    let defined = T::reduction(op).filter(|_| is_linear);
    defined.ok_or(Error::Undefined { op, dtype: T::DTYPE })
}
