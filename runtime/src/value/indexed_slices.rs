//! Rows of a tensor: TensorFlow's `IndexedSlices`.

use crate::{Axis, Error, Result, Tensor, error::operation_on, value::nest::path::Path};
use consonance_kernels::{
    cpu::{
        axis::{self, Partial},
        reduce::Reducer,
    },
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, ReduceOp};
use std::ops::Range;

/// Some rows of a large (dense) tensor: `values[i]` belongs to row `indices[i]`. If an index occurs
/// more than once, its rows are added.
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
    /// Makes rows of a tensor of `dense_shape`. `values` has shape `[rows, ...]`; `indices` has
    /// shape `[rows]` and dtype i32 or i64.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the shapes do not match, if `indices` has another dtype, or if an
    /// index is negative or not within the dense shape: the error names its position. The replica
    /// that makes the rows gets the error, so invalid rows never reach a collective.
    ///
    /// ```
    /// use consonance::{IndexedSlices, MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run(|replica| {
    ///     let second = 2 + replica.replica_id_in_sync_group() as i64;
    ///     let slices = IndexedSlices::new(Tensor::from([[1.0f32], [2.0]]), Tensor::from([0, second]), Some(vec![3, 1]))?;
    ///     replica.all_reduce("SUM", slices)
    /// });
    /// assert_eq!(
    ///     result.unwrap_err().to_string(),
    ///     "replica 1: IndexedSlices::new: indices[1]: expected a row from 0 to 2, found 3"
    /// );
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn new(values: Tensor, indices: Tensor, dense_shape: Option<Vec<usize>>) -> Result<IndexedSlices> {
        let call = "IndexedSlices::new";
        if is_narrow(indices.dtype()).is_none() {
            return Err(Error::invalid(call, "indices", "i32 or i64", indices.dtype().name()));
        }
        let Some((&rows, row_shape)) = values.shape().split_first() else {
            return Err(Error::invalid(call, "values", "at least one dimension", "a scalar"));
        };
        if indices.shape() != [rows] {
            let found = format!("shape {:?}", indices.shape());
            return Err(Error::invalid(call, "indices", format!("shape [{rows}]"), found));
        }
        if let Some(shape) = dense_shape.as_ref().filter(|shape| shape.get(1..) != Some(row_shape)) {
            let expected = format!("[rows] and then {row_shape:?}");
            return Err(Error::invalid(call, "dense_shape", expected, format!("{shape:?}")));
        }
        let slices = IndexedSlices { values, indices, dense_shape };
        let dense_rows = slices.dense_shape.as_ref().map(|shape| shape[0]);
        let within = |index: i64| usize::try_from(index).is_ok_and(|index| dense_rows.is_none_or(|rows| index < rows));
        if let Some((place, index)) = slices.wide_indices().enumerate().find(|&(_, index)| !within(index)) {
            let expected = match dense_rows {
                Some(0) => "no row of a tensor without rows".to_owned(),
                Some(rows) => format!("a row from 0 to {}", rows - 1),
                None => "a row from 0 on".to_owned(),
            };
            return Err(Error::invalid(call, format!("indices[{place}]"), expected, index.to_string()));
        }
        Ok(slices)
    }

    /// Returns the rows, of shape `[rows, ...]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Returns the index of each row in the large tensor, of shape `[rows]`.
    pub fn indices(&self) -> &Tensor {
        &self.indices
    }

    /// Returns the shape of the large tensor, if it is known.
    pub fn dense_shape(&self) -> Option<&[usize]> {
        self.dense_shape.as_deref()
    }

    /// Returns the rows with each index once, in ascending order. Rows with the same index are
    /// added in canonical order and rounded once.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the values cannot be added.
    ///
    /// ```
    /// use consonance::{IndexedSlices, Tensor};
    /// let slices = IndexedSlices::new(Tensor::from([[1.0f32], [2.0], [4.0]]), Tensor::from([2i64, 0, 2]), Some(vec![3, 1]))?;
    /// let rows = slices.dedupe()?;
    /// assert_eq!(rows.indices(), &Tensor::from([0i64, 2]));
    /// assert_eq!(rows.values(), &Tensor::from([[2.0f32], [5.0]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn dedupe(&self) -> Result<IndexedSlices> {
        let order = self.order();
        let groups = || order.chunk_by(|a, b| a.0 == b.0);
        let values = self.add_rows("IndexedSlices::dedupe", groups().enumerate(), groups().count())?;
        let indices = self.indices_like(groups().map(|group| group[0].0));
        Ok(IndexedSlices { values, indices, dense_shape: self.dense_shape.clone() })
    }

    /// Converts the rows to the large tensor. Rows with the same index are added as in
    /// [`dedupe`](IndexedSlices::dedupe); all other rows are zero.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the dense shape is not known, or the values cannot be added.
    pub fn to_dense(&self) -> Result<Tensor> {
        let call = "IndexedSlices::to_dense";
        let Some(shape) = &self.dense_shape else {
            return Err(Error::invalid(call, "dense_shape", "a shape", "none"));
        };
        let order = self.order();
        let groups = order.chunk_by(|a, b| a.0 == b.0);
        self.add_rows(call, groups.map(|group| (group[0].0 as usize, group)), shape[0])
    }

    /// Returns `rows` rows: the row of each target in `groups` is the sum of the rows in its group,
    /// in the group's order. All other rows are zero.
    fn add_rows<'a>(
        &self,
        call: &'static str,
        groups: impl Iterator<Item = (usize, &'a [(i64, usize)])>,
        rows: usize,
    ) -> Result<Tensor> {
        let Some(reducer) = Reducer::new(ReduceOp::Sum, self.values.dtype()) else {
            return Err(Error::invalid(call, "values", "numbers", self.values.dtype().name()));
        };
        let mut shape = self.values.shape().to_vec();
        shape[0] = rows;
        let row_count: usize = shape[1..].iter().product();
        let count = rows.checked_mul(row_count);
        let bytes = count.and_then(|count| count.checked_mul(self.values.dtype().size()));
        let count = count
            .filter(|_| bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()))
            .ok_or_else(|| Error::invalid(call, "dense_shape", "fewer bytes than addresses", format!("{shape:?}")))?;
        let dtype = self.values.dtype();
        let mut memory = HostMemory::try_zeroed(dtype, count).map_err(Error::no_memory(dtype, count))?;
        let values = self.values.host()?;
        let elements = |row: usize| row * row_count..(row + 1) * row_count;
        for (target, group) in groups {
            let same: Vec<HostBuf<'_>> = group.iter().map(|&(_, row)| values.slice(elements(row))).collect();
            reducer.reduce(&same, &mut memory.as_buf_mut().slice(elements(target)));
        }
        Tensor::from_memory(shape, memory)
    }

    /// Returns the rows that lie within `range` of the large tensor, with indices relative to the
    /// start of `range`.
    pub(crate) fn part(&self, range: Range<usize>) -> Result<IndexedSlices> {
        let mut shape = self.values.shape().to_vec();
        let row_count: usize = shape[1..].iter().product();
        let (values, mut rows, mut indices) = (self.values.host()?, Vec::new(), Vec::new());
        for (place, index) in self.wide_indices().enumerate().filter(|&(_, index)| range.contains(&(index as usize))) {
            rows.push(values.slice(place * row_count..(place + 1) * row_count));
            indices.push(index - range.start as i64);
        }
        shape[0] = rows.len();
        let values = Tensor::from_memory(shape.clone(), HostMemory::concat(self.values.dtype(), &rows))?;
        shape[0] = range.len();
        Ok(IndexedSlices { values, indices: self.indices_like(indices.into_iter()), dense_shape: Some(shape) })
    }

    /// Returns an empty list of rows of the same large tensor.
    pub(crate) fn none(&self) -> Result<IndexedSlices> {
        let (values, indices) = (self.values.rows(0..0)?, self.indices.rows(0..0)?);
        Ok(IndexedSlices { values, indices, dense_shape: self.dense_shape.clone() })
    }

    /// Makes a tensor of indices with the dtype of this one's. No index may exceed the largest of
    /// this one's.
    fn indices_like(&self, indices: impl Iterator<Item = i64>) -> Tensor {
        if is_narrow(self.indices.dtype()) == Some(true) {
            Tensor::from(indices.map(|index| index as i32).collect::<Vec<_>>())
        } else {
            Tensor::from(indices.collect::<Vec<_>>())
        }
    }

    /// Returns each index with its position in `indices`, sorted by index, then by position.
    fn order(&self) -> Vec<(i64, usize)> {
        let mut order: Vec<_> = self.wide_indices().enumerate().map(|(place, index)| (index, place)).collect();
        order.sort_unstable();
        order
    }

    pub(crate) fn wide_indices(&self) -> impl Iterator<Item = i64> {
        let narrow = self.indices.as_slice::<i32>().unwrap_or(&[]);
        let wide = self.indices.as_slice::<i64>().unwrap_or(&[]);
        narrow.iter().map(|&index| index.into()).chain(wide.iter().copied())
    }
}

