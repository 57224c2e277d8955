//! Checkpoints: the values of variables in a file, from which they, or others like them, are set
//! again.
//!
//! The file is a safetensors file, which other programs read as well. Its metadata say that it is a
//! checkpoint and have a digest of all the rest, so that damage is found before anything is
//! believed.
//!
//! What is saved is the value that [`Variable::read`] gives outside of replicas; how many replicas
//! there were does not matter, and a checkpoint may be restored under another strategy, and for
//! another number of replicas. The same value is read again, bit for bit, with one exception: the
//! mean of components that are synchronised on reading is rounded, so that under a number of
//! replicas that is not a power of two its last bit may differ. Where components are summed replica
//! 0 has the whole value after a restore.
//!
//! Under a strategy of [several workers](crate::MultiWorkerMirroredStrategy) all of them make the
//! calls: the chief writes the file, and the others wait until it is written; all read it, and none
//! of them sets a variable unless all do. Processes that have strategies of their own save in one
//! of them, by [`save_on_chief`].
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
};
use consonance_kernels::{
    memory::{HostBufMut, Memory},
    os::mapped_file::{self, ByteOrder},
};
use consonance_spec::{
    Kind,
    call::{digest, mix},
};
use safetensors::tensor::{Metadata, TensorInfo};
use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

/// The metadata's key; its value is [`FORMAT`], a blank, and the digest in 16 hexadecimal digits.
const KEY: &str = "consonance.checkpoint";

/// The first and only format.
const FORMAT: &str = "1";

/// Saves the values of `variables`, each under its name, in the file at `path`.
///
/// The file is whole at every moment: the values go to a file beside it, `.checkpoint-NUMBER.tmp`
/// with a number of 16 random digits, which takes its place and its permissions when it is on the
/// disk. If that fails the file is as before. A link stays one: the file that it leads to is
/// replaced. Values are read one after the other, before the first is written: what other threads
/// assign meanwhile is in it or not, variable by variable.
///
/// # Errors
/// [`Error::WrongContext`] in a replica; [`Error::InvalidCall`] for a name that is there twice or
/// is `__metadata__`, and for a variable that is there twice; those of
/// [`Variable::read`]: a variable that is synchronised on reading needs an aggregation; [`Error::System`] if the file cannot be
/// written; where there are several workers those of a collective: [`Error::Mismatch`] if they give
/// other names, or if the chief fails, with its error.
pub fn save<'v, N: Into<String>>(
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, &'v Variable)>,
) -> Result<()> {
    save_all(Kind::Save.name(), path.as_ref(), &list(Kind::Save, Kind::Save.name(), variables)?)
}

/// [`save`] in the [chief](ClusterResolver::is_chief) of a cluster, and nothing in its other
/// processes: all of them make the call, and one writes. Whether this one did is returned. Nobody
/// waits for the file to be written, unless the variables are of a strategy of several workers:
/// then it is as [`save`].
///
/// # Errors
/// As [`save`]; in the other processes those that need no file.
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
    let variables = list(Kind::Save, call, variables)?;
    let is_chief = several_workers(&variables).map_or_else(|| resolver.is_chief(), |workers| workers.is_chief());
    if is_chief || several_workers(&variables).is_some() {
        save_all(call, path.as_ref(), &variables)?;
    }
    Ok(is_chief)
}

/// Sets each of `variables` to the value that the file at `path` has under its name. Other tensors
/// of the file are left alone, so that a part of what was saved can be restored.
///
/// Everything is read and checked before the first variable is set: after an error all are as
/// before.
///
/// # Errors
/// [`Error::WrongContext`] in a replica, or in the scope of another strategy than the variables';
/// [`Error::System`] if the file cannot be read; [`Error::InvalidCall`] if it is damaged or not
/// from [`save`], has no tensor of a variable's name, or one of another dtype or shape, for a name
/// or a variable that is there twice, and for a variable that is synchronised on reading and has no
/// aggregation; [`Error::Timeout`] if an update of a variable on another thread does not end; where
/// there are several workers those of a collective: [`Error::Mismatch`] if they read other files,
/// or if one fails, with its error.
pub fn restore<'v, N: Into<String>>(
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, &'v Variable)>,
) -> Result<()> {
    let kind = Kind::Restore;
    let mut variables = list(kind, kind.name(), variables)?;
    // Held in one order by all threads, so that none of two waits for what the other one holds.
    variables.sort_by_key(|(_, variable)| variable.id());
    let restore = || {
        let file = DataFile::open(kind.name(), path.as_ref())?;
        let header = Header::read(&file)?;
        let digest = check_digest(&file, &header)?;
        let values = variables.iter().map(|(name, variable)| read(&file, &header, name, variable));
        let values = values.collect::<Result<Vec<_>>>()?;
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
    // The turn before the variables, as a run takes them: else each waited for what the other one
    // holds.
    match strategy {
        Some(strategy) => strategy.in_turn(kind.name(), restore_all),
        None => restore_all(),
    }
}

/// Saves on behalf of `call`: if there are several workers, by the chief.
fn save_all(call: &'static str, path: &Path, variables: &[(String, &Variable)]) -> Result<()> {
    let (kind, strategy) = (Kind::Save, strategy_of_several(variables));
    let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    agree(strategy, kind, "variables", &format!("{names:?}"))?;
    let read = |variable: &Variable| match variable.synchronization() {
        // All workers read it together, and are told there.
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

/// The strategy of several workers that variables belong to, if they do.
fn strategy_of_several<'v>(variables: &[(String, &'v Variable)]) -> Option<&'v Strategy> {
    variables.iter().map(|(_, variable)| variable.strategy()).find(|strategy| strategy.workers().is_some())
}

