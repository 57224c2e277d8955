//! CSV: lines of numbers.
//!
//! Opening the file scans it for the offset of every [`STEP`]th row. A read at random starts at the
//! last offset before its rows.

use super::{Column, DataFile, RowSource};
use crate::{DType, Element, Error, Result};
use ::csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use consonance_kernels::{
    memory::HostBufMut,
    os::mapped_file::{ByteOrder, MappedFile},
};
use consonance_spec::for_each_dtype;
use std::{io, ops::Range, path::Path, str::FromStr};

/// Number of rows between two stored offsets: one eighth of a byte per row, and on average 32 lines
/// to skip for a row at random.
const STEP: usize = 64;

/// The columns to read from a CSV file, and their dtype.
///
/// ```
/// use consonance::{DType, dataset::CsvOptions};
/// let pixels = CsvOptions::new().columns(1..785).dtype(DType::U8);
/// let labels = CsvOptions::new().column("label").dtype(DType::I64);
/// ```
#[derive(Clone, Debug)]
pub struct CsvOptions {
    has_header: bool,
    /// `None` for all.
    columns: Option<Vec<CsvColumn>>,
    /// Whether rows are scalars: a single column was set by [`CsvOptions::column`].
    is_scalar: bool,
    dtype: DType,
}

/// A column of a CSV file, by its name in the header or by its number from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvColumn {
    /// The name in the header.
    Name(String),
    /// The number, from 0.
    Number(usize),
}

impl From<&str> for CsvColumn {
    fn from(name: &str) -> Self {
        CsvColumn::Name(name.to_owned())
    }
}

impl From<String> for CsvColumn {
    fn from(name: String) -> Self {
        CsvColumn::Name(name)
    }
}

impl From<usize> for CsvColumn {
    fn from(number: usize) -> Self {
        CsvColumn::Number(number)
    }
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions { has_header: true, columns: None, is_scalar: false, dtype: DType::F32 }
    }
}

impl CsvOptions {
    /// Returns the default options: all columns, as f32, of a file whose first line is a header.
    pub fn new() -> CsvOptions {
        CsvOptions::default()
    }

    /// Sets whether the first line is a header with the names of the columns. By default it is.
    pub fn header(mut self, has_header: bool) -> Self {
        self.has_header = has_header;
        self
    }

    /// Sets the columns to read, in this order. Rows have the shape `[columns]`. By default all.
    pub fn columns<C: Into<CsvColumn>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = Some(columns.into_iter().map(Into::into).collect());
        self.is_scalar = false;
        self
    }

    /// Sets a single column to read. Rows are scalars, of shape `[]`.
    pub fn column(mut self, column: impl Into<CsvColumn>) -> Self {
        self.columns = Some(vec![column.into()]);
        self.is_scalar = true;
        self
    }

    /// Sets the dtype of the elements. By default f32.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Returns the number of each column to read. `first` is the first line.
    fn select(&self, file: &DataFile, first: &ByteRecord) -> Result<Vec<usize>> {
        let Some(columns) = &self.columns else { return Ok((0..first.len()).collect()) };
        if columns.is_empty() {
            return Err(Error::invalid("CsvOptions::columns", "columns", "at least one", "none"));
        }
        let select = |column: &CsvColumn| match column {
            CsvColumn::Number(number) if *number < first.len() => Ok(*number),
            CsvColumn::Number(number) => {
                Err(file.unexpected(format!("a column {number}, counted from 0"), format!("{} columns", first.len())))
            }
            CsvColumn::Name(name) if !self.has_header => {
                Err(file.unexpected(format!("a column {name:?}"), "no header, as the options say"))
            }
            CsvColumn::Name(name) => {
                let mut numbers = (0..first.len()).filter(|&number| first[number].trim_ascii() == name.as_bytes());
                match (numbers.next(), numbers.next()) {
                    (Some(number), None) => Ok(number),
                    (Some(_), Some(_)) => Err(file.unexpected(format!("one column {name:?}"), "more than one")),
                    (None, _) => Err(file.unexpected(format!("a column {name:?}"), names(first))),
                }
            }
        };
        columns.iter().map(select).collect()
    }
}

