//! Gradients of a [`Communicator`]'s collectives, on slices. Each takes the counts, root and
//! operation of its collective.
//!
//! ```
//! use consonance::{Communicator, gradient};
//! std::thread::scope(|scope| {
//!     for mut rank in Communicator::threads(2) {
//!         scope.spawn(move || {
//!             // Rank 0 gave one element to the all-gather, rank 1 two.
//!             let mut own = vec![0.0f32; 1 + rank.rank()];
//!             gradient::slices::all_gather_v(&mut rank, &[1.0, 2.0, 3.0], &mut own, &[1, 2]).unwrap();
//!             assert_eq!(own, if rank.rank() == 0 { vec![2.0] } else { vec![4.0, 6.0] });
//!         });
//!     }
//! });
//! ```

use super::linear;
use crate::{
    Communicator, Error, ReduceOp, Result,
    comm::{agreement::Agreement, call::Call},
    error::{IntoReduceOp, op_of},
    value::indexed_slices,
};
use consonance_kernels::{cpu::copy::copy_own, digest::digest};
use consonance_spec::{Element, Kind};

/// The gradient of [`Communicator::all_reduce`] by sum or mean. `data` is the gradient of the
/// result and becomes that of the input.
///
/// # Errors
/// [`Error::InvalidCall`] for another operation, or the mean of integers; otherwise as the
/// collective.
pub fn all_reduce<T: Element>(communicator: &mut Communicator, op: impl IntoReduceOp, data: &mut [T]) -> Result<()> {
    let op = linear_op::<T>(communicator, "gradient::slices::all_reduce", Kind::AllReduce, op)?;
    communicator.all_reduce(op, data)
}

/// The gradient of [`Communicator::reduce`] by sum or mean. On `root`, `data` is the gradient of
/// the result. On every rank it becomes the gradient of the rank's input.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce<T: Element>(
    communicator: &mut Communicator,
    op: impl IntoReduceOp,
    data: &mut [T],
    root: usize,
) -> Result<()> {
    let call = "gradient::slices::reduce";
    let op = linear_op::<T>(communicator, call, Kind::Broadcast, op)?;
    agreeing_on(communicator, op, Call::Broadcast { data: (&mut *data).into(), root })?;
    divide(call, op, data, communicator.size())
}

/// The gradient of [`Communicator::broadcast`]. `data` is the gradient of the result. On `root` it
/// becomes that of the input, on the other ranks zero.
///
/// # Errors
/// [`Error::InvalidCall`] if there is no rank `root`, or `T` cannot be added; otherwise as the
/// collective.
pub fn broadcast<T: Element>(communicator: &mut Communicator, data: &mut [T], root: usize) -> Result<()> {
    communicator.reduce(ReduceOp::Sum, data, root)?;
    if communicator.rank() != root {
        data.fill(T::default());
    }
    Ok(())
}

/// The gradient of [`Communicator::gather`]. Scatters `root`'s `upstream`, the gradient of the
/// result, in even parts to every rank's `gradient`.
///
/// # Errors
/// As [`Communicator::scatter`].
pub fn gather<T: Element>(
    communicator: &mut Communicator,
    upstream: Option<&[T]>,
    gradient: &mut [T],
    root: usize,
) -> Result<()> {
    communicator.scatter(upstream, Some(gradient), root)
}

/// The gradient of [`Communicator::gather_v`]. Scatters `root`'s `upstream`, the gradient of the
/// result: `counts[r]` elements to rank `r`'s `gradient`.
///
/// # Errors
/// As [`Communicator::scatter_v`].
pub fn gather_v<T: Element>(
    communicator: &mut Communicator,
    upstream: Option<&[T]>,
    gradient: &mut [T],
    counts: &[usize],
    root: usize,
) -> Result<()> {
    communicator.scatter_v(upstream, Some(gradient), counts, root)
}

/// The gradient of [`Communicator::scatter`]. Gathers every rank's `upstream`, the gradient of its
/// part, into `root`'s `gradient`.
///
/// # Errors
/// As [`Communicator::gather`].
pub fn scatter<T: Element>(
    communicator: &mut Communicator,
    upstream: &[T],
    gradient: Option<&mut [T]>,
    root: usize,
) -> Result<()> {
    communicator.gather(upstream, gradient, root)
}

/// The gradient of [`Communicator::scatter_v`]. Gathers every rank's `upstream`, `counts[r]`
/// elements on rank `r`, into `root`'s `gradient`.
///
/// # Errors
/// As [`Communicator::gather_v`].
pub fn scatter_v<T: Element>(
    communicator: &mut Communicator,
    upstream: &[T],
    gradient: Option<&mut [T]>,
    counts: &[usize],
    root: usize,
) -> Result<()> {
    communicator.gather_v(Some(upstream), gradient, counts, root)
}

/// The gradient of [`Communicator::all_gather_into`]. Sums every rank's `upstream`, the gradient of
/// the result, and writes block `r` of the sum to rank `r`'s `gradient`.
///
/// # Errors
/// As [`Communicator::reduce_scatter_into`].
pub fn all_gather<T: Element>(communicator: &mut Communicator, upstream: &[T], gradient: &mut [T]) -> Result<()> {
    communicator.reduce_scatter_into(ReduceOp::Sum, upstream, gradient)
}

