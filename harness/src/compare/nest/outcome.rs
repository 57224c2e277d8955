//! Tensors and sparse rows as bits, and the expected results of a call by the spec.

use super::super::with_type;
use crate::{
    cases::{Leaf, NestCall, NestCase, Then},
    sample::{Sample, keys, sample},
};
use consonance::{IndexedSlices, Tensor};
use consonance_kernels::digest::mix;
use consonance_spec::{
    Class, DType, ReduceOp,
    array::{self, Array},
    collective::{self, Error},
    for_each_dtype, sparse,
};

/// A leaf of a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// A tensor.
    Dense(Bits),
    /// Sparse rows.
    Sparse { values: Bits, indices: Vec<i64>, dense_shape: Vec<usize> },
}

/// A tensor's type, shape and elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bits {
    dtype: DType,
    shape: Vec<usize>,
    keys: Vec<u64>,
}

impl<T: Sample> From<&Array<T>> for Bits {
    fn from(array: &Array<T>) -> Bits {
        Bits { dtype: T::DTYPE, shape: array.shape.clone(), keys: keys(&array.data) }
    }
}

impl<T: Sample> From<sparse::IndexedSlices<T>> for Outcome {
    fn from(slices: sparse::IndexedSlices<T>) -> Outcome {
        let sparse::IndexedSlices { values, indices, dense_shape } = slices;
        Outcome::Sparse { values: (&values).into(), indices, dense_shape }
    }
}

impl Outcome {
    /// Returns the bits of a tensor of the runtime.
    pub(crate) fn of(tensor: &Tensor) -> Outcome {
        Outcome::Dense(bits(tensor))
    }

    /// Returns the bits of sparse rows of the runtime.
    pub(crate) fn of_rows(slices: &IndexedSlices) -> Outcome {
        let indices = match slices.indices().as_slice::<i32>() {
            Ok(indices) => indices.iter().map(|&index| index.into()).collect(),
            Err(_) => slices.indices().as_slice::<i64>().expect("indices of either width").to_vec(),
        };
        let dense_shape = slices.dense_shape().expect("rows of a known shape").to_vec();
        Outcome::Sparse { values: bits(slices.values()), indices, dense_shape }
    }
}

fn bits(tensor: &Tensor) -> Bits {
    fn typed<T: Sample>(tensor: &Tensor) -> Vec<u64> {
        keys(tensor.as_slice::<T>().expect("a tensor of this type"))
    }
    let keys = for_each_dtype!(with_type tensor.dtype(), typed(tensor););
    Bits { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), keys }
}

/// Returns the result of the call for each leaf on each replica, or the reason why the spec has
/// none.
pub(crate) fn outcomes(case: &NestCase) -> Result<Vec<Vec<Outcome>>, Error> {
    case.nest.flatten().1.iter().map(|leaf| for_each_dtype!(with_type leaf.dtype, typed(case, leaf);)).collect()
}

/// Returns the leaf of a replica or grain as a tensor.
pub(crate) fn array<T: Sample>(leaf: &Leaf, number: usize) -> Array<T> {
    let shape = &leaf.shapes[number];
    // All have values of one kind. Otherwise a large value would hide the rounding of the others.
    let seed = mix(leaf.seed, number as u64) / 3 * 3 + leaf.seed % 3;
    Array::new(shape, sample(seed, shape.iter().product()))
}

/// Returns the leaf of a replica or grain as up to five sparse rows. Their indices are arbitrary
/// and may be equal.
pub(crate) fn rows<T: Sample>(leaf: &Leaf, number: usize) -> sparse::IndexedSlices<T> {
    let dense_shape = leaf.shapes[number].clone();
    let seed = mix(leaf.seed, number as u64);
    let count = if dense_shape[0] == 0 { 0 } else { (seed >> 32) as usize % 6 };
    let mut shape = dense_shape.clone();
    shape[0] = count;
    let values = Array::new(&shape, sample(seed, shape.iter().product()));
    let indices = (0..count).map(|row| (mix(!seed, row as u64) % dense_shape[0] as u64) as i64).collect();
    sparse::IndexedSlices { values, indices, dense_shape }
}

