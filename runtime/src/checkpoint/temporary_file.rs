//! The file to which a save writes, until it replaces the checkpoint.

use std::{
    fs::{self, DirEntry, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process,
};

const PREFIX: &str = ".checkpoint-";
const SUFFIX: &str = ".tmp";

/// The limit on names that are tried. Only a save that lists the folder at this moment takes one.
const NAMES: usize = 100;

/// A temporary file in the folder of its target. It is removed on drop, unless it replaced the
/// target.
///
/// It is locked until then. The system ends the lock with the process, so a file without one is of
/// a save that was killed, and the next save to the folder removes it. Where the file system has no
/// locks, no file is removed.
pub(super) struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Temporary {
    /// Creates the file with a random name, so that processes on any host with this folder do not
    /// collide. Removes the files of saves that were killed.
    pub(super) fn beside(target: PathBuf) -> io::Result<Temporary> {
        remove_abandoned(folder_of(&target));
        for _ in 0..NAMES {
            let number = RandomState::new().hash_one(process::id());
            let path = target.with_file_name(format!("{PREFIX}{number:016x}{SUFFIX}"));
            let file = File::create_new(&path)?;
            let temporary = Temporary { file, path, target: target.clone() };
            // Another save may see the file before it is locked. It then holds the lock, or has
            // removed the file.
            let is_taken = matches!(temporary.file.try_lock(), Err(TryLockError::WouldBlock));
            if !is_taken && temporary.path.try_exists()? {
                return Ok(temporary);
            }
        }
        Err(io::Error::other(format!("other saves removed {NAMES} files before they were locked")))
    }

    /// Lets `write` write everything and syncs it to the disk.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
        let mut writer = BufWriter::new(&self.file);
        write(&mut writer)?;
        writer.flush()?;
        drop(writer);
        if let Ok(before) = fs::metadata(&self.target) {
            self.file.set_permissions(before.permissions())?;
        }
        self.file.sync_all()
    }

    /// Renames the file over its target and syncs the folder to the disk.
    pub(super) fn replace(self) -> io::Result<()> {
        // Folders can be synced on unix only.
        let folder = if cfg!(unix) { Some(File::open(folder_of(&self.target))?) } else { None };
        fs::rename(&self.path, &self.target)?;
        folder.map_or(Ok(()), |folder| folder.sync_all())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is no file. Otherwise an error is ignored: the next save tries
        // again.
        let _ = fs::remove_file(&self.path);
    }
}

fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes the files in `folder` whose save was killed. What cannot be removed stays: it does not
/// matter to the save that is about to begin.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().filter(is_temporary).map(|entry| entry.path()) {
        // Some file systems lock only files that are open for writing, and the file may be
        // read-only, as its target.
        let file = File::options().read(true).write(true).open(&path).or_else(|_| File::open(&path));
        if file.is_ok_and(|file| file.try_lock().is_ok()) {
            // A save that ended meanwhile has renamed it, and no other file gets the name.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Returns whether a save gives such names. A symbolic link or a pipe is none of its files.
fn is_temporary(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    let is_number =
        number.is_some_and(|number| number.len() == 16 && number.bytes().all(|digit| digit.is_ascii_hexdigit()));
    is_number && entry.file_type().is_ok_and(|of| of.is_file())
}