/// Returns whether indices of this type have 32 bits, not 64; `None` for a type that no indices
/// have.
pub(crate) fn is_narrow(dtype: DType) -> Option<bool> {
    match dtype {
        DType::I32 => Some(true),
        DType::I64 => Some(false),
        DType::Bool | DType::I8 | DType::I16 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => None,
        DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => None,
    }
}

/// Checks that `op` can combine rows: `sum` keeps all rows, `mean` keeps all rows divided by the
/// number of replicas.
pub(crate) fn check_op(call: &'static str, op: ReduceOp) -> Result<()> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => Ok(()),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            Err(Error::invalid(call, "op", "sum or mean of IndexedSlices", op.name()))
        }
    }
}

/// Checks that rows can be gathered along `axis`, and returns the number of rows of this large
/// tensor. Rows are gathered along axis 0 only: the large tensors are concatenated.
pub(crate) fn check_gather(call: &'static str, path: &Path, slices: &IndexedSlices, axis: Axis) -> Result<usize> {
    match (axis.resolve(call, path, slices.values.rank())?, &slices.dense_shape) {
        (0, Some(shape)) => Ok(shape[0]),
        (0, None) => Err(Error::invalid(call, path.to_string(), "a known dense shape", "none")),
        (axis, _) => Err(Error::invalid(call, "axis", "0, for IndexedSlices", axis.to_string())),
    }
}

