//! The results of reduce and gather on sparse rows.

use crate::{
    array::{self, Array},
    collective::{self, Error},
    number::Number,
    op::ReduceOp,
};
use std::collections::BTreeMap;

/// Rows of a tensor that is zero elsewhere. An index may occur more than once; its rows are added.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedSlices<T> {
    /// The rows, of shape `[rows, dense_shape[1], dense_shape[2], …]`.
    pub values: Array<T>,
    /// The index of each row along the first axis of the dense tensor.
    pub indices: Vec<i64>,
    /// The shape of the dense tensor, which has at least one axis.
    pub dense_shape: Vec<usize>,
}

/// Returns the sum over replicas: the concatenation of their rows in replica order. Nothing is
/// added, so nothing is rounded.
///
/// # Panics
/// If there are no replicas.
pub fn sum<T: Number>(replicas: &[IndexedSlices<T>]) -> Result<IndexedSlices<T>, Error> {
    if ReduceOp::Sum.result(T::DTYPE).is_none() {
        return Err(Error::Undefined { op: ReduceOp::Sum, dtype: T::DTYPE });
    }
    check(replicas)?;
    if let Some(replica) = replicas.iter().position(|slices| slices.dense_shape != replicas[0].dense_shape) {
        return Err(Error::Shape { replica });
    }
    concatenate(replicas, replicas[0].dense_shape.clone(), |_| 0)
}

/// Returns the mean over replicas: their [`sum`] with each value divided by the number of replicas.
///
/// # Panics
/// If there are no replicas.
pub fn mean<T: Number>(replicas: &[IndexedSlices<T>]) -> Result<IndexedSlices<T::Mean>, Error> {
    let IndexedSlices { values, indices, dense_shape } = sum(replicas)?;
    let steps = T::mean().ok_or(Error::Undefined { op: ReduceOp::Mean, dtype: T::DTYPE })?;
    let mean = |value| (steps.finish)((steps.widen)(value), replicas.len());
    let data = values.data.into_iter().map(mean).collect();
    Ok(IndexedSlices { values: Array { shape: values.shape, data }, indices, dense_shape })
}

/// Concatenates the dense tensors along the first axis, as sparse rows. Their sizes along this axis
/// may differ.
///
/// # Panics
/// If there are no replicas.
pub fn gather<T: Number>(replicas: &[IndexedSlices<T>]) -> Result<IndexedSlices<T>, Error> {
    check(replicas)?;
    let rows_before = |replica: usize| replicas[..replica].iter().map(|slices| slices.dense_shape[0]).sum();
    let mut dense_shape = replicas[0].dense_shape.clone();
    dense_shape[0] = rows_before(replicas.len());
    concatenate(replicas, dense_shape, rows_before)
}

/// Returns one row per index, sorted by index. Rows of equal index are added in canonical order,
/// then rounded once.
pub fn dedupe<T: Number>(slices: &IndexedSlices<T>) -> Result<IndexedSlices<T>, Error> {
    if ReduceOp::Sum.result(T::DTYPE).is_none() {
        return Err(Error::Undefined { op: ReduceOp::Sum, dtype: T::DTYPE });
    }
    check(std::slice::from_ref(slices))?;
    let width: usize = slices.dense_shape[1..].iter().product();
    let mut rows: BTreeMap<i64, Vec<Vec<T>>> = BTreeMap::new();
    for (row, &index) in slices.indices.iter().enumerate() {
        rows.entry(index).or_default().push(slices.values.data[row * width..][..width].to_vec());
    }
    let mut shape = slices.values.shape.clone();
    shape[0] = rows.len();
    let sums = rows.values().map(|rows| collective::reduce(ReduceOp::Sum, rows)).collect::<Result<Vec<_>, _>>()?;
    Ok(IndexedSlices {
        values: Array::new(&shape, sums.concat()),
        indices: rows.into_keys().collect(),
        dense_shape: slices.dense_shape.clone(),
    })
}

/// Returns the dense tensor.
pub fn densify<T: Number>(slices: &IndexedSlices<T>) -> Result<Array<T>, Error> {
    let IndexedSlices { values, indices, dense_shape } = dedupe(slices)?;
    let width: usize = dense_shape[1..].iter().product();
    let mut data = vec![T::default(); dense_shape.iter().product()];
    for (row, index) in indices.into_iter().enumerate() {
        data[index as usize * width..][..width].copy_from_slice(&values.data[row * width..][..width]);
    }
    Ok(Array::new(&dense_shape, data))
}

/// Returns `target` after a scatter: `update` combines each row that has an index with the row of
/// `slices`. Rows of equal index are added first, as in [`dedupe`]. Other rows keep their bits.
pub fn scatter<T: Number>(
    target: &Array<T>,
    slices: &IndexedSlices<T>,
    update: impl Fn(T, T) -> T,
) -> Result<Array<T>, Error> {
    if target.shape != slices.dense_shape {
        return Err(Error::Shape { replica: 0 });
    }
    let IndexedSlices { values, indices, dense_shape } = dedupe(slices)?;
    let width: usize = dense_shape[1..].iter().product();
    let mut data = target.data.clone();
    for (row, index) in indices.into_iter().enumerate() {
        for place in 0..width {
            let element = &mut data[index as usize * width + place];
            *element = update(*element, values.data[row * width + place]);
        }
    }
    Ok(Array::new(&dense_shape, data))
}

fn concatenate<T: Number>(
    replicas: &[IndexedSlices<T>],
    dense_shape: Vec<usize>,
    offset: impl Fn(usize) -> usize,
) -> Result<IndexedSlices<T>, Error> {
    let values: Vec<Array<T>> = replicas.iter().map(|slices| slices.values.clone()).collect();
    let shifted = |(replica, slices): (usize, &IndexedSlices<T>)| {
        let offset = offset(replica) as i64;
        slices.indices.iter().map(move |index| index + offset).collect::<Vec<i64>>()
    };
    Ok(IndexedSlices {
        values: array::gather(&values, 0)?,
        indices: replicas.iter().enumerate().flat_map(shifted).collect(),
        dense_shape,
    })
}

/// Checks that rows, indices and dense shape fit each other on every replica, and that the rows'
/// shapes agree.
fn check<T>(replicas: &[IndexedSlices<T>]) -> Result<(), Error> {
    for (replica, slices) in replicas.iter().enumerate() {
        let (dense, values) = (&slices.dense_shape, &slices.values.shape);
        let fits = |shape: &[usize]| shape.get(1..) == replicas[0].dense_shape.get(1..);
        if dense.is_empty() || !fits(dense) || !fits(values) || values[0] != slices.indices.len() {
            return Err(Error::Shape { replica });
        }
        let in_range = |&index: &i64| usize::try_from(index).is_ok_and(|index| index < dense[0]);
        if let Some(row) = slices.indices.iter().position(|index| !in_range(index)) {
            return Err(Error::IndexOutOfRange { replica, row, index: slices.indices[row] });
        }
    }
    Ok(())
}
