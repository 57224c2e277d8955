//! False values that a peer writes into a group's shared memory.
//!
//! Only words that ranks have written are changed, through the segment's file. So this module needs
//! no knowledge of the segment's layout.

use crate::cases::Source;
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    process,
    sync::Mutex,
};

/// The file of a group's segment, and the words in it that can be damaged.
pub(crate) struct Memory {
    file: OwnedFd,
    /// The offsets of the words in which a rank has written at least one byte.
    words: Vec<u64>,
}

/// A change of one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FalseValue {
    /// The index among the written words, modulo their number.
    word: usize,
    /// The new value.
    value: Value,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Is(u64),
    Plus(u64),
    Flipped(u8),
}

impl FalseValue {
    fn read(source: &mut Source<'_>) -> FalseValue {
        let word = source.below(256) << 8 | source.below(256);
        let value = match source.below(4) {
            0 => Value::Is(source.pick(&[0, u64::MAX, 1, 1 << 60, 1 << 32, u64::MAX >> 1, 0xffff_ffff])),
            1 => Value::Plus(source.pick(&[1, u64::MAX, 2, 1 << 32, 1 << 44, 8, 64])),
            2 => Value::Flipped(source.byte()),
            _ => Value::Is(u64::from_le_bytes(std::array::from_fn(|_| source.byte()))),
        };
        FalseValue { word, value }
    }

    /// Reads one to eight changes.
    pub(crate) fn some(source: &mut Source<'_>) -> Vec<FalseValue> {
        (0..1 + source.below(8)).map(|_| FalseValue::read(source)).collect()
    }
}

impl Memory {
    /// Returns the memory of the group that `make` makes. Its file is the segment of this process
    /// that did not exist before. One caller runs at a time; nothing else may make groups
    /// meanwhile.
    pub(crate) fn of<R>(make: impl FnOnce() -> R) -> Result<(Memory, R), String> {
        static MAKING: Mutex<()> = Mutex::new(());
        let _alone = MAKING.lock().expect("nobody panics holding this");
        let before = segments()?;
        let made = make();
        let new = segments()?.difference(&before).next().cloned().ok_or("no segment was made")?;
        let file = rustix::fs::open(&*new.1, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(system)?;
        Ok((Memory { file, words: Vec::new() }, made))
    }

    /// Finds the words that ranks have written.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        self.words.clear();
        let mut bytes = Vec::new();
        let mut at = 0;
        // Pages that no rank has reserved are holes.
        while let Ok(start) = rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            at = rustix::fs::seek(&self.file, SeekFrom::Hole(start)).map_err(system)?;
            bytes.resize((at - start) as usize, 0);
            rustix::io::pread(&self.file, &mut bytes, start).map_err(system)?;
            let written = bytes.chunks(8).enumerate().filter(|(_, word)| word.iter().any(|&byte| byte != 0));
            self.words.extend(written.map(|(word, _)| start + 8 * word as u64));
        }
        Ok(())
    }

    /// Changes a word. Returns its offset and its old value.
    pub(crate) fn change(&self, value: FalseValue) -> (u64, [u8; 8]) {
        let place = self.words[value.word % self.words.len()];
        let mut old = [0; 8];
        rustix::io::pread(&self.file, &mut old, place).expect("a segment can be read");
        let word = u64::from_ne_bytes(old);
        let new = match value.value {
            Value::Is(value) => value,
            Value::Plus(more) => word.wrapping_add(more),
            Value::Flipped(bit) => word ^ 1 << (bit % 64),
        };
        self.write(place, new.to_ne_bytes());
        (place, old)
    }

    pub(crate) fn write(&self, place: u64, word: [u8; 8]) {
        rustix::io::pwrite(&self.file, &word, place).expect("a segment can be written");
    }
}

/// Returns the segments that this process has open: the inode number of each file, and a path to
/// it.
fn segments() -> Result<BTreeSet<(u64, String)>, String> {
    let folder = format!("/proc/{}/fd", process::id());
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        // Other threads may close files meanwhile.
        let is_segment = fs::read_link(&path).is_ok_and(|target| target.as_os_str() == "/memfd:consonance (deleted)");
        if let (true, Ok(status)) = (is_segment, rustix::fs::stat(&*path)) {
            found.insert(status.st_ino, path.display().to_string());
        }
    }
    Ok(found.into_iter().collect())
}

fn system(error: rustix::io::Errno) -> String {
    format!("the system: {error}")
}
