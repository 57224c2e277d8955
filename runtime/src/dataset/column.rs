//! Columns: arrays, in memory or in files, that data sets read by rows.

use crate::{DType, Error, Result, Tensor};
use consonance_kernels::{
    cpu::{copy::copy_own, rows::copy_rows},
    memory::{HostBuf, HostBufMut},
};
use std::{fmt, ops::Range, sync::Arc};

/// An array whose axis 0 counts examples, in memory or in a file that is read as needed.
///
/// Cloning gives another handle to the same array.
#[derive(Clone)]
pub struct Column(Arc<dyn RowSource>);

/// The storage of a column.
pub(crate) trait RowSource: Send + Sync {
    /// The number of rows.
    fn count(&self) -> usize;

    /// The element type.
    fn dtype(&self) -> DType;

    /// The shape of one row.
    fn row_shape(&self) -> &[usize];

    /// Copies `rows` into `into`. They must be in range, and `into` must have their number of
    /// elements.
    fn read(&self, rows: Range<usize>, into: HostBufMut<'_>) -> Result<()>;

    /// Copies the rows of this list, one after the other, into `into`. They must be in range, and
    /// `into` must have their number of elements.
    fn read_listed(&self, rows: &[usize], mut into: HostBufMut<'_>) -> Result<()> {
        let row_count: usize = self.row_shape().iter().product();
        let mut start = 0;
        // Consecutive rows are read at once.
        for run in rows.chunk_by(|row, next| row + 1 == *next) {
            let end = start + run.len() * row_count;
            self.read(run[0]..run[0] + run.len(), into.reborrow().slice(start..end))?;
            start = end;
        }
        Ok(())
    }

    /// Returns whether the rows come from a file.
    fn in_file(&self) -> bool;
}

impl Column {
    pub(crate) fn new(rows: impl RowSource + 'static) -> Column {
        Column(Arc::new(rows))
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// The shape of one row.
    pub fn row_shape(&self) -> &[usize] {
        self.0.row_shape()
    }

    pub(crate) fn rows(&self) -> &dyn RowSource {
        &*self.0
    }
}

/// Makes a column whose rows are the entries along axis 0.
impl TryFrom<Tensor> for Column {
    type Error = Error;

    fn try_from(tensor: Tensor) -> Result<Column> {
        if tensor.rank() == 0 {
            return Err(Error::invalid("Column::try_from", "tensor", "at least one dimension", "a scalar"));
        }
        tensor.host().map_err(|error| error.of_call("Column::try_from"))?;
        Ok(Column::new(tensor))
    }
}

impl RowSource for Tensor {
    fn count(&self) -> usize {
        self.shape()[0]
    }

    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn row_shape(&self) -> &[usize] {
        &self.shape()[1..]
    }

    fn read(&self, rows: Range<usize>, mut into: HostBufMut<'_>) -> Result<()> {
        copy_own(elements(self, rows)?, &mut into);
        Ok(())
    }

    fn read_listed(&self, rows: &[usize], into: HostBufMut<'_>) -> Result<()> {
        copy_rows(self.host()?, self.row_shape().iter().product(), rows, into);
        Ok(())
    }

    fn in_file(&self) -> bool {
        false
    }
}

/// Returns the elements of `rows`, which must be in range.
fn elements(tensor: &Tensor, rows: Range<usize>) -> Result<HostBuf<'_>> {
    let row: usize = tensor.row_shape().iter().product();
    Ok(tensor.host()?.slice(rows.start * row..rows.end * row))
}

/// `Column(100 rows of f32[28, 28])`
impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Column({} rows of {}{:?})", self.count(), self.dtype(), self.row_shape())
    }
}