fn typed<T: Sample<Mean: Sample>>(case: &NestCase, leaf: &Leaf) -> Result<Vec<Outcome>, Error> {
    let same = |outcome: Outcome| vec![outcome; case.size];
    if leaf.sparse {
        return sparse_outcome::<T>(case, leaf).map(same);
    }
    let arrays: Vec<Array<T>> = (0..case.contributions()).map(|number| array(leaf, number)).collect();
    match &case.call {
        NestCall::Reduce(op, axes) => reduce(*op, &arrays, axes).map(Outcome::Dense).map(same),
        NestCall::Gather(axis) => array::gather(&arrays, *axis).map(|all| same(Outcome::Dense((&all).into()))),
        NestCall::ReduceScatter(op) => blocks(*op, &arrays),
        NestCall::Broadcast(root) => Ok(same(Outcome::Dense((&arrays[*root]).into()))),
    }
}

fn is_mean_of_integers<T: Sample>(op: ReduceOp) -> bool {
    op == ReduceOp::Mean && matches!(T::DTYPE.class(), Class::Signed | Class::Unsigned)
}

fn reduce<T: Sample<Mean: Sample>>(op: ReduceOp, arrays: &[Array<T>], axes: &[isize]) -> Result<Bits, Error> {
    match is_mean_of_integers::<T>(op) {
        true => array::mean(arrays, axes).map(|result| (&result).into()),
        false => array::reduce(op, arrays, axes).map(|result| (&result).into()),
    }
}

/// Returns the combined tensor in even blocks along the first axis.
fn blocks<T: Sample<Mean: Sample>>(op: ReduceOp, arrays: &[Array<T>]) -> Result<Vec<Outcome>, Error> {
    fn cut<R: Sample>(all: Vec<R>, shape: &[usize], size: usize) -> Result<Vec<Outcome>, Error> {
        let blocks = collective::scatter(&all, size)?;
        Ok(blocks.into_iter().map(|block| Outcome::Dense((&Array::new(shape, block)).into())).collect())
    }
    let size = arrays.len();
    let mut shape = arrays[0].shape.clone();
    match shape.first_mut() {
        Some(first) if first.is_multiple_of(size) => *first /= size,
        Some(first) => return Err(Error::Indivisible { count: *first, ranks: size }),
        None => return Err(Error::Scalar),
    }
    let flat: Vec<Vec<T>> = arrays.iter().map(|array| array.data.clone()).collect();
    match is_mean_of_integers::<T>(op) {
        true => cut(collective::mean(&flat)?, &shape, size),
        false => cut(collective::reduce(op, &flat)?, &shape, size),
    }
}

fn sparse_outcome<T: Sample<Mean: Sample>>(case: &NestCase, leaf: &Leaf) -> Result<Outcome, Error> {
    let all: Vec<sparse::IndexedSlices<T>> = (0..case.contributions()).map(|number| rows(leaf, number)).collect();
    let undefined = |op: ReduceOp| Error::Undefined { op, dtype: T::DTYPE };
    match &case.call {
        NestCall::Reduce(op, axes) if !axes.is_empty() => {
            let dense = all.iter().map(sparse::densify).collect::<Result<Vec<_>, _>>()?;
            reduce(*op, &dense, axes).map(Outcome::Dense)
        }
        NestCall::Reduce(ReduceOp::Sum, _) => sparse::sum(&all).and_then(|rows| asked(case.then, rows)),
        NestCall::Reduce(ReduceOp::Mean, _) => sparse::mean(&all).and_then(|rows| asked(case.then, rows)),
        NestCall::Gather(axis) => {
            let rank = leaf.shapes[0].len() as isize;
            match *axis {
                axis if axis == 0 || axis == -rank => sparse::gather(&all).and_then(|rows| asked(case.then, rows)),
                axis => Err(Error::AxisOutOfRange { axis, rank: rank as usize }),
            }
        }
        // Sparse rows have no other op, and no blocks.
        NestCall::Reduce(op, _) | NestCall::ReduceScatter(op) => Err(undefined(*op)),
        NestCall::Broadcast(_) => Err(undefined(ReduceOp::Sum)),
    }
}

fn asked<T: Sample>(then: Then, rows: sparse::IndexedSlices<T>) -> Result<Outcome, Error> {
    match then {
        Then::Keep => Ok(rows.into()),
        Then::Dedupe => sparse::dedupe(&rows).map(Outcome::from),
        Then::Densify => sparse::densify(&rows).map(|dense| Outcome::Dense((&dense).into())),
    }
}
