//! Reads files by mapping them and copying from the page cache.
//!
//! A mapping shows concurrent changes of the file. So its bytes are never lent: no reference to
//! them is formed, no code reads a byte twice, and the caller checks what was copied out. If the
//! file changes during a read:
//!
//! * Written in place: the read returns old bytes, new bytes or a mix. Every bit pattern is an
//!   element of every type but `bool`; for `bool`, any byte but 0 is `true`.
//! * Made longer: the new part is not seen.
//! * Made shorter: each read first checks the length of the file, and fails if the file is too
//!   short now. **What remains**: a file that is cut off between this check and the copy raises
//!   `SIGBUS`, which ends the process. To replace a data file, rename another file to its name: the
//!   mapped file then stays whole.
//! * On a failing disk: a page that cannot be read raises `SIGBUS`, too. Sequential reads find such
//!   a page before the copy, and fail.

use crate::{
    cpu::{
        cache_hints::{self, CopySize},
        copy::copy,
    },
    memory::{HostBuf, HostBufMut, HostMemory},
    sync::atomics::{AtomicU64, Ordering},
};
use consonance_spec::DType;
use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// A file that is mapped for reading.
pub struct MappedFile {
    map: MmapRaw,
    file: File,
    bytes: usize,
    /// The offset at which the last read ended.
    next: AtomicU64,
}

/// The order of an element's bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The least significant byte comes first.
    Little,
    /// The most significant byte comes first.
    Big,
}

