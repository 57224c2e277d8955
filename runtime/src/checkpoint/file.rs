//! The file of a checkpoint: values, and a digest by which damage is noticed.

use super::{Saveable, temporary_file::Temporary};
use crate::{
    Error, Result, Tensor,
    dataset::file::{
        DataFile,
        safetensors::{Header, LENGTH_BYTES, to_format},
    },
};
use consonance_kernels::{
    digest::{digest, mix},
    memory::{HostBufMut, HostMemory},
    os::mapped_file::{self, ByteOrder},
};
use safetensors::tensor::{Metadata, TensorInfo};
use std::{
    collections::HashMap,
    fs,
    io::{self, Write},
    path::Path,
    thread,
};

/// The key in the metadata. Its value is [`FORMAT`], the digest in 16 hexadecimal digits, and the
/// number of steps if there is one, with spaces between them. One key alone: two have no order, and
/// the same values make the same file.
const KEY: &str = "consonance.checkpoint";

/// The version of the format. This is the only one.
const FORMAT: &str = "1";

/// Files of at least this many bytes are checked and read by two threads at once.
const PARALLEL_BYTES: usize = 4 << 20;

/// Writes the values, and the number of steps if there is one, to the file at `path`.
pub(super) fn write(
    call: &'static str,
    path: &Path,
    step: Option<u64>,
    mut values: Vec<(String, Tensor)>,
) -> Result<()> {
    // Largest element sizes first, so that each tensor is aligned in a mapping of the file.
    values.sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then(a.cmp(b)));
    let failed = |what: &str, source| Error::system(format!("{call}: {what} {}", path.display()), source);
    let header = header(step, &values).map_err(|source| failed("describe", source))?;
    if path.file_name().is_none() {
        return Err(Error::invalid(call, "path", "the path of a file", path.display().to_string()));
    }
    // Follow a symbolic link. A new file does not resolve.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Temporary::beside(target)
        .and_then(|mut temporary| {
            temporary.write(|writer| {
                writer.write_all(&header)?;
                values.iter().try_for_each(|(_, value)| write_elements(value, writer))
            })?;
            temporary.replace()
        })
        .map_err(|source| failed("write", source))
}

/// A checkpoint that is open for reading.
pub(super) struct Saved {
    file: DataFile,
    header: Header,
}

impl Saved {
    /// Opens the file for `call` and reads its header.
    pub(super) fn open(call: &'static str, path: &Path) -> Result<Saved> {
        let file = DataFile::open(call, path)?;
        let header = Header::read(&file)?;
        Ok(Saved { file, header })
    }

    /// Checks that the file is the checkpoint of this number of steps. The digest says whether the
    /// number itself is damaged.
    pub(super) fn check_step(&self, step: u64) -> Result<()> {
        match self.mark().and_then(|mark| mark.split(' ').nth(2)) {
            Some(found) if found == step.to_string() => Ok(()),
            found => {
                let found = found.map_or_else(|| "none".to_owned(), |found| format!("step {found}"));
                Err(self.file.unexpected(format!("step {step}, as in its name"), found))
            }
        }
    }

