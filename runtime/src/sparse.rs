//! Rows of a tensor: TensorFlow's `IndexedSlices`.

use crate::{Error, Result, Tensor};
use consonance_kernels::{
    axis::{self, Partial},
    buffer::{Buf, Memory},
    reduce::Reducer,
};
use consonance_spec::{DType, ReduceOp};

/// Some rows of a large tensor: `values[i]` belongs to row `indices[i]`. A row may be listed more than once; such rows add up.
///
/// ```
/// use consonance::{IndexedSlices, Tensor};
/// let slices = IndexedSlices::new(Tensor::from([[1.0f32], [2.0], [4.0]]), Tensor::from([2i64, 0, 2]), Some(vec![3, 1]))?;
/// assert_eq!(slices.to_dense()?, Tensor::from([[2.0f32], [0.0], [5.0]]));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexedSlices {
    pub(crate) values: Tensor,
    pub(crate) indices: Tensor,
    pub(crate) dense_shape: Option<Vec<usize>>,
}

impl IndexedSlices {
    /// `values` of shape `[rows, ...]` for the rows `indices`, of shape `[rows]` and type i32 or i64, of a tensor of
    /// `dense_shape`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the shapes do not fit each other or the indices are of another type. That the indices lie within
    /// the shape is checked where it matters: in [`to_dense`](IndexedSlices::to_dense).
    pub fn new(values: Tensor, indices: Tensor, dense_shape: Option<Vec<usize>>) -> Result<IndexedSlices> {
        let call = "IndexedSlices::new";
        if !matches!(indices.dtype(), DType::I32 | DType::I64) {
            return Err(Error::invalid(call, "indices", "i32 or i64", indices.dtype().name()));
        }
        let Some(&rows) = values.shape().first() else {
            return Err(Error::invalid(call, "values", "at least one dimension", "a scalar"));
        };
        if indices.shape() != [rows] {
            return Err(Error::invalid(
                call,
                "indices",
                format!("shape [{rows}]"),
                format!("shape {:?}", indices.shape()),
            ));
        }
        if let Some(shape) = dense_shape.as_ref().filter(|shape| shape.get(1..) != Some(&values.shape()[1..])) {
            let expected = format!("[rows] and then {:?}", &values.shape()[1..]);
            return Err(Error::invalid(call, "dense_shape", expected, format!("{shape:?}")));
        }
        Ok(IndexedSlices { values, indices, dense_shape })
    }

    /// The rows, of shape `[rows, ...]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The number of each row in the large tensor, of shape `[rows]`.
    pub fn indices(&self) -> &Tensor {
        &self.indices
    }

    /// The shape of the large tensor, if it is known.
    pub fn dense_shape(&self) -> Option<&[usize]> {
        self.dense_shape.as_deref()
    }

    /// The large tensor: rows listed more than once are added in canonical order, rows not listed are zero.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the dense shape is not known, an index is not within it (the error names the position), or
    /// the values cannot be added.
    pub fn to_dense(&self) -> Result<Tensor> {
        let call = "IndexedSlices::to_dense";
        let Some(shape) = &self.dense_shape else {
            return Err(Error::invalid(call, "dense_shape", "a shape", "none"));
        };
        let Some(reducer) = Reducer::new(ReduceOp::Sum, self.values.dtype()) else {
            return Err(Error::invalid(call, "values", "numbers", self.values.dtype().name()));
        };
        let row_count: usize = shape[1..].iter().product();
        let mut memory = Memory::zeroed(self.values.dtype(), shape.iter().product());
        // Stable: rows of one index keep their order.
        let mut order = self.row_numbers();
        order.sort_by_key(|&(index, _)| index);
        for same in order.chunk_by(|a, b| a.0 == b.0) {
            let index = usize::try_from(same[0].0).ok().filter(|&index| index < shape[0]).ok_or_else(|| {
                Error::invalid(
                    call,
                    format!("indices[{}]", same[0].1),
                    format!("0 to {}", shape[0].wrapping_sub(1) as isize),
                    same[0].0.to_string(),
                )
            })?;
            let rows: Vec<Buf<'_>> = (same.iter())
                .map(|&(_, place)| self.values.buf().slice(place * row_count..(place + 1) * row_count))
                .collect();
            let target = index * row_count..(index + 1) * row_count;
            reducer.reduce(&rows, &mut memory.as_buf_mut().slice(target));
        }
        Tensor::from_memory(shape.clone(), memory)
    }

    /// Each index with its place in `indices`.
    fn row_numbers(&self) -> Vec<(i64, usize)> {
        let wide: Vec<i64> = match self.indices.as_slice::<i32>() {
            Ok(indices) => indices.iter().map(|&index| index.into()).collect(),
            Err(_) => self.indices.as_slice::<i64>().map(<[i64]>::to_vec).unwrap_or_default(),
        };
        wide.into_iter().enumerate().map(|(place, index)| (index, place)).collect()
    }
}

/// How rows are combined: `sum` keeps all of them, `mean` keeps all of them divided by the number of replicas.
pub(crate) fn check_op(call: &'static str, op: ReduceOp) -> Result<()> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => Ok(()),
        _ => Err(Error::invalid(call, "op", "sum or mean of IndexedSlices", op.name())),
    }
}

/// Rows lie one below the other: they are gathered along the first axis.
pub(crate) fn check_axis(call: &'static str, axis: usize) -> Result<usize> {
    match axis {
        0 => Ok(0),
        axis => Err(Error::invalid(call, "axis", "0, for IndexedSlices", axis.to_string())),
    }
}

/// The rows of several tensors of `dense_shape` one below the other: the indices of each part, whose lengths are `counts`, begin
/// where the tensors before it end.
pub(crate) fn gathered(
    values: Tensor,
    mut indices: Tensor,
    counts: &[usize],
    dense_shape: Option<&[usize]>,
) -> Result<IndexedSlices> {
    let shape = dense_shape.ok_or_else(|| {
        Error::invalid("gather", "dense_shape", "a shape of the IndexedSlices that are gathered", "none")
    })?;
    let parts = counts.iter().enumerate().flat_map(|(part, &count)| std::iter::repeat_n(part * shape[0], count));
    match indices.dtype() {
        DType::I32 => {
            for (index, offset) in indices.as_mut_slice::<i32>()?.iter_mut().zip(parts) {
                let moved = i32::try_from(offset).ok().and_then(|offset| index.checked_add(offset));
                *index = moved.ok_or_else(|| Error::invalid("gather", "indices", "i64, for so many rows", "i32"))?;
            }
        }
        _ => {
            for (index, offset) in indices.as_mut_slice::<i64>()?.iter_mut().zip(parts) {
                *index += offset as i64;
            }
        }
    }
    let mut shape = shape.to_vec();
    shape[0] *= counts.len();
    IndexedSlices::new(values, indices, Some(shape))
}

/// Every element divided by `replicas`, as a mean divides.
pub(crate) fn divide(call: &'static str, values: &Tensor, replicas: usize) -> Result<Tensor> {
    let partial = Partial::new(ReduceOp::Mean, values.buf(), values.count(), 1, 1)
        .ok_or_else(|| Error::invalid(call, "op", format!("an operation on {}", values.dtype()), "mean"))?;
    Tensor::from_memory(values.shape().to_vec(), axis::finish(&[partial], replicas as u64))
}
