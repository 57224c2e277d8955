//! Partitioners: into how many parts a variable is divided.

use crate::DType;

/// The division into parts is refused, or its arguments are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedPartition {
    /// The argument is 0, and must be positive.
    NotPositive {
        /// The name of the argument.
        argument: &'static str,
    },
    /// A scalar has no axis along which it can be divided.
    Scalar,
    /// The tensor has no such axis.
    AxisOutOfRange {
        /// The axis.
        axis: usize,
        /// The number of axes.
        rank: usize,
    },
    /// There is not one number of parts for each axis.
    Rank {
        /// The number of axes.
        expected: usize,
        /// The number of numbers.
        found: usize,
    },
    /// The parts along this axis are none.
    NoParts {
        /// The axis.
        axis: usize,
    },
    /// Only the first axis is divided, and this one has several parts.
    OtherAxis {
        /// The axis.
        axis: usize,
        /// Its parts.
        parts: usize,
    },
}

/// A rule for the number of parts of a variable.
pub trait Partitioner {
    /// Returns the number of parts along each axis of a tensor, if it is divided along `axis`.
    ///
    /// # Errors
    /// If there is no such axis.
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>, RefusedPartition>;
}

/// A fixed number of parts, but not more than there are rows.
///
/// ```
/// use consonance_spec::{DType, FixedShardsPartitioner, Partitioner};
/// let three = FixedShardsPartitioner::new(3)?;
/// assert_eq!(three.partitions(&[10, 2], DType::F32, 0)?, [3, 1]);
/// assert_eq!(three.partitions(&[2, 4], DType::F32, 0)?, [2, 1]);
/// # Ok::<(), consonance_spec::RefusedPartition>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedShardsPartitioner {
    num_shards: usize,
}

/// One part for each `min_shard_bytes` of the variable, but not more than `max_shards`, and not
/// more than there are rows.
///
/// The number is rounded up, as in TensorFlow. So parts may be smaller.
///
/// ```
/// use consonance_spec::{DType, MinSizePartitioner, Partitioner};
/// let partitioner = MinSizePartitioner::new(16, 10)?;
/// assert_eq!(partitioner.partitions(&[6, 1], DType::F32, 0)?, [2, 1]);
/// # Ok::<(), consonance_spec::RefusedPartition>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinSizePartitioner {
    min_shard_bytes: usize,
    max_shards: usize,
}

/// As few parts as have at most `max_shard_bytes` each, or one row where a row has more; but not
/// more than `max_shards`, if it is given.
///
/// ```
/// use consonance_spec::{DType, MaxSizePartitioner, Partitioner};
/// assert_eq!(MaxSizePartitioner::new(20, None)?.partitions(&[6, 1], DType::F32, 0)?, [2, 1]);
/// assert_eq!(MaxSizePartitioner::new(4, Some(2))?.partitions(&[6, 1], DType::F32, 0)?, [2, 1]);
/// # Ok::<(), consonance_spec::RefusedPartition>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxSizePartitioner {
    max_shard_bytes: usize,
    max_shards: Option<usize>,
}

impl FixedShardsPartitioner {
    /// Makes a partitioner.
    ///
    /// # Errors
    /// If `num_shards` is 0.
    pub fn new(num_shards: usize) -> Result<FixedShardsPartitioner, RefusedPartition> {
        Ok(FixedShardsPartitioner { num_shards: positive("num_shards", num_shards)? })
    }
}

impl MinSizePartitioner {
    /// The default of TensorFlow for `min_shard_bytes`: 256 KiB.
    pub const MIN_SHARD_BYTES: usize = 256 << 10;
    /// The default of TensorFlow for `max_shards`.
    pub const MAX_SHARDS: usize = 1;

    /// Makes a partitioner.
    ///
    /// # Errors
    /// If an argument is 0.
    pub fn new(min_shard_bytes: usize, max_shards: usize) -> Result<MinSizePartitioner, RefusedPartition> {
        let min_shard_bytes = positive("min_shard_bytes", min_shard_bytes)?;
        Ok(MinSizePartitioner { min_shard_bytes, max_shards: positive("max_shards", max_shards)? })
    }
}

impl MaxSizePartitioner {
    /// Makes a partitioner.
    ///
    /// # Errors
    /// If an argument is 0.
    pub fn new(max_shard_bytes: usize, max_shards: Option<usize>) -> Result<MaxSizePartitioner, RefusedPartition> {
        let max_shard_bytes = positive("max_shard_bytes", max_shard_bytes)?;
        let max_shards = max_shards.map(|shards| positive("max_shards", shards)).transpose()?;
        Ok(MaxSizePartitioner { max_shard_bytes, max_shards })
    }
}

impl Partitioner for FixedShardsPartitioner {
    fn partitions(&self, shape: &[usize], _: DType, axis: usize) -> Result<Vec<usize>, RefusedPartition> {
        along(shape, axis, |rows| self.num_shards.min(rows))
    }
}

impl Partitioner for MinSizePartitioner {
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>, RefusedPartition> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        along(shape, axis, |rows| bytes.div_ceil(self.min_shard_bytes).min(self.max_shards).min(rows))
    }
}

impl Partitioner for MaxSizePartitioner {
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>, RefusedPartition> {
        along(shape, axis, |rows| {
            let others = shape.iter().enumerate().filter(|&(other, _)| other != axis);
            let row_bytes = others.map(|(_, size)| size).product::<usize>() * dtype.size();
            // Rows of no bytes are all in one part.
            let rows_per_part = self.max_shard_bytes.checked_div(row_bytes).unwrap_or(rows).max(1);
            rows.div_ceil(rows_per_part).min(self.max_shards.unwrap_or(usize::MAX))
        })
    }
}

/// Returns one part along each axis but `axis`, which has the parts that `of_rows` gives, at least
/// one.
fn along(shape: &[usize], axis: usize, of_rows: impl FnOnce(usize) -> usize) -> Result<Vec<usize>, RefusedPartition> {
    if shape.is_empty() {
        return Err(RefusedPartition::Scalar);
    }
    let rows = *shape.get(axis).ok_or(RefusedPartition::AxisOutOfRange { axis, rank: shape.len() })?;
    let mut partitions = vec![1; shape.len()];
    partitions[axis] = of_rows(rows).max(1);
    Ok(partitions)
}

fn positive(argument: &'static str, value: usize) -> Result<usize, RefusedPartition> {
    if value == 0 { Err(RefusedPartition::NotPositive { argument }) } else { Ok(value) }
}
