//! Checkpoints: save the values of variables to a file and restore them, to the same or to equal
//! variables.
//!
//! The file is a safetensors file, so other programs can read it. Its metadata mark it as a
//! checkpoint and contain a digest of all other content, so that damage is detected before any
//! value is used.
//!
//! The saved value is that of [`Variable::read`] outside of replicas. It does not depend on the
//! number of replicas, so a checkpoint may be restored under another strategy and with another
//! number of replicas. A read then returns the same value bit for bit, with one exception: the mean
//! of components that are synchronised on reading is rounded, so its last bit may differ if the
//! number of replicas is not a power of two. If components are summed, replica 0 has the whole
//! value after a restore.
//!
//! Under a strategy of [several workers](crate::MultiWorkerMirroredStrategy) all workers make the
//! calls. To save, the chief writes the file and the others wait until it is written. To restore,
//! all read the file, and no worker sets a variable unless all do. Processes with separate
//! strategies save in one process by [`save_on_chief`].
//!
//! ```
//! use consonance::{MirroredStrategy, OneDeviceStrategy, Tensor, checkpoint};
//! # let path = std::env::temp_dir().join(format!("doc-checkpoint-{}", std::process::id()));
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let weights = strategy.variable(|| Tensor::from([0.25f32, -1.5]))?;
//! let step = strategy.variable(|| Tensor::from(100u64))?;
//! checkpoint::save(&path, [("weights", &weights), ("step", &step)])?;
//!
//! let other = OneDeviceStrategy::new("cpu:0")?;
//! let weights = other.variable(|| Tensor::from([0.0f32, 0.0]))?;
//! checkpoint::restore(&path, [("weights", &weights)])?;
//! assert_eq!(weights.read()?, Tensor::from([0.25f32, -1.5]));
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), consonance::Error>(())
//! ```

use crate::{
    ClusterResolver, Communicator, Error, Result, Strategy, Tensor, Variable, VariableSynchronization,
    comm::agreement::Agreement,
    dataset::file::{
        DataFile,
        safetensors::{Header, LENGTH_BYTES, to_format},
    },
    handle::{Workers, context},
    kind,
};
use consonance_kernels::{
    digest::{digest, mix},
    memory::{HostBufMut, HostMemory},
    os::mapped_file::{self, ByteOrder},
};
use consonance_spec::Kind;
use safetensors::tensor::{Metadata, TensorInfo};
use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process,
    sync::Arc,
    thread,
};

/// The key in the metadata. Its value is [`FORMAT`], a space, and the digest in 16 hexadecimal
/// digits.
const KEY: &str = "consonance.checkpoint";

/// The version of the format. This is the only one.
const FORMAT: &str = "1";

/// Files of at least this many bytes are checked and read by two threads at once.
const PARALLEL_BYTES: usize = 4 << 20;

/// Saves the values of `variables`, each under its name, to the file at `path`.
///
/// The file is replaced atomically. The values are written to a temporary file in the same folder,
/// `.checkpoint-NUMBER.tmp` with a number of 16 random hexadecimal digits. It takes the permissions
/// of the file at `path` and, when it is on the disk, its place. On an error the file at `path`
/// does not change. A symbolic link stays: its target is replaced. Values are read one after the
/// other, before the first is written. An assignment from another thread during this call is saved
/// or not, for each variable separately.
///
/// # Errors
/// [`Error::WrongContext`] in a replica; [`Error::InvalidCall`] for a name that occurs twice or is
/// `__metadata__`, and for a variable that occurs twice; those of [`Variable::read`]: a variable
/// that is synchronised on reading needs an aggregation; [`Error::System`] if the file cannot be
/// written; with several workers those of a collective: [`Error::Mismatch`] if their names differ,
/// or if the chief fails, with its error.
pub fn save<'v, N: Into<String>>(
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, &'v Variable)>,
) -> Result<()> {
    save_all(kind::SAVE.name(), path.as_ref(), &list(kind::SAVE, kind::SAVE.name(), variables)?)
}

