//! The results of reduce and gather on tensors, with axes and ragged sizes.

use crate::{
    collective::Error,
    number::{Number, Reduction},
    op::ReduceOp,
    order::{fold, fold_along},
};

/// A tensor, with its elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// The size along each axis; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements. Their number is the product of the sizes.
    pub data: Vec<T>,
}

impl<T> Array<T> {
    /// Makes a tensor of this shape with these elements.
    ///
    /// # Panics
    /// If the number of elements is not the product of the sizes.
    pub fn new(shape: &[usize], data: Vec<T>) -> Array<T> {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of a tensor of shape {shape:?}");
        Array { shape: shape.to_vec(), data }
    }
}

/// Combines the replicas' tensors elementwise and, if there are any, along `axes`.
///
/// Negative axes count from the end. The order of `axes` does not matter. The result's shape does
/// not have them. Sizes along them may differ between replicas; all other sizes agree. Each replica
/// combines its elements along the axes, in row-major order, by [`fold_along`]. The replicas'
/// results are combined by [`fold`], and rounded once. A replica with no elements contributes the
/// operation's identity; if the operation has none, there is no result. A mean, here only of
/// floats, divides by the number of elements of all replicas together.
///
/// # Panics
/// If there are no replicas.
pub fn reduce<T: Number>(op: ReduceOp, replicas: &[Array<T>], axes: &[isize]) -> Result<Array<T>, Error> {
    combine(replicas, axes, op, T::reduction(op))
}

/// Returns the mean of the replicas' tensors as in [`reduce`], also of integers.
///
/// # Panics
/// If there are no replicas.
pub fn mean<T: Number>(replicas: &[Array<T>], axes: &[isize]) -> Result<Array<T::Mean>, Error> {
    combine(replicas, axes, ReduceOp::Mean, T::mean())
}

/// Concatenates the replicas' tensors along `axis`. Sizes along `axis` may differ; all other sizes
/// agree.
///
/// # Panics
/// If there are no replicas.
pub fn gather<T: Clone>(replicas: &[Array<T>], axis: isize) -> Result<Array<T>, Error> {
    let mut shape = replicas[0].shape.clone();
    if shape.is_empty() {
        return Err(Error::Scalar);
    }
    let axis = agree(replicas, &[axis])?[0];
    shape[axis] = replicas.iter().map(|replica| replica.shape[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let part = |replica: &Array<T>, i: usize| {
        let size = replica.shape[axis..].iter().product::<usize>();
        replica.data[i * size..(i + 1) * size].to_vec()
    };
    let data = (0..outer).flat_map(|i| replicas.iter().flat_map(move |replica| part(replica, i))).collect();
    Ok(Array::new(&shape, data))
}

/// Combines the replicas' tensors by the steps of `op`, if it is defined.
fn combine<T: Number, A: Copy, R>(
    replicas: &[Array<T>],
    axes: &[isize],
    op: ReduceOp,
    steps: Option<Reduction<T, A, R>>,
) -> Result<Array<R>, Error> {
    let Reduction { widen, combine, identity, finish } = steps.ok_or(Error::Undefined { op, dtype: T::DTYPE })?;
    let axes = agree(replicas, axes)?;
    let is_empty = |replica: &Array<T>| axes.iter().any(|&axis| replica.shape[axis] == 0);
    if let (None, Some(replica)) = (identity, replicas.iter().position(is_empty)) {
        return Err(Error::NoIdentity { op, replica });
    }
    let shape = without(&replicas[0].shape, &axes);
    let sequences: Vec<Vec<Vec<T>>> = replicas.iter().map(|replica| sequences(replica, &axes)).collect();
    let element = |i: usize| {
        let along = |sequence: &Vec<T>| {
            let parts: Vec<A> = sequence.iter().map(|&element| widen(element)).collect();
            fold_along(&parts, combine).or(identity).expect("an element or an identity")
        };
        let parts: Vec<A> = sequences.iter().map(|replica| along(&replica[i])).collect();
        let count = sequences.iter().map(|replica| replica[i].len()).sum();
        finish(fold(&parts, combine).expect("a replica"), count)
    };
    let data = (0..shape.iter().product()).map(element).collect();
    Ok(Array { shape, data })
}

/// Returns for each element of the result, in order, the elements that are combined into it, in
/// row-major order.
fn sequences<T: Copy>(array: &Array<T>, axes: &[usize]) -> Vec<Vec<T>> {
    let kept = without(&array.shape, axes);
    let mut sequences = vec![Vec::new(); kept.iter().product()];
    for (place, &element) in array.data.iter().enumerate() {
        let coordinates = without(&coordinates(place, &array.shape), axes);
        let target = coordinates.iter().zip(&kept).fold(0, |target, (i, size)| target * size + i);
        sequences[target].push(element);
    }
    sequences
}

/// Returns the coordinates of the element at position `place` of the row-major order.
fn coordinates(place: usize, shape: &[usize]) -> Vec<usize> {
    let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    (0..shape.len()).map(|axis| place / stride(axis) % shape[axis]).collect()
}

fn without(all: &[usize], axes: &[usize]) -> Vec<usize> {
    (0..all.len()).filter(|axis| !axes.contains(axis)).map(|axis| all[axis]).collect()
}

/// Returns the axes counted from the first, if the shapes agree on all other axes.
fn agree<T>(replicas: &[Array<T>], axes: &[isize]) -> Result<Vec<usize>, Error> {
    let rank = replicas[0].shape.len();
    let mut counted = Vec::new();
    for &axis in axes {
        let place = if axis < 0 { axis + rank as isize } else { axis };
        match usize::try_from(place) {
            Ok(axis) if counted.contains(&axis) => return Err(Error::AxisRepeated { axis }),
            Ok(place) if place < rank => counted.push(place),
            _ => return Err(Error::AxisOutOfRange { axis, rank }),
        }
    }
    let kept = |array: &Array<T>| (array.shape.len(), without(&array.shape, &counted));
    match replicas.iter().position(|replica| kept(replica) != kept(&replicas[0])) {
        Some(replica) => Err(Error::Shape { replica }),
        None => Ok(counted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_without_identity_refuses_a_replica_without_elements() {
        let nand =
            Reduction { widen: |x| x, combine: |a: u8, b: u8| !(a & b), identity: None, finish: |acc: u8, _| acc };
        let of = |sizes: &[usize]| {
            let replicas: Vec<Array<u8>> = sizes.iter().map(|&size| Array::new(&[size], vec![0x0f; size])).collect();
            combine(&replicas, &[0], ReduceOp::And, Some(nand))
        };
        assert_eq!(of(&[1, 1]), Ok(Array::new(&[], vec![0xf0])));
        assert_eq!(of(&[1, 0, 0]), Err(Error::NoIdentity { op: ReduceOp::And, replica: 1 }));
    }
}