    /// Checks the digest of the file and reads the variables' values, each on a thread if the file
    /// is large. The inner error is of values that do not fit, in a file without damage.
    pub(super) fn read(&self, variables: &[(String, Saveable<'_>)]) -> Result<Result<Vec<Tensor>>> {
        let read_values = || variables.iter().map(|(name, variable)| self.read_one(name, variable)).collect();
        if self.file.bytes() < PARALLEL_BYTES {
            return self.check_digest().map(|()| read_values());
        }
        thread::scope(|scope| {
            match thread::Builder::new().name("restore".to_owned()).spawn_scoped(scope, read_values) {
                Ok(reader) => {
                    let digest = self.check_digest();
                    let values = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    digest.map(|()| values)
                }
                // Without another thread this one does both.
                Err(_) => self.check_digest().map(|()| read_values()),
            }
        })
    }

    /// Checks the digest of the file.
    pub(super) fn check_digest(&self) -> Result<()> {
        /// Number of bytes that are read at a time, so that they stay in the caches.
        const PIECE: usize = 256 << 10;
        let Saved { file, header } = self;
        let Some((format, saved)) = self.mark().and_then(|mark| mark.split_once(' ')) else {
            let found = "a safetensors file that it has not written";
            return Err(file.unexpected("a checkpoint of checkpoint::save", found));
        };
        let (saved, step) = saved.split_once(' ').map_or((saved, None), |(saved, step)| (saved, Some(step)));
        if format != FORMAT {
            return Err(file.unexpected(format!("format {FORMAT}"), format!("format {format}")));
        }
        let names = header.metadata.offset_keys();
        let tensors = names.iter().filter_map(|name| Some((name.as_str(), header.metadata.info(name)?)));
        let mut digest = Digest::of_tensors(step, tensors);
        let mut piece = vec![0; PIECE.min(file.bytes() - header.start)];
        for start in (header.start..file.bytes()).step_by(PIECE) {
            let count = PIECE.min(file.bytes() - start);
            file.read(start, ByteOrder::NATIVE, HostBufMut::from(&mut piece[..count]))?;
            digest.add(&piece[..count]);
        }
        let found = format!("{:016x}", digest.finish());
        if saved == found {
            Ok(())
        } else {
            Err(file.unexpected(format!("the digest {saved}"), format!("{found}: it is damaged")))
        }
    }

    /// Reads the tensor `name` and checks that it has the dtype and shape of `variable`.
    fn read_one(&self, name: &str, variable: &Saveable<'_>) -> Result<Tensor> {
        let layout = self.header.layout(&self.file, name)?;
        if (layout.dtype, &layout.shape[..]) != (variable.dtype(), variable.shape()) {
            let expected = format!("tensor {name:?} of {}{:?}, as the variable", variable.dtype(), variable.shape());
            return Err(self.file.unexpected(expected, layout.describe()));
        }
        let count = layout.shape.iter().product();
        let no_memory = Error::no_memory(layout.dtype, count);
        let mut memory = HostMemory::try_unspecified(layout.dtype, count).map_err(no_memory)?;
        self.file.read(layout.start, layout.order, memory.as_buf_mut())?;
        Tensor::from_memory(layout.shape, memory)
    }

    /// Returns the value of [`KEY`].
    fn mark(&self) -> Option<&str> {
        self.header.metadata.metadata().as_ref()?.get(KEY).map(String::as_str)
    }
}

/// Returns the start of the file: the length of the header, and the header.
fn header(step: Option<u64>, values: &[(String, Tensor)]) -> io::Result<Vec<u8>> {
    let mut end = 0;
    let infos = values.iter().map(|(name, value)| {
        let start = end;
        end += value.buf().bytes();
        let info =
            TensorInfo { dtype: to_format(value.dtype()), shape: value.shape().to_vec(), data_offsets: (start, end) };
        (name.clone(), info)
    });
    let infos: Vec<_> = infos.collect();
    let step = step.map(|step| step.to_string());
    let mut digest = Digest::of_tensors(step.as_deref(), infos.iter().map(|(name, info)| (name.as_str(), info)));
    values.iter().try_for_each(|(_, value)| write_elements(value, &mut digest))?;
    let digest = format!("{:016x}", digest.finish());
    let mark = [FORMAT, &digest].into_iter().chain(step.as_deref()).collect::<Vec<_>>().join(" ");
    let metadata = Metadata::new(Some(HashMap::from([(KEY.to_owned(), mark)])), infos).map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// Writes the elements of a tensor, in the byte order of the format.
fn write_elements(value: &Tensor, into: &mut impl Write) -> io::Result<()> {
    mapped_file::write(value.host().map_err(io::Error::other)?, ByteOrder::Little, into)
}

/// A digest of 64 bits of the content of a checkpoint.
struct Digest {
    state: u64,
    /// The last bytes, while fewer than eight.
    word: [u8; 8],
    filled: usize,
}

impl Digest {
    /// Starts a digest with the number of steps, if there is one, and with names, dtypes, shapes
    /// and offsets. The elements are added later.
    fn of_tensors<'a>(step: Option<&str>, tensors: impl Iterator<Item = (&'a str, &'a TensorInfo)>) -> Digest {
        let describe = |(name, info): (&str, &TensorInfo)| {
            format!("{name:?} {} {:?} {:?}", info.dtype, info.shape, info.data_offsets)
        };
        let mut tensors: Vec<_> = tensors.collect();
        // Sort by name too: tensors without elements have equal offsets, so offsets do not order
        // them.
        tensors.sort_by_key(|&(name, info)| (info.data_offsets, name));
        let step = step.map_or(0, digest);
        let state = tensors.into_iter().map(describe).fold(step, |state, tensor| mix(state, digest(&tensor)));
        Digest { state, word: [0; 8], filled: 0 }
    }

    /// Adds bytes. The result does not depend on how they are split into pieces.
    fn add(&mut self, mut bytes: &[u8]) {
        if self.filled > 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(8 - self.filled));
            self.word[self.filled..self.filled + first.len()].copy_from_slice(first);
            (self.filled, bytes) = (self.filled + first.len(), rest);
            if self.filled < 8 {
                return;
            }
            self.state = mix(self.state, u64::from_le_bytes(self.word));
        }
        let (words, rest) = bytes.as_chunks();
        self.state = words.iter().fold(self.state, |state, &word| mix(state, u64::from_le_bytes(word)));
        self.word[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    fn finish(mut self) -> u64 {
        // The number of bytes is already in the digest of the tensors, so padding with zeros is not
        // ambiguous.
        self.word[self.filled..].fill(0);
        mix(self.state, u64::from_le_bytes(self.word))
    }
}

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