impl Column {
    /// Opens the numbers of a CSV file, one row per line. The file is mapped, not loaded. Opening
    /// scans it once, to check that all lines have the same number of fields and to find the
    /// offsets of rows. Fields are parsed when rows are read.
    ///
    /// Fields are separated by commas and may be quoted (`"1"`); spaces around a number and empty
    /// lines are ignored. Floats are in Rust's syntax, with `nan` and `inf` (f16 and bf16 are
    /// parsed as f32 and rounded). A boolean is `true`, `True`, `TRUE` or `1`, or `false`, `False`,
    /// `FALSE` or `0`. Do not write to the file while it is used; replace it by a rename.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be opened; [`Error::InvalidCall`] if lines differ in
    /// their number of fields, or a column of the options does not exist. A field that is no number
    /// is an error when its row is read, with line, column and text.
    ///
    /// ```
    /// use consonance::dataset::{Column, CsvOptions};
    /// # let path = std::env::temp_dir().join(format!("doc-csv-{}.csv", std::process::id()));
    /// std::fs::write(&path, "width,height,label\n0.5,2,1\n1.5,3,0\n").unwrap();
    /// let sizes = Column::csv(&path, &CsvOptions::new().columns(["width", "height"]))?;
    /// let labels = Column::csv(&path, &CsvOptions::new().column("label"))?;
    /// assert_eq!(format!("{sizes:?}"), "Column(2 rows of f32[2])");
    /// assert_eq!(format!("{labels:?}"), "Column(2 rows of f32[])");
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Column> {
        let file = DataFile::open("Column::csv", path.as_ref())?;
        let mut record = ByteRecord::new();
        let mut reader = reader(&file, 0, SCAN_BYTES);
        let mut next =
            |record: &mut ByteRecord| reader.read_byte_record(record).map_err(|error| explain(&file, 0, error));
        if !next(&mut record)? {
            let expected = if options.has_header { "a header" } else { "a row" };
            return Err(file.unexpected(expected, "an empty file"));
        }
        let fields = record.len();
        let columns = options.select(&file, &record)?;
        let names = options.has_header.then(|| record.clone());
        let (mut starts, mut count) = (Vec::new(), 0);
        let mut is_row = !options.has_header || next(&mut record)?;
        while is_row {
            if count % STEP == 0 {
                starts.push(start(&record));
            }
            count += 1;
            is_row = next(&mut record)?;
        }
        let shape = if options.is_scalar { Vec::new() } else { vec![columns.len()] };
        Ok(Column::new(Lines { file, starts, count, fields, names, columns, shape, dtype: options.dtype }))
    }
}

struct Lines {
    file: DataFile,
    /// The byte offset of every [`STEP`]th row.
    starts: Vec<usize>,
    /// The number of rows.
    count: usize,
    /// The number of fields of each line.
    fields: usize,
    /// The header.
    names: Option<ByteRecord>,
    /// The number of each column to read.
    columns: Vec<usize>,
    /// The shape of a row.
    shape: Vec<usize>,
    dtype: DType,
}

impl RowSource for Lines {
    fn count(&self) -> usize {
        self.count
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn row_shape(&self) -> &[usize] {
        &self.shape
    }

    fn read(&self, rows: Range<usize>, into: HostBufMut<'_>) -> Result<()> {
        macro_rules! read {
            ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match self.dtype {
                    $(DType::$variant => {
                        self.read_as::<$type>(rows, into.into_mut_slice().expect("a buffer of the column's type"))
                    })*
                }
            };
        }
        for_each_dtype!(read)
    }

    fn in_file(&self) -> bool {
        true
    }
}

impl Lines {
    fn read_as<T: Element + FromStr>(&self, rows: Range<usize>, into: &mut [T]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        let from = self.starts[rows.start / STEP];
        let mut reader = reader(&self.file, from, READ_BYTES);
        let mut record = ByteRecord::new();
        let mut next = |record: &mut ByteRecord| {
            let is_row = reader.read_byte_record(record).map_err(|error| explain(&self.file, from, error))?;
            if is_row && record.len() == self.fields {
                return Ok(());
            }
            Err(self.file.unexpected("the lines that it had when it was opened", "others"))
        };
        (0..rows.start % STEP).try_for_each(|_| next(&mut record))?;
        for row in into.chunks_exact_mut(self.columns.len()) {
            next(&mut record)?;
            for (element, &column) in row.iter_mut().zip(&self.columns) {
                *element = parse(&record[column]).ok_or_else(|| self.no_number(from, &record, column))?;
            }
        }
        Ok(())
    }

