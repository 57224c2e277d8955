//! A file of records that one thread writes and that needs no flush: if the process is killed, the
//! file has all records so far.
//!
//! The file is mapped, so a record is in the system's page cache once it is written. The file grows
//! by a block at a time. The zeros of a block are written before it is mapped: if the disk is full,
//! the write fails, and records are dropped and counted. Without the write, a store to the mapping
//! would raise `SIGBUS`.
//!
//! **A remaining risk**: if another process cuts the file off, a store raises `SIGBUS`. The file is
//! therefore for a folder that nobody else uses until the program has ended.

use crate::sync::plain::{AtomicU64, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    process,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

/// The number of words of a record.
pub const WORDS: usize = 8;

/// A record. Its meaning is the caller's.
pub type Record = [u64; WORDS];

/// The number of records of a block. A block is a whole number of pages of every size.
const BLOCK: usize = 1024;

const BLOCK_BYTES: usize = BLOCK * size_of::<Record>();

/// The number of records that the header takes the place of.
const HEADER: usize = 2;

/// Identifies such a file, and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"cnsrec02");

/// The words of the header. The name begins at the second record.
const AT_MAGIC: usize = 0;
const AT_COUNT: usize = 1;
const AT_DROPPED: usize = 2;
const AT_PROCESS: usize = 3;
const AT_START: usize = 4;

/// The limit on the bytes of a name.
const NAME_BYTES: usize = size_of::<Record>();

/// Returns the time at which this process asked for it first, in nanoseconds since 1970. It tells
/// processes with the same id apart: those of two hosts, or of two runs in a container.
pub fn start() -> u64 {
    static START: LazyLock<u64> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    });
    *START
}

/// A file that is written.
pub struct RecordFile {
    file: File,
    blocks: Vec<MmapRaw>,
    count: usize,
    /// The limit on the number of records.
    most: usize,
    dropped: u64,
}

impl RecordFile {
    /// Creates the file, with room for `most` records. `name` says which thread writes it; at most
    /// 64 bytes of it are kept.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::AlreadyExists`] if there is such a file.
    pub fn create(path: &Path, name: &str, most: usize) -> io::Result<RecordFile> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let mut file = RecordFile { file, blocks: Vec::new(), count: 0, most, dropped: 0 };
        file.grow()?;
        let mut bytes = [0; NAME_BYTES];
        name.bytes().zip(&mut bytes).for_each(|(from, to)| *to = from);
        for (index, word) in bytes.as_chunks().0.iter().enumerate() {
            file.store(1, index, u64::from_le_bytes(*word));
        }
        file.store(0, AT_PROCESS, process::id().into());
        file.store(0, AT_START, start());
        file.store(0, AT_MAGIC, MAGIC);
        Ok(file)
    }

    /// Appends a record, and returns its index. `None` if there is no room: the record is dropped,
    /// and counted.
    pub fn append(&mut self, record: Record) -> Option<usize> {
        let index = self.count;
        let is_full = index == self.most || (self.place(index) / BLOCK == self.blocks.len() && self.grow().is_err());
        if is_full {
            // After a failure to grow, later records are dropped at once.
            self.most = index;
            self.dropped += 1;
            self.store(0, AT_DROPPED, self.dropped);
            return None;
        }
        self.write(index, record);
        self.count += 1;
        self.store(0, AT_COUNT, self.count as u64);
        Some(index)
    }

    /// Replaces a record that was appended.
    ///
    /// # Panics
    /// If there is no record of this index.
    pub fn replace(&mut self, index: usize, record: Record) {
        assert!(index < self.count, "record {index} of {}", self.count);
        self.write(index, record);
    }

    fn write(&mut self, index: usize, record: Record) {
        record.into_iter().enumerate().for_each(|(word, value)| self.store(self.place(index), word, value));
    }

    /// Returns the place of a record, counted from the header.
    fn place(&self, index: usize) -> usize {
        HEADER + index
    }

    /// Stores a word of the record at `place`. Release: a later store is not seen without it.
    fn store(&self, place: usize, word: usize, value: u64) {
        assert!(word < WORDS, "word {word}");
        let block = &self.blocks[place / BLOCK];
        // SAFETY: the block is mapped for `BLOCK_BYTES` bytes until `self` is dropped, and begins
        // at a page, so this word lies in it and is aligned. Code of this process accesses it as an
        // atomic only.
        let word = unsafe { &*block.as_mut_ptr().cast::<AtomicU64>().add(place % BLOCK * WORDS + word) };
        word.store(value, Ordering::Release);
    }

    /// Adds a block of zeros to the file.
    fn grow(&mut self) -> io::Result<()> {
        let start = (self.blocks.len() * BLOCK_BYTES) as u64;
        self.file.write_all(&[0; BLOCK_BYTES])?;
        self.blocks.push(MmapOptions::new().offset(start).len(BLOCK_BYTES).map_raw(&self.file)?);
        Ok(())
    }
}

