//! IDX: the format of MNIST.
//!
//! Layout: two zero bytes, the type in one byte, the number of dimensions in one byte, each size in
//! four bytes, the elements. Big-endian.

use super::{Array, Column, DataFile, Layout};
use crate::{DType, Result};
use consonance_kernels::os::mapped_file::ByteOrder;
use std::path::Path;

impl Column {
    /// Opens the array of an IDX file, such as MNIST's `train-images-idx3-ubyte`. Its first
    /// dimension counts rows. The file is mapped, not loaded.
    ///
    /// Elements are u8, i8, i16, i32, f32 or f64. Do not write to the file while it is used;
    /// replace it by a rename. Unpack `.gz` files first.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the file cannot be opened;
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if it is damaged, or if its size does not
    /// match its header.
    ///
    /// ```
    /// use consonance::dataset::Column;
    /// # let path = std::env::temp_dir().join(format!("doc-idx-{}", std::process::id()));
    /// # std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]).unwrap();
    /// let labels = Column::idx(&path)?;
    /// assert_eq!(format!("{labels:?}"), "Column(3 rows of u8[])");
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn idx(path: impl AsRef<Path>) -> Result<Column> {
        let file = DataFile::open("Column::idx", path.as_ref())?;
        let start = file.copy(0..4, "a header")?;
        let &[0, 0, code, dimensions] = &start[..] else {
            return Err(file.unexpected("two bytes of zero at the start", start[..2].escape_ascii().to_string()));
        };
        let Some(dtype) = dtype(code) else {
            let expected = "one of the types 0x08 (u8), 0x09 (i8), 0x0B (i16), 0x0C (i32), 0x0D (f32), 0x0E (f64)";
            return Err(file.unexpected(expected, format!("{code:#04X}")));
        };
        let start = 4 + 4 * dimensions as usize;
        let sizes = file.copy(4..start, "the size of each dimension")?;
        let shape = sizes.as_chunks().0.iter().map(|&size| u32::from_be_bytes(size) as usize).collect();
        Array::to_the_end(file, Layout { start, order: ByteOrder::Big, dtype, shape })
    }
}

fn dtype(code: u8) -> Option<DType> {
    Some(match code {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0B => DType::I16,
        0x0C => DType::I32,
        0x0D => DType::F32,
        0x0E => DType::F64,
        _ => return None,
    })
}
