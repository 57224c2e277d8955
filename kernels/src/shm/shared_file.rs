//! A file that a process passes to others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor of a file that a process passes to others when it meets them: of what it has
/// [published](super::Published), say.
#[derive(Debug)]
pub struct SharedFile(OwnedFd);

impl From<OwnedFd> for SharedFile {
    fn from(file: OwnedFd) -> SharedFile {
        SharedFile(file)
    }
}

impl From<SharedFile> for OwnedFd {
    fn from(file: SharedFile) -> OwnedFd {
        file.0
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