/// The content of such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The id of the process that wrote it.
    pub process: u32,
    /// The [start] of that process.
    pub start: u64,
    /// The name that it was created with.
    pub name: String,
    /// The number of records that were dropped.
    pub dropped: u64,
    /// The records. The process may have been killed while it wrote the last one.
    pub records: Vec<Record>,
}

/// Reads the bytes of a file. `None` if they are not of such a file, or it was not finished.
pub fn read(bytes: &[u8]) -> Option<Contents> {
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (header, records) = words.as_chunks::<WORDS>().0.split_at_checked(HEADER)?;
    if header[0][AT_MAGIC] != MAGIC {
        return None;
    }
    let name: Vec<u8> = header[1].iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
    Some(Contents {
        process: u32::try_from(header[0][AT_PROCESS]).ok()?,
        start: header[0][AT_START],
        name: String::from_utf8_lossy(&name).into_owned(),
        dropped: header[0][AT_DROPPED],
        records: records.get(..usize::try_from(header[0][AT_COUNT]).ok()?)?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs, path::PathBuf};

    /// A path of a file that does not exist. The drop removes the file.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            Temporary(env::temp_dir().join(format!("consonance-records-{}-{name}", process::id())))
        }

        fn contents(&self) -> Contents {
            read(&fs::read(&self.0).unwrap()).expect("a file of records")
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn record(number: usize) -> Record {
        std::array::from_fn(|word| (10 * number + word) as u64)
    }

    #[test]
    fn records_are_read_while_the_file_is_open() {
        let temporary = Temporary::new("open");
        let mut file = RecordFile::create(&temporary.0, "replica 1", usize::MAX).unwrap();
        let (process, name) = (process::id(), "replica 1".to_owned());
        let none = Contents { process, start: start(), name, dropped: 0, records: Vec::new() };
        assert_eq!(temporary.contents(), none);
        // Across the borders of blocks.
        for number in 0..2 * BLOCK + 5 {
            assert_eq!(file.append(record(number)), Some(number));
        }
        file.replace(BLOCK, record(1));
        let records = temporary.contents().records;
        let expected = |number| record(if number == BLOCK { 1 } else { number });
        assert_eq!(records, (0..2 * BLOCK + 5).map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn dropped_records_are_counted() {
        let temporary = Temporary::new("room");
        let mut file = RecordFile::create(&temporary.0, "", 3).unwrap();
        let indices: Vec<Option<usize>> = (0..5).map(|number| file.append(record(number))).collect();
        assert_eq!(indices, [Some(0), Some(1), Some(2), None, None]);
        let contents = temporary.contents();
        assert_eq!((contents.dropped, contents.records.len()), (2, 3));
    }

    #[test]
    fn a_full_disk_drops_records() {
        // A file that is open for reading only stands for the disk: a write fails.
        let temporary = Temporary::new("full");
        let mut file = RecordFile::create(&temporary.0, "", usize::MAX).unwrap();
        file.file = File::open(&temporary.0).unwrap();
        let room = BLOCK - HEADER;
        for number in 0..room {
            assert_eq!(file.append(record(number)), Some(number));
        }
        assert_eq!([file.append(record(0)), file.append(record(0))], [None, None]);
        assert_eq!((temporary.contents().dropped, temporary.contents().records.len()), (2, room));
    }

    #[test]
    fn a_name_is_cut_off_and_no_file_is_replaced() {
        let temporary = Temporary::new("name");
        let _file = RecordFile::create(&temporary.0, &"é".repeat(40), 1).unwrap();
        assert_eq!(temporary.contents().name, "é".repeat(32));
        let again = RecordFile::create(&temporary.0, "", 1).err().expect("there is a file");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn other_bytes_are_no_records() {
        let temporary = Temporary::new("other");
        let mut file = RecordFile::create(&temporary.0, "", 9).unwrap();
        file.append(record(1));
        let bytes = fs::read(&temporary.0).unwrap();
        for cut in [0, 7, 8, 64, 127, 128, 191] {
            assert_eq!(read(&bytes[..cut]), None, "{cut}");
        }
        assert!(read(&bytes[..192]).is_some());
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert_eq!(read(&other), None);
        other = bytes;
        other[8..16].fill(0xff);
        assert_eq!(read(&other), None, "a count beyond the end");
    }
}
