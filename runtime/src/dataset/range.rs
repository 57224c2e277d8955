//! Ranges of numbers, as a table that computes its rows.

use super::{Column, Table, column::RowSource, from_tensor_slices};
use crate::{DType, Error, Result, Tensor};
use consonance_kernels::memory::HostBufMut;
use std::ops::Range;

/// Makes a data set of the numbers from `start` on, each `step` after the one before, up to `stop`,
/// which is not among them: scalars of i64. TensorFlow's `Dataset.range(start, stop, step)`.
///
/// The numbers are computed when they are read.
///
/// # Errors
/// [`Error::InvalidCall`] for a step of 0.
///
/// ```
/// use consonance::{Dataset, Tensor, dataset};
/// let odd = dataset::range(1, 10, 2)?;
/// assert_eq!(odd.batch(5).iterate(0)?.next().unwrap()?, Tensor::from([1i64, 3, 5, 7, 9]));
/// let down = dataset::range(3, 0, -1)?;
/// assert_eq!(down.batch(5).iterate(0)?.next().unwrap()?, Tensor::from([3i64, 2, 1]));
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn range(start: i64, stop: i64, step: i64) -> Result<Table<Tensor>> {
    let distance = match step {
        0 => return Err(Error::invalid("dataset::range", "step", "a number other than 0", "0")),
        1.. => i128::from(stop) - i128::from(start),
        ..0 => i128::from(start) - i128::from(stop),
    };
    // At most the number of all i64 but one.
    let count = (distance.max(0) as u64).div_ceil(step.unsigned_abs());
    let count = usize::try_from(count).map_err(|_| {
        let expected = format!("at most {} numbers", usize::MAX);
        Error::invalid("dataset::range", "stop", expected, count.to_string())
    })?;
    from_tensor_slices(Column::new(Numbers { start, step, count }))
}

/// The rows of a range.
struct Numbers {
    start: i64,
    step: i64,
    count: usize,
}

impl RowSource for Numbers {
    fn count(&self) -> usize {
        self.count
    }

    fn dtype(&self) -> DType {
        DType::I64
    }

    fn row_shape(&self) -> &[usize] {
        &[]
    }

    fn read(&self, rows: Range<usize>, into: HostBufMut<'_>) -> Result<()> {
        let into = into.into_mut_slice::<i64>().expect("a table reads into memory of the column's dtype");
        for (row, number) in rows.zip(into) {
            // The number is in range, even if a part of the computation is not.
            *number = self.start.wrapping_add(self.step.wrapping_mul(row as i64));
        }
        Ok(())
    }

    fn in_file(&self) -> bool {
        false
    }
}