/// Concatenates the rows of several large tensors. Part `i` has `counts[i]` indices of a tensor of
/// `sizes[i]` rows; its indices are moved up by the number of rows of the tensors before it.
pub(crate) fn gathered(
    call: &'static str,
    values: Tensor,
    mut indices: Tensor,
    counts: &[usize],
    sizes: &[usize],
) -> Result<IndexedSlices> {
    let dtype = indices.dtype();
    let too_many = || Error::invalid(call, "indices", "a type for so many rows", dtype.name());
    let mut begins = vec![0usize];
    for (part, &size) in sizes.iter().enumerate() {
        begins.push(begins[part].checked_add(size).ok_or_else(too_many)?);
    }
    let offsets = counts.iter().zip(&begins).flat_map(|(&count, &begin)| std::iter::repeat_n(begin, count));
    if is_narrow(dtype) == Some(true) {
        for (index, offset) in indices.as_mut_slice::<i32>()?.iter_mut().zip(offsets) {
            let moved = i32::try_from(offset).ok().and_then(|offset| index.checked_add(offset));
            *index = moved.ok_or_else(too_many)?;
        }
    } else {
        for (index, offset) in indices.as_mut_slice::<i64>()?.iter_mut().zip(offsets) {
            let moved = i64::try_from(offset).ok().and_then(|offset| index.checked_add(offset));
            *index = moved.ok_or_else(too_many)?;
        }
    }
    let mut shape = values.shape().to_vec();
    shape[0] = begins[sizes.len()];
    Ok(IndexedSlices { values, indices, dense_shape: Some(shape) })
}

/// Divides every element by `replicas`, like the mean.
pub(crate) fn divide(call: &'static str, values: &Tensor, replicas: usize) -> Result<Tensor> {
    Tensor::from_memory(values.shape().to_vec(), divided(call, values.host()?, replicas)?)
}