/// The gradient of [`Communicator::all_gather_v`]. Sums every rank's `upstream`, the gradient of
/// the result, and writes rank `r`'s `counts[r]` elements of the sum to its `gradient`.
///
/// Makes one reduction for each rank as root. Every element moves once, and nothing is allocated.
///
/// # Errors
/// [`Error::InvalidCall`] if the counts do not fit; otherwise as [`Communicator::reduce_into`].
pub fn all_gather_v<T: Element>(
    communicator: &mut Communicator,
    upstream: &[T],
    gradient: &mut [T],
    counts: &[usize],
) -> Result<()> {
    let world = communicator.world();
    let call = "gradient::slices::all_gather_v";
    let total = counts.iter().try_fold(0usize, |total, &count| total.checked_add(count));
    let fit = if counts.len() != world.size() {
        Err(Error::invalid(call, "counts", format!("{} counts", world.size()), format!("{} counts", counts.len())))
    } else if total != Some(upstream.len()) {
        Err(Error::invalid(call, "counts", format!("{} elements in all", upstream.len()), format!("{counts:?}")))
    } else if counts[world.rank()] != gradient.len() {
        let expected = format!("{} elements", counts[world.rank()]);
        Err(Error::invalid(call, "gradient", expected, format!("{} elements", gradient.len())))
    } else {
        Ok(())
    };
    let fit = fit.map_err(|error| error.of_replica(world.rank()));
    fit.inspect_err(|error| _ = communicator.refuse(Kind::Reduce, error))?;
    let mut rest = upstream;
    for (root, &count) in counts.iter().enumerate() {
        let (part, after) = rest.split_at(count);
        rest = after;
        let recv = (root == world.rank()).then_some(&mut *gradient);
        communicator.reduce_into(ReduceOp::Sum, part, recv, root)?;
    }
    Ok(())
}

/// The gradient of [`Communicator::reduce_scatter_into`] by sum or mean. Gathers every rank's
/// `upstream`, the gradient of its block, in rank order into each rank's `gradient`.
///
/// # Errors
/// As [`all_reduce`], and as [`Communicator::all_gather_into`].
pub fn reduce_scatter<T: Element>(
    communicator: &mut Communicator,
    op: impl IntoReduceOp,
    upstream: &[T],
    gradient: &mut [T],
) -> Result<()> {
    let call = "gradient::slices::reduce_scatter";
    let op = linear_op::<T>(communicator, call, Kind::AllGather, op)?;
    let (send, recv) = (Some(upstream.into()), (&mut *gradient).into());
    agreeing_on(communicator, op, Call::AllGather { send, recv, counts: None })?;
    divide(call, op, gradient, communicator.size())
}

/// The gradient of [`Communicator::all_to_all`]. `data` is the gradient of the result and becomes
/// that of the sent data.
///
/// # Errors
/// As the collective.
pub fn all_to_all<T: Element>(communicator: &mut Communicator, data: &mut [T]) -> Result<()> {
    communicator.all_to_all(data)
}

/// The gradient of [`Communicator::all_to_all_v`] with `send_counts` and `recv_counts`. Sends
/// `upstream`, the gradient of the received data, back into `gradient`, that of the sent data.
///
/// # Errors
/// As the collective.
pub fn all_to_all_v<T: Element>(
    communicator: &mut Communicator,
    upstream: &[T],
    send_counts: &[usize],
    gradient: &mut [T],
    recv_counts: &[usize],
) -> Result<()> {
    communicator.all_to_all_v(upstream, recv_counts, gradient, send_counts)
}

/// Checks the operation. On an error the call is refused, so that the other ranks fail too.
fn linear_op<T: Element>(
    communicator: &mut Communicator,
    call: &'static str,
    kind: Kind,
    op: impl IntoReduceOp,
) -> Result<ReduceOp> {
    let checked = op_of(call, op).and_then(|op| linear(call, op, T::DTYPE).map(|()| op));
    checked
        .map_err(|error| error.of_replica(communicator.rank()))
        .inspect_err(|error| _ = communicator.refuse(kind, error))
}

/// Makes a call that has no operation of its own; the ranks agree on `op` in it.
fn agreeing_on(communicator: &mut Communicator, op: ReduceOp, call: Call<'_>) -> Result<()> {
    let describe = || vec![("op".to_owned(), op.to_string())];
    communicator.execute(call, &Agreement { digest: digest(op.name()), describe: &describe, ..Agreement::NONE })
}

/// Divides the gradient by the number of ranks for a mean. Does nothing for a sum.
fn divide<T: Element>(call: &'static str, op: ReduceOp, data: &mut [T], ranks: usize) -> Result<()> {
    if op == ReduceOp::Mean {
        let divided = indexed_slices::divided(call, (&*data).into(), ranks)?;
        copy_own(divided.as_buf(), &mut data.into());
    }
    Ok(())
}