/// The number of bytes that sequential reads map and unmap at a time. Mapping page by page costs
/// more than the copy. With this many bytes it costs little, and more bytes gain nothing.
const WINDOW: usize = 2 << 20;

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidInput`] if the file is not a regular file: a pipe
    /// would wait for a writer.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let map = MmapOptions::new().map_raw_read_only(&file)?;
        // An empty file is mapped as one byte, which does not exist.
        let bytes = if file.metadata()?.len() == 0 { 0 } else { map.len() };
        Ok(MappedFile { map, file, bytes, next: AtomicU64::new(0) })
    }

    /// Returns the number of bytes that the file had when it was opened.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the elements from byte `at` on to `into`. `at` need not be aligned.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if they reach past the end of the file, as it was when it
    /// was opened or as it is now; the system's errors.
    pub fn read(&self, at: usize, order: ByteOrder, mut into: HostBufMut<'_>) -> io::Result<()> {
        let bytes = into.bytes();
        let end = at.checked_add(bytes).filter(|&end| end <= self.bytes && end as u64 <= self.bytes_now());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        // Relaxed: this only predicts the next read.
        let follows = self.next.swap(end as u64, Ordering::Relaxed) == at as u64;
        if follows {
            self.map_ahead(at, end)?;
        }
        // SAFETY: `at <= self.bytes`, which is the length of the mapping.
        let source = unsafe { self.map.as_ptr().add(at) };
        let target = into.as_mut_ptr();
        if into.dtype() == DType::Bool {
            for index in 0..bytes {
                // SAFETY: `source` is mapped for `bytes` bytes until `self` is dropped. `target` is
                // valid for as many bytes, and exclusive. Another process may write the file
                // meanwhile: whatever the byte is, it becomes one valid `bool`.
                unsafe { target.add(index).write(u8::from(source.add(index).read() != 0)) }
            }
        } else {
            // SAFETY: as above. Every bit pattern is an element of these types, so bytes that
            // another process writes meanwhile may make a wrong element, but a valid one.
            unsafe {
                copy(source, target, bytes, CopySize::new(bytes, || cache_hints::goes_past_caches(bytes, bytes, 1)))
            }
        }
        if follows {
            self.unmap_behind(at, end);
        }
        if order != ByteOrder::NATIVE {
            swap_bytes(into);
        }
        Ok(())
    }

    /// Returns the number of bytes that the file has now; 0 if the system does not tell.
    fn bytes_now(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Maps the windows that begin in `at..end`.
    #[cfg(target_os = "linux")]
    fn map_ahead(&self, at: usize, end: usize) -> io::Result<()> {
        let start = at.next_multiple_of(WINDOW);
        let end = end.next_multiple_of(WINDOW).min(self.bytes);
        if start >= end {
            return Ok(());
        }
        match self.map.advise_range(memmap2::Advice::PopulateRead, start, end - start) {
            // The file has a page that cannot be read: a copy would raise SIGBUS.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Err(error),
            // A kernel before 5.14 does not know the advice. The copy then maps page by page.
            _ => Ok(()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn map_ahead(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }

    /// Unmaps the windows that end in `at..end`, so that their pages do not count as this process's
    /// memory.
    #[cfg(target_os = "linux")]
    fn unmap_behind(&self, at: usize, end: usize) {
        let (start, end) = (at / WINDOW * WINDOW, end / WINDOW * WINDOW);
        if start < end {
            // SAFETY: nothing refers to these bytes. A later read maps them from the file again.
            let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn unmap_behind(&self, _: usize, _: usize) {}
}

impl ByteOrder {
    /// The order of this machine.
    pub const NATIVE: ByteOrder = if cfg!(target_endian = "little") { ByteOrder::Little } else { ByteOrder::Big };
}

/// Writes the elements to `to`.
///
/// # Errors
/// The errors of `to`.
pub fn write(elements: HostBuf<'_>, order: ByteOrder, to: &mut dyn io::Write) -> io::Result<()> {
    if order == ByteOrder::NATIVE {
        return to.write_all(elements.as_bytes());
    }
    let mut swapped = HostMemory::from(elements);
    swap_bytes(swapped.as_buf_mut());
    to.write_all(swapped.as_buf().as_bytes())
}

/// Reverses the bytes of each element.
fn swap_bytes(mut elements: HostBufMut<'_>) {
    let size = elements.dtype().size();
    if size == 1 {
        return;
    }
    // SAFETY: the buffer is exclusive and has this many bytes. Elements of more than one byte may
    // have any bits, and have no padding.
    let bytes = unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr(), elements.bytes()) };
    match size {
        2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|element| element.reverse()),
        4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|element| element.reverse()),
        _ => bytes.chunks_exact_mut(size).for_each(|element| element.reverse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, path::PathBuf, process};

    /// A file with these bytes. The drop removes it.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str, bytes: &[u8]) -> Temporary {
            let path = env::temp_dir().join(format!("consonance-file-{}-{name}", process::id()));
            fs::write(&path, bytes).unwrap();
            Temporary(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    fn elements_are_read_at_any_byte_in_both_orders() {
        let bytes: Vec<u8> = (0..40).collect();
        let temporary = Temporary::new("orders", &bytes);
        let file = MappedFile::open(&temporary.0).unwrap();
        assert_eq!(file.bytes(), 40);
        let (mut small, mut middle, mut large) = ([0u16; 2], [0u32; 2], [0u64; 2]);
        for at in 0..24 {
            let part = |size: usize, index: usize| &bytes[at + size * index..at + size * (index + 1)];
            for order in [ByteOrder::Little, ByteOrder::Big] {
                file.read(at, order, HostBufMut::from(&mut small[..])).unwrap();
                file.read(at, order, HostBufMut::from(&mut middle[..])).unwrap();
                file.read(at, order, HostBufMut::from(&mut large[..])).unwrap();
                for index in 0..2 {
                    let (s, m, l) = (part(2, index), part(4, index), part(8, index));
                    let (s, m, l) = (s.try_into().unwrap(), m.try_into().unwrap(), l.try_into().unwrap());
                    let expected = match order {
                        ByteOrder::Little => (u16::from_le_bytes(s), u32::from_le_bytes(m), u64::from_le_bytes(l)),
                        ByteOrder::Big => (u16::from_be_bytes(s), u32::from_be_bytes(m), u64::from_be_bytes(l)),
                    };
                    assert_eq!((small[index], middle[index], large[index]), expected, "{order:?} at {at}");
                }
            }
        }
    }

    #[test]
    fn written_elements_read_back() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut bytes = Vec::new();
            write(HostBuf::from(&[1.5f64, -0.0][..]), order, &mut bytes).unwrap();
            write(HostBuf::from(&[true, false][..]), order, &mut bytes).unwrap();
            let first = if order == ByteOrder::Little { 1.5f64.to_le_bytes() } else { 1.5f64.to_be_bytes() };
            assert_eq!((&bytes[..8], &bytes[16..]), (&first[..], &[1, 0][..]));
            let temporary = Temporary::new("written", &bytes);
            let file = MappedFile::open(&temporary.0).unwrap();
            let (mut numbers, mut truths) = ([0.0f64; 2], [false; 2]);
            file.read(0, order, HostBufMut::from(&mut numbers[..])).unwrap();
            file.read(16, order, HostBufMut::from(&mut truths[..])).unwrap();
            assert_eq!((numbers.map(f64::to_bits), truths), ([1.5f64, -0.0].map(f64::to_bits), [true, false]));
        }
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        let temporary = Temporary::new("bools", &[0, 1, 2, 0x80, 0xff]);
        let mut truths = [false; 5];
        let file = MappedFile::open(&temporary.0).unwrap();
        file.read(0, ByteOrder::Big, HostBufMut::from(&mut truths[..])).unwrap();
        assert_eq!(truths, [false, true, true, true, true]);
    }

    #[test]
    fn consecutive_reads_cross_windows() {
        let bytes: Vec<u8> = (0..3 * WINDOW + 5).map(|index| (index / 7) as u8 ^ (index >> 13) as u8).collect();
        let temporary = Temporary::new("windows", &bytes);
        let file = MappedFile::open(&temporary.0).unwrap();
        for piece in [WINDOW / 3 + 1, WINDOW, 2 * WINDOW + 1, bytes.len()] {
            let mut read = vec![0u8; bytes.len()];
            for (index, part) in read.chunks_mut(piece).enumerate() {
                file.read(index * piece, ByteOrder::NATIVE, HostBufMut::from(part)).unwrap();
            }
            assert!(read == bytes, "in pieces of {piece}");
        }
    }

    #[test]
    fn no_read_reaches_past_the_end() {
        let temporary = Temporary::new("end", &[7; 10]);
        let file = MappedFile::open(&temporary.0).unwrap();
        let mut into = [0u8; 4];
        let mut read =
            |at| file.read(at, ByteOrder::NATIVE, HostBufMut::from(&mut into[..])).map_err(|error| error.kind());
        assert_eq!(read(6), Ok(()));
        for at in [7, 10, 11, usize::MAX - 4, usize::MAX - 3, usize::MAX] {
            assert_eq!(read(at), Err(io::ErrorKind::UnexpectedEof), "at {at}");
        }
        File::options().write(true).open(&temporary.0).unwrap().set_len(9).unwrap();
        assert_eq!(read(5), Ok(()));
        assert_eq!(read(6), Err(io::ErrorKind::UnexpectedEof), "the file is shorter now");
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        let temporary = Temporary::new("empty", &[]);
        let file = MappedFile::open(&temporary.0).unwrap();
        assert_eq!(file.bytes(), 0);
        file.read(0, ByteOrder::NATIVE, HostBufMut::from(&mut [0u8; 0][..])).unwrap();
        assert!(file.read(0, ByteOrder::NATIVE, HostBufMut::from(&mut [0u8; 1][..])).is_err());
    }

    #[test]
    fn a_folder_and_an_absent_file_are_not_mapped() {
        assert_eq!(MappedFile::open(&env::temp_dir()).err().unwrap().kind(), io::ErrorKind::InvalidInput);
        let nothing = env::temp_dir().join("consonance-file-that-is-not-there");
        assert_eq!(MappedFile::open(&nothing).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
