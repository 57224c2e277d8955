//! The adjoint of each linear collective: what a gradient goes through on the way back.
//!
//! A collective `f` takes the ranks' inputs `x` to the ranks' outputs. Its adjoint takes gradients
//! `y` of the outputs to gradients of the inputs, with `<f(x), y> = <x, f*(y)>`, the inner products
//! being taken over all ranks.

use crate::{
    collective::{self, Error},
    number::Number,
    op::ReduceOp,
};

/// Of all_reduce by sum or mean: itself.
pub fn all_reduce<T: Number>(op: ReduceOp, gradients: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    linear::<T>(op)?;
    collective::all_reduce(op, gradients)
}

/// Of reduce by sum or mean to a root: the root's gradient for all, of a mean divided by their
/// number.
pub fn reduce<T: Number>(op: ReduceOp, gradient: &[T], ranks: usize) -> Result<Vec<Vec<T>>, Error> {
    linear::<T>(op)?;
    Ok(collective::broadcast(&divided(op, gradient, ranks), ranks))
}

/// Of broadcast: the sum, for the root.
pub fn broadcast<T: Number>(gradients: &[Vec<T>]) -> Result<Vec<T>, Error> {
    collective::reduce(ReduceOp::Sum, gradients)
}

/// Of gather of `counts[rank]` elements a rank: each its part of the root's gradient.
pub fn gather<T: Number>(gradient: &[T], counts: &[usize]) -> Result<Vec<Vec<T>>, Error> {
    collective::scatter_v(gradient, counts)
}

/// Of scatter, even or not: the gradients one after the other, for the root.
pub fn scatter<T: Number>(gradients: &[Vec<T>]) -> Vec<T> {
    collective::gather(gradients)
}

/// Of all_gather of `counts[rank]` elements a rank: each its part of the sum.
pub fn all_gather<T: Number>(gradients: &[Vec<T>], counts: &[usize]) -> Result<Vec<Vec<T>>, Error> {
    collective::reduce_scatter_v(ReduceOp::Sum, gradients, counts)
}

/// Of reduce_scatter by sum or mean, even or not: all the gradients for all, of a mean divided by
/// the number of ranks.
pub fn reduce_scatter<T: Number>(op: ReduceOp, gradients: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    linear::<T>(op)?;
    Ok(collective::broadcast(&divided(op, &gradients.concat(), gradients.len()), gradients.len()))
}

/// Of all_to_all of `counts[s][r]` elements from rank `s` to rank `r`: every part goes back.
pub fn all_to_all<T: Number>(gradients: &[Vec<T>], counts: &[Vec<usize>]) -> Result<Vec<Vec<T>>, Error> {
    let back: Vec<Vec<usize>> = (0..counts.len()).map(|to| counts.iter().map(|from| from[to]).collect()).collect();
    collective::all_to_all_v(gradients, &back)
}

fn divided<T: Number>(op: ReduceOp, gradient: &[T], ranks: usize) -> Vec<T> {
    gradient.iter().map(|element| T::finish(op, element.widen(), ranks)).collect()
}

/// Sum and mean are linear; the others have no adjoint.
fn linear<T: Number>(op: ReduceOp) -> Result<(), Error> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean if op.result(T::DTYPE) == Some(T::DTYPE) => Ok(()),
        _ => Err(Error::Undefined { op, dtype: T::DTYPE }),
    }
}
