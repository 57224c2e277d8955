//! Arbitrary bytes as a data file: opening the file must fail, or give a column whose rows do not
//! depend on how they are read.

use super::Verdict;
use consonance::{
    DType, Dataset, Result, Tensor,
    dataset::{self, Column, CsvOptions},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process, thread,
};

/// Judges a file of `bytes`, opened as each format. The first byte chooses the dtype of the CSV
/// numbers and is not part of the file.
///
/// # Errors
/// The format, and the rows that differ between two ways to read them.
pub fn file(bytes: &[u8]) -> Verdict {
    let (&first, content) = bytes.split_first().unwrap_or((&0, &[]));
    let file = Temporary::new(content);
    let options = CsvOptions::new().dtype(DType::ALL[first as usize % DType::ALL.len()]);
    let formats = [
        ("npy", Column::npy(&file.0)),
        ("idx", Column::idx(&file.0)),
        ("safetensors", Column::safetensors(&file.0, "x")),
        ("csv", Column::csv(&file.0, &options)),
        ("csv without a header", Column::csv(&file.0, &options.header(false).column(0))),
    ];
    formats.into_iter().try_for_each(|(format, column)| {
        let Ok(column) = column else { return Ok(()) };
        if column.count() > content.len() {
            return Err(format!("{format}: {column:?} of {} bytes", content.len()));
        }
        judge(column).map_err(|wrong| format!("{format}: {wrong}"))
    })
}

/// Checks that all rows read at once equal the rows read one by one, and that both reads fail if
/// one fails.
fn judge(column: Column) -> Verdict {
    if column.count() == 0 {
        return Ok(());
    }
    let read = |size: usize| -> Result<Vec<Tensor>> {
        dataset::from_tensor_slices(column.clone())?.batch(size).iterate(0)?.collect()
    };
    let (whole, single) = (read(column.count()), read(1));
    let same = match (&whole, &single) {
        (Ok(whole), Ok(single)) => {
            let rows = single.iter().enumerate();
            rows.into_iter().all(|(row, single)| match whole[0].rows(row..row + 1) {
                // As text: a NaN equals a NaN.
                Ok(expected) => format!("{expected:?}") == format!("{single:?}"),
                Err(_) => false,
            })
        }
        (whole, single) => whole.is_err() && single.is_err(),
    };
    if same { Ok(()) } else { Err(format!("{column:?}: {whole:?} at once, {single:?} one by one")) }
}

/// A file of this thread, which is removed when this value is dropped.
pub(super) struct Temporary(pub(super) PathBuf);

impl Temporary {
    pub(super) fn new(bytes: &[u8]) -> Temporary {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        let name = format!("consonance-file-{}-{:?}", process::id(), thread::current().id());
        let file = Temporary(folder.join(name));
        fs::write(&file.0, bytes).expect("a folder for temporary files");
        file
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A file that remains does no harm.
        let _ = fs::remove_file(&self.0);
    }
}
