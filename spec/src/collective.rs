//! The results of each collective on flat data. The input is one `Vec` of elements per rank, and
//! the output one `Vec` per rank, or one for the root.
//!
//! The results are the same for blocking and asynchronous calls, in place and out of place, and on
//! every transport.

use crate::{
    dtype::DType,
    number::{Number, Reduction},
    op::ReduceOp,
};
use std::fmt;

/// The reason why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The operation has no result of this type ([`ReduceOp::result`]).
    Undefined {
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// A replica has no elements along the axes, and the operation has no identity
    /// ([`ReduceOp::has_identity`]).
    NoIdentity {
        /// The operation.
        op: ReduceOp,
        /// The first replica without elements.
        replica: usize,
    },
    /// A replica's shape (or count, or number of counts) does not agree with replica 0's, or with
    /// the arguments of the call.
    Shape {
        /// The first replica that differs.
        replica: usize,
    },
    /// A scalar has no axis to gather along.
    Scalar,
    /// The tensor has no such axis.
    AxisOutOfRange {
        /// The requested axis; a negative axis counts from the end.
        axis: isize,
        /// The number of axes.
        rank: usize,
    },
    /// The same axis is named twice.
    AxisRepeated {
        /// The axis, counted from the first.
        axis: usize,
    },
    /// The count is not a multiple of the number of ranks.
    Indivisible {
        /// The number of elements to divide.
        count: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// An index of sparse rows is outside the dense tensor.
    IndexOutOfRange {
        /// The replica that has the index.
        replica: usize,
        /// The position among that replica's indices.
        row: usize,
        /// The index.
        index: i64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Undefined { op, dtype } => write!(f, "{op} is not defined on {dtype}"),
            Error::NoIdentity { op, replica } => {
                write!(f, "{op} has no identity for replica {replica}, which is empty")
            }
            Error::Shape { replica } => write!(f, "the shape on replica {replica} does not agree"),
            Error::Scalar => write!(f, "a scalar has no axis to gather along"),
            Error::AxisOutOfRange { axis, rank } => write!(f, "axis {axis} of a tensor of rank {rank}"),
            Error::AxisRepeated { axis } => write!(f, "axis {axis} is named twice"),
            Error::Indivisible { count, ranks } => write!(f, "{count} elements are no even blocks for {ranks} ranks"),
            Error::IndexOutOfRange { replica, row, index } => {
                write!(f, "index {index} of row {row} on replica {replica} is out of range")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Combines the ranks' elements for the root. Element `i` of the result is the
/// [`fold`](crate::order::fold) of the ranks' elements `i`.
///
/// A mean is defined only on floats here, because the result has the type of the contributions; see
/// [`mean`].
///
/// # Panics
/// If there are no ranks.
pub fn reduce<T: Number>(op: ReduceOp, inputs: &[Vec<T>]) -> Result<Vec<T>, Error> {
    combine(inputs, op, T::reduction(op))
}

/// Returns the mean of the ranks' elements for the root, also of integers.
///
/// # Panics
/// If there are no ranks.
pub fn mean<T: Number>(inputs: &[Vec<T>]) -> Result<Vec<T::Mean>, Error> {
    combine(inputs, ReduceOp::Mean, T::mean())
}

/// Combines the ranks' elements by the steps of `op`, if it is defined.
fn combine<T: Number, A: Copy, R>(
    inputs: &[Vec<T>],
    op: ReduceOp,
    steps: Option<Reduction<T, A, R>>,
) -> Result<Vec<R>, Error> {
    let steps = steps.ok_or(Error::Undefined { op, dtype: T::DTYPE })?;
    agree(inputs)?;
    let element = |i: usize| {
        let elements: Vec<T> = inputs.iter().map(|input| input[i]).collect();
        steps.fold(&elements).expect("a rank")
    };
    Ok((0..inputs[0].len()).map(element).collect())
}

/// Combines the ranks' elements for every rank.
///
/// # Panics
/// If there are no ranks.
pub fn all_reduce<T: Number>(op: ReduceOp, inputs: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    Ok(broadcast(&reduce(op, inputs)?, inputs.len()))
}

/// Combines the ranks' elements. Each rank gets an even block of the result.
///
/// # Panics
/// If there are no ranks.
pub fn reduce_scatter<T: Number>(op: ReduceOp, inputs: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    let (count, ranks) = (inputs[0].len(), inputs.len());
    if !count.is_multiple_of(ranks) {
        return Err(Error::Indivisible { count, ranks });
    }
    reduce_scatter_v(op, inputs, &vec![count / ranks; ranks])
}

/// Combines the ranks' elements. Each rank gets `counts[rank]` elements of the result.
///
/// # Panics
/// If there are no ranks.
pub fn reduce_scatter_v<T: Number>(op: ReduceOp, inputs: &[Vec<T>], counts: &[usize]) -> Result<Vec<Vec<T>>, Error> {
    scatter_v(&reduce(op, inputs)?, counts)
}

/// Copies the root's elements for every rank.
pub fn broadcast<T: Clone>(input: &[T], ranks: usize) -> Vec<Vec<T>> {
    vec![input.to_vec(); ranks]
}

/// Copies rank `from`'s elements for rank `to`, and nothing for the others.
///
/// # Errors
/// [`Error::Shape`] if they are the same rank.
///
/// # Panics
/// If there is no such rank.
pub fn send_recv<T: Clone>(inputs: &[Vec<T>], from: usize, to: usize) -> Result<Vec<Option<Vec<T>>>, Error> {
    if from == to {
        return Err(Error::Shape { replica: from });
    }
    let mut outputs = vec![None; inputs.len()];
    outputs[to] = Some(inputs[from].clone());
    Ok(outputs)
}

/// Concatenates the ranks' elements for the root. Counts may differ.
pub fn gather<T: Clone>(inputs: &[Vec<T>]) -> Vec<T> {
    inputs.concat()
}

/// Concatenates the ranks' elements for every rank. Counts may differ.
pub fn all_gather<T: Clone>(inputs: &[Vec<T>]) -> Vec<Vec<T>> {
    broadcast(&gather(inputs), inputs.len())
}

/// Returns an even block of the root's elements for each rank.
pub fn scatter<T: Clone>(input: &[T], ranks: usize) -> Result<Vec<Vec<T>>, Error> {
    if !input.len().is_multiple_of(ranks) {
        return Err(Error::Indivisible { count: input.len(), ranks });
    }
    let count = input.len() / ranks;
    Ok((0..ranks).map(|rank| input[rank * count..(rank + 1) * count].to_vec()).collect())
}

/// Returns `counts[rank]` of the root's elements for each rank.
pub fn scatter_v<T: Clone>(input: &[T], counts: &[usize]) -> Result<Vec<Vec<T>>, Error> {
    if counts.iter().sum::<usize>() != input.len() {
        return Err(Error::Shape { replica: 0 });
    }
    let mut rest = input.iter().cloned();
    Ok(counts.iter().map(|&count| rest.by_ref().take(count).collect()).collect())
}

/// Moves an even block from each rank to each rank: block `r` of rank `s` becomes block `s` of rank
/// `r`.
pub fn all_to_all<T: Clone>(inputs: &[Vec<T>]) -> Result<Vec<Vec<T>>, Error> {
    agree(inputs)?;
    let parts: Vec<Vec<Vec<T>>> = inputs.iter().map(|input| scatter(input, inputs.len())).collect::<Result<_, _>>()?;
    Ok(deliver(&parts))
}

/// Moves `counts[s][r]` elements from rank `s` to rank `r`, which gets them in the order of the
/// senders.
pub fn all_to_all_v<T: Clone>(inputs: &[Vec<T>], counts: &[Vec<usize>]) -> Result<Vec<Vec<T>>, Error> {
    let part = |(replica, input): (usize, &Vec<T>)| match scatter_v(input, &counts[replica]) {
        Ok(parts) if parts.len() == inputs.len() => Ok(parts),
        _ => Err(Error::Shape { replica }),
    };
    let parts: Vec<Vec<Vec<T>>> = inputs.iter().enumerate().map(part).collect::<Result<_, _>>()?;
    Ok(deliver(&parts))
}

/// Returns the members of each rank's new group, in the order of their ranks in it: the ranks of
/// the same color, by key, and ranks of equal keys by rank. `choices` has each rank's color and
/// key. A rank without a color gets no group.
///
/// ```
/// use consonance_spec::collective::split;
/// let groups = split(&[(Some(7), 1), (None, 0), (Some(7), 0), (Some(8), 0)]);
/// assert_eq!(groups, [Some(vec![2, 0]), None, Some(vec![2, 0]), Some(vec![3])]);
/// ```
pub fn split(choices: &[(Option<u32>, i32)]) -> Vec<Option<Vec<usize>>> {
    let group = |&(color, _): &(Option<u32>, i32)| {
        let color = color?;
        let mut members: Vec<usize> = (0..choices.len()).filter(|&rank| choices[rank].0 == Some(color)).collect();
        members.sort_by_key(|&rank| choices[rank].1);
        Some(members)
    };
    choices.iter().map(group).collect()
}

fn deliver<T: Clone>(parts: &[Vec<Vec<T>>]) -> Vec<Vec<T>> {
    (0..parts.len()).map(|to| parts.iter().flat_map(|from| from[to].clone()).collect()).collect()
}

fn agree<T>(inputs: &[Vec<T>]) -> Result<(), Error> {
    match inputs.iter().position(|input| input.len() != inputs[0].len()) {
        Some(replica) => Err(Error::Shape { replica }),
        None => Ok(()),
    }
}