fn several_workers<'v>(variables: &[(String, &'v Variable)]) -> Option<&'v Arc<Workers>> {
    strategy_of_several(variables)?.workers()
}

/// The value, or the error of which the other workers are told.
fn or_refuse<T>(strategy: Option<&Strategy>, kind: Kind, checked: Result<T>) -> Result<T> {
    match strategy {
        Some(strategy) => strategy.or_refuse(kind, checked),
        None => checked,
    }
}

/// Waits until all workers have come here, with the same `value` of `argument`.
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
    // Largest elements first, so that each tensor is aligned for whoever maps the file.
    values.sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then(a.cmp(b)));
    let failed = |what: &str, source| Error::System { what: format!("{call}: {what} {}", path.display()), source };
    let header = header(&values).map_err(|source| failed("describe", source))?;
    if path.file_name().is_none() {
        return Err(Error::invalid(call, "path", "the path of a file", path.display().to_string()));
    }
    // Where a link leads; of a new file there is nothing to know.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Temporary::beside(target)
        .and_then(|mut temporary| {
            temporary.write(&header, &values)?;
            temporary.replace()
        })
        .map_err(|source| failed("write", source))
}

/// The variables with their names, once it is known that they are different ones and that this is
/// no replica.
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

/// The start of the file: the length of the header, and the header.
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
    values.iter().try_for_each(|(_, value)| mapped_file::write(value.buf(), ByteOrder::Little, &mut digest))?;
    let mark = HashMap::from([(KEY.to_owned(), format!("{FORMAT} {:016x}", digest.finish()))]);
    let metadata = Metadata::new(Some(mark), infos).map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// Checks that all is as it was saved, and gives the digest.
fn check_digest(file: &DataFile, header: &Header) -> Result<String> {
    /// Bytes that are read at a time: they stay in the caches.
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

/// The tensor called `name`, which is to be like `variable`.
fn read(file: &DataFile, header: &Header, name: &str, variable: &Variable) -> Result<Tensor> {
    let layout = header.layout(file, name)?;
    if (layout.dtype, &layout.shape[..]) != (variable.dtype(), variable.shape()) {
        let expected = format!("tensor {name:?} of {}{:?}, as the variable", variable.dtype(), variable.shape());
        return Err(file.unexpected(expected, layout.describe()));
    }
    let count = layout.shape.iter().product();
    let mut memory = Memory::zeroed(layout.dtype, count);
    file.read(layout.start, layout.order, memory.as_buf_mut())?;
    Tensor::from_memory(layout.shape, memory)
}

/// 64 bits of all that a checkpoint has.
struct Digest {
    state: u64,
    /// Bytes that are not yet eight.
    word: [u8; 8],
    filled: usize,
}

impl Digest {
    /// Of names, types, shapes and places; the elements are still to be added.
    fn of_tensors<'a>(tensors: impl Iterator<Item = (&'a str, &'a TensorInfo)>) -> Digest {
        let describe = |(name, info): (&str, &TensorInfo)| {
            format!("{name:?} {} {:?} {:?}", info.dtype, info.shape, info.data_offsets)
        };
        let mut tensors: Vec<_> = tensors.collect();
        // Tensors without elements begin and end at one place: the header does not tell their
        // order.
        tensors.sort_by_key(|&(name, info)| (info.data_offsets, name));
        let state = tensors.into_iter().map(describe).fold(0, |state, tensor| mix(state, digest(&tensor)));
        Digest { state, word: [0; 8], filled: 0 }
    }

    /// The same for any division of the bytes into pieces.
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
        // How many bytes there are is part of the description.
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

/// A file beside the one that it is to replace; it goes when it is dropped, unless it has replaced
/// it.
struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Temporary {
    /// Nobody else has its name, on whatever host that has the folder.
    fn beside(target: PathBuf) -> io::Result<Temporary> {
        let path =
            target.with_file_name(format!(".checkpoint-{:016x}.tmp", RandomState::new().hash_one(process::id())));
        let file = File::create_new(&path)?;
        Ok(Temporary { file, path, target })
    }

    /// Writes all, to the disk.
    fn write(&mut self, header: &[u8], values: &[(String, Tensor)]) -> io::Result<()> {
        let mut writer = BufWriter::new(&self.file);
        writer.write_all(header)?;
        values.iter().try_for_each(|(_, value)| mapped_file::write(value.buf(), ByteOrder::Little, &mut writer))?;
        writer.flush()?;
        if let Ok(before) = fs::metadata(&self.target) {
            self.file.set_permissions(before.permissions())?;
        }
        self.file.sync_all()
    }

    /// Takes the place of the other file, which is the folder's entry on the disk, too, when this
    /// returns.
    fn replace(self) -> io::Result<()> {
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Only unix gives a folder to be synchronised.
        let folder = if cfg!(unix) { Some(File::open(folder.unwrap_or(Path::new(".")))?) } else { None };
        fs::rename(&self.path, &self.target)?;
        folder.map_or(Ok(()), |folder| folder.sync_all())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is none, and what cannot be removed now could not be later.
        let _ = fs::remove_file(&self.path);
    }
}