/// Does [`save`] in the [chief](ClusterResolver::is_chief) of a cluster and nothing in its other
/// processes. All processes make the call. Returns whether this process is the chief. The others do
/// not wait for the file, unless the variables belong to a strategy of several workers: then this
/// is [`save`].
///
/// # Errors
/// As [`save`]; in the other processes only those about the arguments.
///
/// ```
/// use consonance::{OneDeviceStrategy, Tensor, TfConfigClusterResolver, checkpoint};
/// # let path = std::env::temp_dir().join(format!("doc-chief-{}", std::process::id()));
/// let cluster = r#""cluster": {"worker": ["a:1", "b:1"]}"#;
/// let second = TfConfigClusterResolver::from_text(&format!(r#"{{{cluster}, "task": {{"type": "worker", "index": 1}}}}"#))?;
/// let strategy = OneDeviceStrategy::new("cpu:0")?;
/// let step = strategy.variable(|| Tensor::from(100u64))?;
/// assert!(!checkpoint::save_on_chief(&second, &path, [("step", &step)])?);
/// assert!(!path.exists());
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn save_on_chief<'v, N: Into<String>>(
    resolver: &dyn ClusterResolver,
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, &'v Variable)>,
) -> Result<bool> {
    let call = "checkpoint::save_on_chief";
    let variables = list(kind::SAVE, call, variables)?;
    let is_chief = several_workers(&variables).map_or_else(|| resolver.is_chief(), |workers| workers.is_chief());
    if is_chief || several_workers(&variables).is_some() {
        save_all(call, path.as_ref(), &variables)?;
    }
    Ok(is_chief)
}

/// Sets each of `variables` to the value with its name in the file at `path`. Other tensors in the
/// file are ignored, so a part of the saved variables can be restored.
///
/// All values are read and checked before the first variable is set: on an error no variable
/// changes.
///
/// # Errors
/// [`Error::WrongContext`] in a replica, or in the scope of another strategy than the variables';
/// [`Error::System`] if the file cannot be read; [`Error::InvalidCall`] if it is damaged or not
/// from [`save`], if it has no tensor with a variable's name, or one of another dtype or shape, for
/// a name or a variable that occurs twice, and for a variable that is synchronised on reading and
/// has no aggregation; [`Error::Timeout`] if an update of a variable on another thread does not
/// end; with several workers those of a collective: [`Error::Mismatch`] if their files differ, or
/// if one worker fails, with its error.
pub fn restore<'v, N: Into<String>>(
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, &'v Variable)>,
) -> Result<()> {
    let kind = kind::RESTORE;
    let mut variables = list(kind, kind.name(), variables)?;
    // All threads take variables in the same order, so that two threads cannot deadlock.
    variables.sort_by_key(|(_, variable)| variable.id());
    let restore = || {
        let file = DataFile::open(kind.name(), path.as_ref())?;
        let header = Header::read(&file)?;
        let (digest, values) = read_all(&file, &header, &variables)?;
        let held = variables.iter().map(|(_, variable)| variable.hold(kind.name())).collect::<Result<Vec<_>>>()?;
        Ok((values, held, digest))
    };
    let strategy = strategy_of_several(&variables);
    let restore_all = || {
        let (values, held, digest) = or_refuse(strategy, kind, restore())?;
        agree(strategy, kind, "digest", &digest)?;
        held.into_iter().zip(&values).for_each(|(held, value)| held.set(value));
        Ok(())
    };
    // Take the turn before the variables, in the order of a run, so that the two cannot deadlock.
    match strategy {
        Some(strategy) => strategy.in_turn(kind.name(), restore_all),
        None => restore_all(),
    }
}

/// Saves for `call`. With several workers the chief writes.
fn save_all(call: &'static str, path: &Path, variables: &[(String, &Variable)]) -> Result<()> {
    let (kind, strategy) = (kind::SAVE, strategy_of_several(variables));
    let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    agree(strategy, kind, "variables", &format!("{names:?}"))?;
    let read = |variable: &Variable| match variable.synchronization() {
        // This read is a collective of all workers: an error reaches the others there.
        VariableSynchronization::OnRead if variable.strategy().workers().is_some() => variable.read(),
        _ => or_refuse(strategy, kind, variable.read()),
    };
    let values = variables.iter().map(|(name, variable)| Ok((name.clone(), read(variable)?)));
    let values = values.collect::<Result<Vec<_>>>()?;
    if several_workers(variables).is_none_or(|workers| workers.is_chief()) {
        or_refuse(strategy, kind, write(call, path, values))?;
    }
    agree(strategy, kind, "file", "written")
}

/// Returns the strategy of several workers that variables belong to, if any.
fn strategy_of_several<'v>(variables: &[(String, &'v Variable)]) -> Option<&'v Strategy> {
    variables.iter().map(|(_, variable)| variable.strategy()).find(|strategy| strategy.workers().is_some())
}

fn several_workers<'v>(variables: &[(String, &'v Variable)]) -> Option<&'v Arc<Workers>> {
    strategy_of_several(variables)?.workers()
}

/// Returns the value. On an error the call is refused, so that the other workers fail too.
fn or_refuse<T>(strategy: Option<&Strategy>, kind: Kind, checked: Result<T>) -> Result<T> {
    match strategy {
        Some(strategy) => strategy.or_refuse(kind, checked),
        None => checked,
    }
}

