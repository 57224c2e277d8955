//! IDX: the format of MNIST.
//!
//! Two bytes of zero, the type, the number of dimensions, each size in four bytes, the elements;
//! all big-endian.

use super::{Array, Column, DataFile, Layout};
use crate::{DType, Result};
use consonance_kernels::os::mapped_file::ByteOrder;
use std::path::Path;

impl Column {
    /// The array of an IDX file, such as MNIST's `train-images-idx3-ubyte`, whose first dimension
    /// counts rows. The file is mapped, not loaded.
    ///
    /// Elements are u8, i8, i16, i32, f32 or f64. The file is not to be written while it is used;
    /// replace it by a rename. Files that end in `.gz` are to be unpacked first.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the file cannot be opened;
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if it is damaged, or longer or shorter
    /// than its header says.
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
