//! safetensors: named tensors, the format of checkpoints.
//!
//! Layout: the length of the header in eight bytes, the header in JSON, the elements of the
//! tensors, contiguous. Little-endian.

use super::{Array, Column, DataFile, Layout};
use crate::{DType, Result};
use ::safetensors::{Dtype, tensor::Metadata};
use consonance_kernels::os::mapped_file::ByteOrder;
use std::path::Path;

/// The size in bytes of the field with the length of the header.
pub(crate) const LENGTH_BYTES: usize = 8;

/// The limit of the format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

impl Column {
    /// Opens the tensor `name` of a safetensors file. Its axis 0 counts rows. The file is mapped,
    /// not loaded.
    ///
    /// Do not write to the file while it is used; replace it by a rename. Requires the feature
    /// `checkpoint`, which is on by default.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the file cannot be opened;
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if it is damaged, has no such tensor, or
    /// if the tensor is a scalar or of an unsupported dtype.
    ///
    /// ```
    /// use consonance::dataset::Column;
    /// # let path = std::env::temp_dir().join(format!("doc-safetensors-{}", std::process::id()));
    /// # let header = r#"{"images":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}}"#;
    /// # let length = (header.len() as u64).to_le_bytes();
    /// # std::fs::write(&path, [&length[..], header.as_bytes(), &[0; 6]].concat()).unwrap();
    /// let images = Column::safetensors(&path, "images")?;
    /// assert_eq!(format!("{images:?}"), "Column(2 rows of u8[3])");
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn safetensors(path: impl AsRef<Path>, name: &str) -> Result<Column> {
        let file = DataFile::open("Column::safetensors", path.as_ref())?;
        let header = Header::read(&file)?;
        let layout = header.layout(&file, name)?;
        Array::within(file, layout)
    }
}

/// The header of a file: its tensors.
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    /// The byte offset of the first tensor.
    pub(crate) start: usize,
}

impl Header {
    /// Reads the header and checks it against the size of the file.
    pub(crate) fn read(file: &DataFile) -> Result<Header> {
        let length = file.copy(0..LENGTH_BYTES, "the length of the header")?;
        let length = length.iter().rev().fold(0, |length, &byte| length << 8 | u64::from(byte));
        if length > MAX_HEADER_BYTES {
            let expected = format!("safetensors, whose header has at most {MAX_HEADER_BYTES} bytes");
            return Err(file.unexpected(expected, format!("one of {length}")));
        }
        let start = LENGTH_BYTES + length as usize;
        let header = file.copy(LENGTH_BYTES..start, "the header")?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| file.unexpected("a header of safetensors", error.to_string()))?;
        if start.checked_add(metadata.data_len()) != Some(file.bytes()) {
            let expected = format!("{} bytes after byte {start}, as its header says", metadata.data_len());
            return Err(file.unexpected(expected, format!("{} bytes", file.bytes() - start)));
        }
        Ok(Header { metadata, start })
    }

    /// Returns the layout of the tensor `name`.
    pub(crate) fn layout(&self, file: &DataFile, name: &str) -> Result<Layout> {
        let Some(info) = self.metadata.info(name) else {
            return Err(file.unexpected(format!("a tensor {name:?}"), self.names()));
        };
        let Some(dtype) = DType::ALL.iter().copied().find(|&dtype| to_format(dtype) == info.dtype) else {
            let ours: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            let expected = format!("tensor {name:?} of one of {}", ours.join(", "));
            return Err(file.unexpected(expected, info.dtype.to_string()));
        };
        let start = self.start + info.data_offsets.0;
        Ok(Layout { start, order: ByteOrder::Little, dtype, shape: info.shape.clone() })
    }

    /// Formats the names of the tensors for an error.
    fn names(&self) -> String {
        const SHOWN: usize = 16;
        let names = self.metadata.offset_keys();
        match names.len() {
            0 => "no tensors".to_owned(),
            count if count > SHOWN => format!("{:?} and {} more", &names[..SHOWN], count - SHOWN),
            _ => format!("{names:?}"),
        }
    }
}

/// Returns the type of the format for our dtype.
pub(crate) fn to_format(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}
