//! `.npy`: one array, the format of NumPy's `save`.
//!
//! Layout: `\x93NUMPY`, the version in two bytes, the length of the header in two bytes (version 1)
//! or four, the header, the elements. The header is a Python dict: `{'descr': '<f4',
//! 'fortran_order': False, 'shape': (3, 4), }`.

use super::{Array, Column, DataFile, Layout};
use crate::{DType, Result};
use consonance_kernels::os::mapped_file::ByteOrder;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Limit on the header. Headers of arrays of numbers have about 100 bytes; a far longer one
/// describes something else.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// The supported values of `descr`, for errors.
const SUPPORTED: &str = "'descr' one of b1, i1, i2, i4, i8, u1, u2, u4, u8, f2, f4, f8 after '<', '>' or '|'";

impl Column {
    /// Opens the array of a `.npy` file (NumPy's formats 1.0 to 3.0). Its axis 0 counts rows. The
    /// file is mapped, not loaded.
    ///
    /// Elements have any of our types but bf16, which NumPy does not have. Big-endian elements are
    /// swapped as they are read. The array must be in C order (last axis fastest). Do not write to
    /// the file while it is used; replace it by a rename.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the file cannot be opened;
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if it is damaged, if its size does not
    /// match its header, or if the array is a scalar, in Fortran order, or of other elements.
    ///
    /// ```
    /// use consonance::dataset::Column;
    /// # let path = std::env::temp_dir().join(format!("doc-npy-{}.npy", std::process::id()));
    /// # let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n";
    /// # let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    /// # bytes.extend((header.len() as u16).to_le_bytes());
    /// # bytes.extend(header.bytes());
    /// # bytes.extend([0; 24]);
    /// # std::fs::write(&path, bytes).unwrap();
    /// let images = Column::npy(&path)?;
    /// assert_eq!(format!("{images:?}"), "Column(3 rows of f32[2])");
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn npy(path: impl AsRef<Path>) -> Result<Column> {
        let file = DataFile::open("Column::npy", path.as_ref())?;
        let start = file.copy(0..10, "a header")?;
        if !start.starts_with(MAGIC) {
            return Err(file.unexpected(r"the bytes \x93NUMPY at the start", start[..6].escape_ascii().to_string()));
        }
        let (header_start, header_bytes) = match start[6..] {
            [1, 0, low, high] => (10, u16::from_le_bytes([low, high]) as usize),
            [2 | 3, 0, ..] => {
                let length = file.copy(8..12, "the length of the header")?;
                (12, length.iter().rev().fold(0, |length, &byte| length << 8 | byte as usize))
            }
            _ => return Err(file.unexpected("format 1.0, 2.0 or 3.0", format!("format {}.{}", start[6], start[7]))),
        };
        if header_bytes > MAX_HEADER_BYTES {
            return Err(file.unexpected(
                format!("a header of at most {MAX_HEADER_BYTES} bytes"),
                format!("one of {header_bytes}"),
            ));
        }
        let header = file.copy(header_start..header_start + header_bytes, "the header")?;
        let header = String::from_utf8_lossy(&header);
        let layout = Header::parse(&header)
            .and_then(|header| header.layout(header_start + header_bytes))
            .map_err(|expected| file.unexpected(expected, format!("the header {:?}", header.trim_end())))?;
        Array::to_the_end(file, layout)
    }
}

/// The entries of the header.
#[derive(Default)]
struct Header<'a> {
    descr: Option<&'a str>,
    fortran_order: Option<bool>,
    shape: Option<Vec<usize>>,
}

impl<'a> Header<'a> {
    /// Parses the header. The error says what was expected.
    fn parse(text: &'a str) -> Result<Header<'a>, &'static str> {
        let mut header = Header::default();
        let mut text = Text(text);
        text.take('{')?;
        while text.take('}').is_err() {
            let key = text.string()?;
            text.take(':')?;
            match key {
                "descr" if header.descr.is_none() => header.descr = Some(text.string().map_err(|_| SUPPORTED)?),
                "fortran_order" if header.fortran_order.is_none() => header.fortran_order = Some(text.truth()?),
                "shape" if header.shape.is_none() => header.shape = Some(text.sizes()?),
                _ => return Err("'descr', 'fortran_order' and 'shape', each once"),
            }
            if text.take(',').is_err() {
                text.take('}')?;
                break;
            }
        }
        if text.0.trim().is_empty() { Ok(header) } else { Err("nothing after the dict") }
    }

    /// Returns the layout of the array at byte `start`. The error says what was expected of the
    /// header.
    fn layout(self, start: usize) -> Result<Layout, &'static str> {
        let Header { descr: Some(descr), fortran_order: Some(fortran_order), shape: Some(shape) } = self else {
            return Err("'descr', 'fortran_order' and 'shape', each once");
        };
        let order = match descr.as_bytes().first() {
            Some(b'<') => ByteOrder::Little,
            Some(b'>') => ByteOrder::Big,
            Some(b'|') => ByteOrder::NATIVE,
            _ => return Err(SUPPORTED),
        };
        let dtype = dtype(&descr[1..]).ok_or(SUPPORTED)?;
        if descr.starts_with('|') && dtype.size() > 1 {
            return Err(SUPPORTED);
        }
        if fortran_order && shape.len() > 1 {
            return Err("C order: save it anew with numpy.ascontiguousarray");
        }
        Ok(Layout { start, order, dtype, shape })
    }
}

/// Returns the dtype of NumPy's type code.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "b1" => DType::Bool,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return None,
    })
}

/// The unread rest of the header. Errors say what was expected.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn take(&mut self, wanted: char) -> Result<(), &'static str> {
        self.0 = self.0.trim_start().strip_prefix(wanted).ok_or("a dict of Python")?;
        Ok(())
    }

    /// Reads a string in quotes. Escapes are not supported: no known key or type has any.
    fn string(&mut self) -> Result<&'a str, &'static str> {
        let quote = if self.take('\'').is_ok() { '\'' } else { self.take('"').map(|()| '"')? };
        let (string, rest) = self.0.split_once(quote).ok_or("a string that ends")?;
        self.0 = rest;
        Ok(string)
    }

    fn truth(&mut self) -> Result<bool, &'static str> {
        let text = self.0.trim_start();
        for (word, truth) in [("True", true), ("False", false)] {
            if let Some(rest) = text.strip_prefix(word) {
                self.0 = rest;
                return Ok(truth);
            }
        }
        Err("True or False")
    }

    /// Reads a tuple of sizes: `()`, `(3,)`, `(3, 4)`.
    fn sizes(&mut self) -> Result<Vec<usize>, &'static str> {
        let mut sizes = Vec::new();
        self.take('(').map_err(|_| "a tuple of sizes")?;
        while self.take(')').is_err() {
            let text = self.0.trim_start();
            let (digits, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
            sizes.push(digits.parse().map_err(|_| "a tuple of sizes, each at most the number of addresses")?);
            self.0 = rest;
            if self.take(',').is_err() {
                self.take(')')?;
                break;
            }
        }
        Ok(sizes)
    }
}
