//! Columns in files: contiguous rows of equal size. One source file per format.

mod npy;
mod idx;
#[cfg(feature = "csv")]
mod csv;
#[cfg(feature = "checkpoint")]
pub(crate) mod safetensors;

#[cfg(feature = "csv")]
pub use csv::{CsvColumn, CsvOptions};

use super::{Column, column::RowSource};
use crate::{DType, Error, Result};
use consonance_kernels::{
    memory::HostBufMut,
    os::mapped_file::{ByteOrder, MappedFile},
};
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

/// An open file, with the call that opened it and the path for errors.
pub(crate) struct DataFile {
    call: &'static str,
    path: PathBuf,
    map: MappedFile,
}

impl DataFile {
    pub(crate) fn open(call: &'static str, path: &Path) -> Result<DataFile> {
        let map = MappedFile::open(path)
            .map_err(|source| Error::system(format!("{call}: open {}", path.display()), source))?;
        Ok(DataFile { call, path: path.to_owned(), map })
    }

    /// Returns the size of the file in bytes when it was opened.
    pub(crate) fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// Copies elements from byte offset `at` into `into`.
    pub(crate) fn read(&self, at: usize, order: ByteOrder, into: HostBufMut<'_>) -> Result<()> {
        let what = || format!("{}: read {}", self.call, self.path.display());
        self.map.read(at, order, into).map_err(|source| Error::system(what(), source))
    }

    /// Copies the bytes in `range`. Errors name them `part`.
    pub(crate) fn copy(&self, range: Range<usize>, part: &str) -> Result<Vec<u8>> {
        if range.end > self.bytes() {
            return Err(self.unexpected(format!("{part} in bytes {range:?}"), format!("{} bytes", self.bytes())));
        }
        let mut bytes = vec![0; range.len()];
        self.read(range.start, ByteOrder::NATIVE, HostBufMut::from(&mut bytes[..]))?;
        Ok(bytes)
    }

    /// Makes the error for a file with unexpected content.
    pub(crate) fn unexpected(&self, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::invalid(self.call, self.path.display().to_string(), expected, found)
    }
}

/// The position and format of an array in its file.
pub(crate) struct Layout {
    /// The byte offset of the array.
    pub(crate) start: usize,
    pub(crate) order: ByteOrder,
    pub(crate) dtype: DType,
    /// The first size is the number of rows.
    pub(crate) shape: Vec<usize>,
}

impl Layout {
    /// Returns the size in bytes; `None` on overflow.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |bytes, &size| bytes.checked_mul(size))
    }

    pub(crate) fn describe(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape)
    }
}

/// An array in a file, read by rows.
struct Array {
    file: DataFile,
    layout: Layout,
    /// The number of elements of one row.
    row_count: usize,
}

impl Array {
    /// Makes a column of the array, which must end at the end of the file.
    fn to_the_end(file: DataFile, layout: Layout) -> Result<Column> {
        let end = layout.bytes().and_then(|bytes| layout.start.checked_add(bytes));
        if end != Some(file.bytes()) {
            let expected = match end {
                Some(end) => format!("{end} bytes, for {} from byte {} on", layout.describe(), layout.start),
                None => format!("no more bytes than there are numbers, for {}", layout.describe()),
            };
            return Err(file.unexpected(expected, format!("{} bytes", file.bytes())));
        }
        Array::within(file, layout)
    }

    /// Makes a column of the array, which is known to be within the file.
    fn within(file: DataFile, layout: Layout) -> Result<Column> {
        let Some((&rows, row_shape)) = layout.shape.split_first() else {
            return Err(file.unexpected("an array of at least one dimension", "a scalar"));
        };
        let row_count = row_shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        match row_count {
            // Rows without elements could be too many to loop over. With no rows, the size of a row
            // could overflow.
            Some(row_count) if row_count > 0 || rows == 0 => Ok(Column::new(Array { file, layout, row_count })),
            _ => {
                Err(file
                    .unexpected("rows of at least one element, and no more than there are numbers", layout.describe()))
            }
        }
    }
}

impl RowSource for Array {
    fn count(&self) -> usize {
        self.layout.shape[0]
    }

    fn dtype(&self) -> DType {
        self.layout.dtype
    }

    fn row_shape(&self) -> &[usize] {
        &self.layout.shape[1..]
    }

    fn read(&self, rows: Range<usize>, into: HostBufMut<'_>) -> Result<()> {
        let at = self.layout.start + rows.start * self.row_count * self.layout.dtype.size();
        self.file.read(at, self.layout.order, into)
    }

    fn in_file(&self) -> bool {
        true
    }
}