/// Divides every element by `replicas`, like the mean.
pub(crate) fn divided(call: &'static str, values: HostBuf<'_>, replicas: usize) -> Result<HostMemory> {
    let (dtype, count) = (values.dtype(), values.count());
    let partial = Partial::new(ReduceOp::Mean, values, [count, 1, 1]).map_err(Error::no_memory(dtype, count))?;
    let partial = partial.ok_or_else(|| Error::invalid(call, "op", operation_on(dtype, ""), "mean"))?;
    axis::finish(&[partial], replicas as u64).map_err(Error::no_memory(dtype, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MirroredStrategy, PerReplica, ReduceOp,
        fields::{found, refusal},
    };
    use consonance_spec::collective;

    fn rows(indices: impl Into<Tensor>, dense_shape: Option<Vec<usize>>) -> Result<IndexedSlices> {
        let indices = indices.into();
        IndexedSlices::new(Tensor::zeros(DType::F32, [indices.count(), 1]), indices, dense_shape)
    }

    #[test]
    fn an_index_without_a_row_is_named() {
        let refused = |slices: Result<IndexedSlices>, index: &str, row: &str| {
            let error = slices.unwrap_err();
            assert_eq!((refusal(&error), found(&error)), (("IndexedSlices::new", index, None), row));
        };
        refused(rows([0i32, 1, 2], Some(vec![2, 1])), "indices[2]", "2");
        refused(rows([0i64, -1], Some(vec![2, 1])), "indices[1]", "-1");
        refused(rows([i64::MIN], None), "indices[0]", "-9223372036854775808");
        refused(rows([0i64], Some(vec![0, 1])), "indices[0]", "0");
        assert!(rows([i64::MAX], None).is_ok() && rows([1i32, 1], Some(vec![2, 1])).is_ok());
    }

    #[test]
    fn an_index_may_occur_any_number_of_times() {
        let count = (1 << 18) + 1;
        let rows: Vec<Vec<f32>> = (1..=count).map(|row| vec![1.0 / row as f32]).collect();
        let slices = IndexedSlices::new(
            Tensor::new([count, 1], &rows.concat()).unwrap(),
            vec![1i32; count].into(),
            Some(vec![2, 1]),
        );
        let slices = slices.unwrap();
        let sum = collective::reduce(ReduceOp::Sum, &rows).unwrap();
        assert_eq!(slices.dedupe().unwrap().values().as_slice::<f32>().unwrap(), sum);
        assert_eq!(slices.to_dense().unwrap().as_slice::<f32>().unwrap(), [0.0, sum[0]]);
    }

    #[test]
    fn rows_without_a_shape_are_reduced_and_not_gathered() {
        let all = PerReplica::new(vec![rows([3i64], None).unwrap(), rows([3i64, 1], None).unwrap()]);
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
        let sum = strategy.reduce(ReduceOp::Sum, &all, None).unwrap();
        assert_eq!((sum.indices(), sum.dense_shape()), (&Tensor::from([3i64, 3, 1]), None));
        assert_eq!(sum.dedupe().unwrap().indices(), &Tensor::from([1i64, 3]));
        let error = strategy.gather(&all, 0).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("Strategy::gather", "value", Some(0)), "none"));
        let error = strategy.run_with(all, |replica, slices| replica.all_gather(slices, 0)).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("ReplicaContext::all_gather", "value", Some(0)), "none"));
    }

    #[test]
    fn indices_too_large_for_their_type_are_refused() {
        let all = PerReplica::new(vec![rows([0i32], Some(vec![i32::MAX as usize, 1])).unwrap(); 2]);
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
        let indices = |all: IndexedSlices| all.indices().as_slice::<i32>().map(<[i32]>::to_vec);
        assert_eq!(indices(strategy.gather(&all, 0).unwrap()).unwrap(), [0, i32::MAX]);
        let all = PerReplica::new(vec![rows([1i32], Some(vec![i32::MAX as usize, 1])).unwrap(); 2]);
        let error = strategy.gather(&all, 0).unwrap_err();
        assert_eq!((refusal(&error), found(&error)), (("Strategy::gather", "indices", None), "i32"));
        assert!(strategy.run_with(all, |replica, slices| replica.all_gather(slices, 0)).is_err());
    }

    /// Found by reading: the process ended, though it had passed no more than a shape.
    #[test]
    fn a_dense_tensor_too_large_for_memory_is_an_error() {
        let error = rows([0i64], Some(vec![1 << 60, 1])).unwrap().to_dense().unwrap_err();
        assert!(matches!(error, Error::System { .. }), "{error}");
    }
}