/// Waits until all workers are in this call, and checks that they have the same `value` of
/// `argument`.
fn agree(strategy: Option<&Strategy>, kind: Kind, argument: &str, value: &str) -> Result<()> {
    let meet = |communicator: &mut Communicator| {
        let describe = || vec![(argument.to_owned(), value.to_owned())];
        let digest = mix(digest(argument), digest(value));
        communicator.meet(kind, &Agreement { call: Some(kind), digest, describe: &describe })
    };
    let met = strategy.and_then(|strategy| strategy.across(kind.name(), meet));
    met.map_or(Ok(()), |met| met.map(drop))
}

/// Writes the values to the file at `path`.
fn write(call: &'static str, path: &Path, mut values: Vec<(String, Tensor)>) -> Result<()> {
    // Largest element sizes first, so that each tensor is aligned in a mapping of the file.
    values.sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then(a.cmp(b)));
    let failed = |what: &str, source| Error::System { what: format!("{call}: {what} {}", path.display()), source };
    let header = header(&values).map_err(|source| failed("describe", source))?;
    if path.file_name().is_none() {
        return Err(Error::invalid(call, "path", "the path of a file", path.display().to_string()));
    }
    // Follow a symbolic link. A new file does not resolve.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Temporary::beside(target)
        .and_then(|mut temporary| {
            temporary.write(&header, &values)?;
            temporary.replace()
        })
        .map_err(|source| failed("write", source))
}

/// Collects the variables with their names. Checks that names and variables differ and that the
/// caller is not in a replica.
fn list<'v, N: Into<String>>(
    kind: Kind,
    call: &'static str,
    variables: impl IntoIterator<Item = (N, &'v Variable)>,
) -> Result<Vec<(String, &'v Variable)>> {
    if let Some(replica) = context::replica() {
        let problem = format!("called in replica {replica}, but it is of the cross-replica context; see merge_call");
        return Err(Error::WrongContext { call, problem });
    }
    let variables: Vec<_> = variables.into_iter().map(|(name, variable)| (name.into(), variable)).collect();
    or_refuse(strategy_of_several(&variables), kind, check_different(call, &variables))?;
    Ok(variables)
}

fn check_different(call: &'static str, variables: &[(String, &Variable)]) -> Result<()> {
    let mut names = BTreeSet::from(["__metadata__"]);
    for (name, _) in variables {
        if !names.insert(name) {
            let expected = "names that differ, and from __metadata__";
            return Err(Error::invalid(call, "variables", expected, format!("{name:?}")));
        }
    }
    for (place, (second, variable)) in variables.iter().enumerate() {
        if let Some((first, _)) = variables[..place].iter().find(|(_, other)| other == variable) {
            let found = format!("the same as {first:?} and {second:?}");
            return Err(Error::invalid(call, "variables", "each variable under one name", found));
        }
    }
    Ok(())
}

