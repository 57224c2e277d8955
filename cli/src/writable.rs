//! The check of a file before minutes of work for it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
};

/// Checks that a file can be written, and leaves it as it is: a command that fails has nothing to
/// replace it. Returns the open file.
pub(crate) fn writable(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().append(true).open(path),
        file => file.and_then(|file| fs::remove_file(path).map(|()| file)),
    }
}