    fn no_number(&self, from: usize, record: &ByteRecord, column: usize) -> Error {
        const SHOWN: usize = 40;
        let line = line(&self.file, from + start(record));
        let name = self.names.as_ref().map(|names| format!(" ({:?})", String::from_utf8_lossy(&names[column])));
        let expected =
            format!("{} at line {line}, column {column}{} counted from 0", self.dtype, name.unwrap_or_default());
        let field = String::from_utf8_lossy(&record[column]);
        let text: String = field.chars().take(SHOWN).collect();
        let rest = if text.len() < field.len() { "…" } else { "" };
        self.file.unexpected(expected, format!("{text:?}{rest}"))
    }
}

fn parse<T: Element + FromStr>(field: &[u8]) -> Option<T> {
    let text = str::from_utf8(field).ok()?.trim();
    let text = match text {
        "1" | "True" | "TRUE" if T::DTYPE == DType::Bool => "true",
        "0" | "False" | "FALSE" if T::DTYPE == DType::Bool => "false",
        text => text,
    };
    text.parse().ok()
}

fn names(record: &ByteRecord) -> String {
    const SHOWN: usize = 16;
    let names: Vec<_> = record.iter().take(SHOWN).map(String::from_utf8_lossy).collect();
    let rest = if record.len() > SHOWN { " and more" } else { "" };
    format!("{names:?}{rest}")
}

/// The buffer of the scan: large, to need few calls.
const SCAN_BYTES: usize = 64 << 10;

/// The buffer of a read: small, as a read may be of a single line.
const READ_BYTES: usize = 8 << 10;

/// Returns a reader of the lines from byte `from`, the header included.
fn reader(file: &DataFile, from: usize, buffer_bytes: usize) -> Reader<Bytes<'_>> {
    let bytes = Bytes { map: &file.map, at: from };
    ReaderBuilder::new().has_headers(false).buffer_capacity(buffer_bytes).from_reader(bytes)
}

/// The bytes of a file from an offset on.
struct Bytes<'a> {
    map: &'a MappedFile,
    at: usize,
}

impl io::Read for Bytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.map.bytes() - self.at);
        self.map.read(self.at, ByteOrder::NATIVE, HostBufMut::from(&mut into[..count]))?;
        self.at += count;
        Ok(count)
    }
}

/// Returns the offset of the record from the start of the reader.
fn start(record: &ByteRecord) -> usize {
    record.position().map_or(0, |position| position.byte() as usize)
}

/// Returns the line number of the record that begins at this byte, or after the line breaks there.
/// Only called for errors.
fn line(file: &DataFile, byte: usize) -> usize {
    let mut piece = vec![0; SCAN_BYTES];
    let (mut at, mut line) = (0, 1);
    while at < file.bytes() {
        let count = piece.len().min(file.bytes() - at);
        if file.read(at, ByteOrder::NATIVE, HostBufMut::from(&mut piece[..count])).is_err() {
            break;
        }
        for (place, &read) in (at..).zip(&piece[..count]) {
            if place >= byte && read != b'\n' && read != b'\r' {
                return line;
            }
            line += usize::from(read == b'\n');
        }
        at += count;
    }
    line
}

/// Converts the error of a reader that started at byte `from`, and adds the line number.
fn explain(file: &DataFile, from: usize, error: ::csv::Error) -> Error {
    match error.into_kind() {
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let at = pos.map_or(String::new(), |pos| format!(" at line {}", line(file, from + pos.byte() as usize)));
            file.unexpected(format!("{expected_len} fields{at}"), len.to_string())
        }
        ErrorKind::Io(source) => Error::system(format!("Column::csv: read {}", file.path.display()), source),
        other => file.unexpected("lines of fields", format!("{other:?}")),
    }
}