/// Returns the start of the file: the length of the header, and the header.
fn header(values: &[(String, Tensor)]) -> io::Result<Vec<u8>> {
    let mut end = 0;
    let infos = values.iter().map(|(name, value)| {
        let start = end;
        end += value.buf().bytes();
        let info =
            TensorInfo { dtype: to_format(value.dtype()), shape: value.shape().to_vec(), data_offsets: (start, end) };
        (name.clone(), info)
    });
    let infos: Vec<_> = infos.collect();
    let mut digest = Digest::of_tensors(infos.iter().map(|(name, info)| (name.as_str(), info)));
    values.iter().try_for_each(|(_, value)| write_elements(value, &mut digest))?;
    let mark = HashMap::from([(KEY.to_owned(), format!("{FORMAT} {:016x}", digest.finish()))]);
    let metadata = Metadata::new(Some(mark), infos).map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// Writes the elements of a tensor, in the byte order of the format.
fn write_elements(value: &Tensor, into: &mut impl Write) -> io::Result<()> {
    mapped_file::write(value.host().map_err(io::Error::other)?, ByteOrder::Little, into)
}

/// Checks the digest of the file and returns it.
fn check_digest(file: &DataFile, header: &Header) -> Result<String> {
    /// Number of bytes that are read at a time, so that they stay in the caches.
    const PIECE: usize = 256 << 10;
    let mark = header.metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    let Some((format, saved)) = mark.and_then(|mark| mark.split_once(' ')) else {
        let found = "a safetensors file that it has not written";
        return Err(file.unexpected("a checkpoint of checkpoint::save", found));
    };
    if format != FORMAT {
        return Err(file.unexpected(format!("format {FORMAT}"), format!("format {format}")));
    }
    let names = header.metadata.offset_keys();
    let tensors = names.iter().filter_map(|name| Some((name.as_str(), header.metadata.info(name)?)));
    let mut digest = Digest::of_tensors(tensors);
    let mut piece = vec![0; PIECE.min(file.bytes() - header.start)];
    for start in (header.start..file.bytes()).step_by(PIECE) {
        let count = PIECE.min(file.bytes() - start);
        file.read(start, ByteOrder::NATIVE, HostBufMut::from(&mut piece[..count]))?;
        digest.add(&piece[..count]);
    }
    let found = format!("{:016x}", digest.finish());
    if saved == found {
        Ok(found)
    } else {
        Err(file.unexpected(format!("the digest {saved}"), format!("{found}: it is damaged")))
    }
}

/// Checks the digest of the file and reads the variables' values, each on a thread if the file is
/// large. A damaged file is reported before a value that does not fit.
fn read_all(file: &DataFile, header: &Header, variables: &[(String, &Variable)]) -> Result<(String, Vec<Tensor>)> {
    let read_values = || variables.iter().map(|(name, variable)| read(file, header, name, variable)).collect();
    if file.bytes() < PARALLEL_BYTES {
        return Ok((check_digest(file, header)?, read_values()?));
    }
    thread::scope(|scope| match thread::Builder::new().name("restore".to_owned()).spawn_scoped(scope, read_values) {
        Ok(reader) => {
            let digest = check_digest(file, header);
            let values: Result<Vec<Tensor>> = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((digest?, values?))
        }
        // Without another thread this one does both.
        Err(_) => Ok((check_digest(file, header)?, read_values()?)),
    })
}

/// Reads the tensor `name` and checks that it has the dtype and shape of `variable`.
fn read(file: &DataFile, header: &Header, name: &str, variable: &Variable) -> Result<Tensor> {
    let layout = header.layout(file, name)?;
    if (layout.dtype, &layout.shape[..]) != (variable.dtype(), variable.shape()) {
        let expected = format!("tensor {name:?} of {}{:?}, as the variable", variable.dtype(), variable.shape());
        return Err(file.unexpected(expected, layout.describe()));
    }
    let count = layout.shape.iter().product();
    let no_memory = Error::no_memory(layout.dtype, count);
    let mut memory = HostMemory::try_unspecified(layout.dtype, count).map_err(no_memory)?;
    file.read(layout.start, layout.order, memory.as_buf_mut())?;
    Tensor::from_memory(layout.shape, memory)
}

/// A digest of 64 bits of the content of a checkpoint.
struct Digest {
    state: u64,
    /// The last bytes, while fewer than eight.
    word: [u8; 8],
    filled: usize,
}

impl Digest {
    /// Starts a digest with names, dtypes, shapes and offsets. The elements are added later.
    fn of_tensors<'a>(tensors: impl Iterator<Item = (&'a str, &'a TensorInfo)>) -> Digest {
        let describe = |(name, info): (&str, &TensorInfo)| {
            format!("{name:?} {} {:?} {:?}", info.dtype, info.shape, info.data_offsets)
        };
        let mut tensors: Vec<_> = tensors.collect();
        // Sort by name too: tensors without elements have equal offsets, so offsets do not order
        // them.
        tensors.sort_by_key(|&(name, info)| (info.data_offsets, name));
        let state = tensors.into_iter().map(describe).fold(0, |state, tensor| mix(state, digest(&tensor)));
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

/// A temporary file in the folder of its target. It is removed on drop, unless it replaced the
/// target.
struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Temporary {
    /// Creates the file with a random name, so that processes on any host with this folder do not
    /// collide.
    fn beside(target: PathBuf) -> io::Result<Temporary> {
        let path =
            target.with_file_name(format!(".checkpoint-{:016x}.tmp", RandomState::new().hash_one(process::id())));
        let file = File::create_new(&path)?;
        Ok(Temporary { file, path, target })
    }

    /// Writes everything and syncs it to the disk.
    fn write(&mut self, header: &[u8], values: &[(String, Tensor)]) -> io::Result<()> {
        let mut writer = BufWriter::new(&self.file);
        writer.write_all(header)?;
        values.iter().try_for_each(|(_, value)| write_elements(value, &mut writer))?;
        writer.flush()?;
        if let Ok(before) = fs::metadata(&self.target) {
            self.file.set_permissions(before.permissions())?;
        }
        self.file.sync_all()
    }

    /// Renames the file over its target and syncs the folder to the disk.
    fn replace(self) -> io::Result<()> {
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Folders can be synced on unix only.
        let folder = if cfg!(unix) { Some(File::open(folder.unwrap_or(Path::new(".")))?) } else { None };
        fs::rename(&self.path, &self.target)?;
        folder.map_or(Ok(()), |folder| folder.sync_all())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is no file. Otherwise an error is ignored: there is nothing else
        // to try.
        let _ = fs::remove_file(&self.path);
    }
}
