//! CSV: lines of numbers.
//!
//! A scan at the start finds out where every [`STEP`]th row begins, so that rows are read at
//! random: from there on.

use super::{Column, DataFile, Rows};
use crate::{DType, Element, Error, Result};
use ::csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use consonance_kernels::{
    memory::HostBufMut,
    os::mapped_file::{ByteOrder, MappedFile},
};
use consonance_spec::for_each_dtype;
use std::{io, ops::Range, path::Path, str::FromStr};

/// Rows between two whose place is kept: an eighth of a byte a row, and half as many lines to skip
/// for a row at random.
const STEP: usize = 64;

/// What is taken of a CSV file, and as what.
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
    /// The one column makes scalars.
    is_scalar: bool,
    dtype: DType,
}

/// A column of a CSV file: by its name in the header, or by its number, which begins at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvColumn {
    /// As the header says.
    Name(String),
    /// From 0 on.
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
    /// All columns, as f32, of a file whose first line is a header.
    pub fn new() -> CsvOptions {
        CsvOptions::default()
    }

    /// Whether the first line has the columns' names. By default it has.
    pub fn header(mut self, has_header: bool) -> Self {
        self.has_header = has_header;
        self
    }

    /// The columns to take, in this order: rows have the shape `[columns]`. By default all.
    pub fn columns<C: Into<CsvColumn>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = Some(columns.into_iter().map(Into::into).collect());
        self.is_scalar = false;
        self
    }

    /// The one column to take: rows are scalars, of shape `[]`.
    pub fn column(mut self, column: impl Into<CsvColumn>) -> Self {
        self.columns = Some(vec![column.into()]);
        self.is_scalar = true;
        self
    }

    /// What the text of a field is read as. By default f32.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The number of each column to take, among these.
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
    /// The numbers of a CSV file, one row a line. The file is mapped, not loaded: it is read
    /// through once, to check that all lines have as many fields and to learn where they begin, and
    /// fields become numbers when rows are read.
    ///
    /// Fields are separated by commas and may be quoted (`"1"`); spaces around a number and empty
    /// lines do not count. Floats are as Rust reads them, `nan` and `inf` among them (f16 and bf16
    /// by way of f32); a boolean is `true`, `false`, `1` or `0`. The file is not to be written
    /// while it is used; replace it by a rename.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be opened; [`Error::InvalidCall`] if lines differ in
    /// their number of fields, or a column that the options name is not there. A field that is no
    /// number is an error when its row is read, with line, column and text.
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
    /// The byte at which every [`STEP`]th row begins.
    starts: Vec<usize>,
    /// The number of rows.
    count: usize,
    /// The number of fields of each line.
    fields: usize,
    /// The header.
    names: Option<ByteRecord>,
    /// The number of each column to take.
    columns: Vec<usize>,
    /// The shape of a row.
    shape: Vec<usize>,
    dtype: DType,
}

impl Rows for Lines {
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
        let expected = format!("{} at line {line}, column {column}{}", self.dtype, name.unwrap_or_default());
        let field = String::from_utf8_lossy(&record[column]);
        let text: String = field.chars().take(SHOWN).collect();
        let rest = if text.len() < field.len() { "…" } else { "" };
        self.file.unexpected(expected, format!("{text:?}{rest}"))
    }
}

fn parse<T: Element + FromStr>(field: &[u8]) -> Option<T> {
    let text = str::from_utf8(field).ok()?.trim();
    let text = match (T::DTYPE, text) {
        (DType::Bool, "1" | "True" | "TRUE") => "true",
        (DType::Bool, "0" | "False" | "FALSE") => "false",
        _ => text,
    };
    text.parse().ok()
}

fn names(record: &ByteRecord) -> String {
    const SHOWN: usize = 16;
    let names: Vec<_> = record.iter().take(SHOWN).map(String::from_utf8_lossy).collect();
    let rest = if record.len() > SHOWN { " and more" } else { "" };
    format!("{names:?}{rest}")
}

/// The scan's buffer: few calls to fill it.
const SCAN_BYTES: usize = 64 << 10;

/// The buffer of a read, which may be of a single line.
const READ_BYTES: usize = 8 << 10;

/// Reads the lines from byte `from` on, the header like any other.
fn reader(file: &DataFile, from: usize, buffer_bytes: usize) -> Reader<Bytes<'_>> {
    let bytes = Bytes { map: &file.map, at: from };
    ReaderBuilder::new().has_headers(false).buffer_capacity(buffer_bytes).from_reader(bytes)
}

/// The bytes of a file from one on.
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

/// Where the record begins, from where reading began.
fn start(record: &ByteRecord) -> usize {
    record.position().map_or(0, |position| position.byte() as usize)
}

/// The line of the record that begins at this byte, or after the line breaks there. Only an error
/// asks for it.
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

/// The error of the reader that began at byte `from`, with its line.
fn explain(file: &DataFile, from: usize, error: ::csv::Error) -> Error {
    match error.into_kind() {
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let at = pos.map_or(String::new(), |pos| format!(" at line {}", line(file, from + pos.byte() as usize)));
            file.unexpected(format!("{expected_len} fields{at}"), len.to_string())
        }
        ErrorKind::Io(source) => Error::System { what: format!("Column::csv: read {}", file.path.display()), source },
        other => file.unexpected("lines of fields", format!("{other:?}")),
    }
}
