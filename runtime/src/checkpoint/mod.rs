//! Checkpoints: save the values of variables to a file and restore them, to the same or to equal
//! variables.
//!
//! The file is a safetensors file, so other programs can read it. Its metadata mark it as a
//! checkpoint and contain a digest of all other content, so that damage is detected before any
//! value is used.
//!
//! The saved value is that of [`Variable::read`](crate::Variable::read) outside of replicas. It
//! does not depend on the number of replicas, so a checkpoint may be restored under another
//! strategy and with another number of replicas. A read then returns the same value bit for bit,
//! with one exception: the mean of components that are synchronised on reading is rounded, so its
//! last bit may differ if the number of replicas is not a power of two. If components are summed,
//! replica 0 has the whole value after a restore.
//!
//! Variables on the servers of a [`ParameterServerStrategy`](crate::ParameterServerStrategy) are
//! saved whole, as others are. So they are restored on another number of servers, in other shards,
//! or as variables of another strategy, and back. Only the chief makes the calls: see [`Saveable`].
//!
//! A [`CheckpointManager`] saves to a folder, keeps the last few checkpoints, and resumes the
//! newest that is whole.
//!
//! Under a strategy of [several workers](crate::MultiWorkerMirroredStrategy) all workers make the
//! calls. To save, the chief writes the file and the others wait until it is written. To restore,
//! the chief reads the file and sends the values to the others, which need no file. No worker sets
//! a variable unless all do. Processes with separate strategies save in one process by
//! [`save_on_chief`].
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

mod saveable;
mod manager;
mod sent_values;
mod file;
mod temporary_file;
mod recovery;

pub use manager::{CheckpointManager, Restored};
pub use saveable::Saveable;

use crate::{
    ClusterResolver, Communicator, Error, Result, Strategy, Tensor,
    comm::agreement::Agreement,
    execution::{Workers, context},
    kind,
};
use consonance_kernels::digest::{digest, mix};
use consonance_spec::Kind;
use file::Saved;
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::BTreeSet, path::Path, sync::Arc};

/// Saves the values of `variables`, each under its name, to the file at `path`.
///
/// The file is replaced atomically. The values are written to a temporary file in the same folder,
/// `.checkpoint-NUMBER.tmp` with a number of 16 random hexadecimal digits. It takes the permissions
/// of the file at `path` and, when it is on the disk, its place. On an error the file at `path`
/// does not change. A process that is killed in this call leaves the temporary file. The next save
/// to the same folder removes it, if the file system has locks: other hosts that save to the folder
/// must see them. A symbolic link stays: its target is replaced. Values are read one after the
/// other, before the first is written. An assignment from another thread during this call is saved
/// or not, for each variable separately.
///
/// Variables on servers are read as the chief reads them: in
/// [`Order::Scheduled`](crate::parameter_server::Order::Scheduled) when all closures have ended
/// that were scheduled before, in [`Order::Arrival`](crate::parameter_server::Order::Arrival) with
/// what has committed so far. There [`join`](crate::ClusterCoordinator::join) comes first.
///
/// # Errors
/// [`Error::WrongContext`] in a replica, and in a worker or a server for a variable on servers;
/// [`Error::InvalidCall`] for a name that occurs twice or is `__metadata__`, for a variable that
/// occurs twice, and for variables of several workers together with some on servers; those of
/// [`Variable::read`](crate::Variable::read): a variable that is synchronised on reading needs an
/// aggregation; those of [`ShardedVariable::read`](crate::ShardedVariable::read);
/// [`Error::System`] if the file cannot be written; with several workers those of a collective:
/// [`Error::Mismatch`] if their names differ, or if the chief fails, with its error.
pub fn save<'v, N: Into<String>, V: Into<Saveable<'v>>>(
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<()> {
    let call = kind::SAVE.name();
    save_all(call, &list(kind::SAVE, call, variables)?, None, |values| file::write(call, path.as_ref(), None, values))
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
pub fn save_on_chief<'v, N: Into<String>, V: Into<Saveable<'v>>>(
    resolver: &dyn ClusterResolver,
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<bool> {
    let call = "checkpoint::save_on_chief";
    let variables = list(kind::SAVE, call, variables)?;
    let is_chief = several_workers(&variables).map_or_else(|| resolver.is_chief(), |workers| workers.is_chief());
    if is_chief || several_workers(&variables).is_some() {
        save_all(call, &variables, None, |values| file::write(call, path.as_ref(), None, values))?;
    }
    Ok(is_chief)
}

/// Sets each of `variables` to the value with its name in the file at `path`. Other tensors in the
/// file are ignored, so a part of the saved variables can be restored.
///
/// All values are read and checked before the first variable is set: on an error no variable
/// changes. One error can come later: a server is lost while a variable is set that lies on it.
/// Variables on servers are set first, so then no other variable has changed. In
/// [`Order::Scheduled`](crate::parameter_server::Order::Scheduled) they are set when all closures
/// have ended that were scheduled before.
///
/// With several workers all make the call with the same variables. The chief reads the file; the
/// others get the values from it, and ignore their `path`.
///
/// # Errors
/// [`Error::WrongContext`] in a replica, in the scope of another strategy than the variables', and
/// in a worker or a server for a variable on servers; [`Error::System`] if the file cannot be read;
/// [`Error::InvalidCall`] if it is damaged or not from [`save`], if it has no tensor with a
/// variable's name, or one of another dtype or shape, for a name or a variable that occurs twice,
/// for a variable that is synchronised on reading and has no aggregation, and for variables of
/// several workers together with some on servers; [`Error::Timeout`] if an update of a variable on
/// another thread does not end; those of
/// [`ShardedVariable::read`](crate::ShardedVariable::read); with several workers those of a
/// collective: [`Error::Mismatch`] if their variables differ, or if one worker fails, as the chief
/// with its file, with its error.
pub fn restore<'v, N: Into<String>, V: Into<Saveable<'v>>>(
    path: impl AsRef<Path>,
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<()> {
    let call = kind::RESTORE.name();
    restore_all(call, list(kind::RESTORE, call, variables)?, |variables| {
        Ok((Some(Saved::open(call, path.as_ref())?.read(variables)??), ()))
    })
}

/// Saves by `write`. With several workers the chief alone writes, and all have the same `step`.
fn save_all(
    call: &'static str,
    variables: &[(String, Saveable<'_>)],
    step: Option<u64>,
    write: impl FnOnce(Vec<(String, Tensor)>) -> Result<()>,
) -> Result<()> {
    let (kind, strategy) = (kind::SAVE, strategy_of_several(variables));
    let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    let step = step.map(|step| ("step", step.to_string()));
    agree(strategy, kind, [("variables", format!("{names:?}"))].into_iter().chain(step))?;
    let read = |variable: &Saveable<'_>| match variable.reads_collectively() {
        // An error reaches the other workers in this read.
        true => variable.read(call),
        false => or_refuse(strategy, kind, variable.read(call)),
    };
    let values = variables.iter().map(|(name, variable)| Ok((name.clone(), read(variable)?)));
    let values = values.collect::<Result<Vec<_>>>()?;
    if several_workers(variables).is_none_or(|workers| workers.is_chief()) {
        or_refuse(strategy, kind, write(values))?;
    }
    agree(strategy, kind, [("file", "written".to_owned())])
}

/// Restores what `find` returns: the variables' values, and what the caller wants to know. Without
/// values no variable is set. With several workers only the chief finds.
fn restore_all<T: Serialize + DeserializeOwned>(
    call: &'static str,
    mut variables: Vec<(String, Saveable<'_>)>,
    find: impl FnOnce(&[(String, Saveable<'_>)]) -> Result<(Option<Vec<Tensor>>, T)>,
) -> Result<T> {
    let kind = kind::RESTORE;
    // All threads take variables in the same order, so that two threads cannot deadlock.
    variables.sort_by_key(|(_, variable)| variable.turn());
    let strategy = strategy_of_several(&variables);
    let is_chief = several_workers(&variables).is_none_or(|workers| workers.is_chief());
    let find_and_hold = || {
        let found = if is_chief { Some(find(&variables)?) } else { None };
        let held = variables.iter().map(|(_, variable)| variable.hold(call)).collect::<Result<Vec<_>>>()?;
        Ok((found, held))
    };
    let restore = || {
        agree(strategy, kind, [("variables", describe(&variables))])?;
        let (found, mut held) = or_refuse(strategy, kind, find_and_hold())?;
        let (values, about) = match (strategy, found) {
            (None, Some(found)) => found,
            (Some(strategy), found) => sent_values::by_chief(strategy, &variables, found)?,
            (None, None) => unreachable!("a process without others is the chief"),
        };
        let values: Vec<Tensor> = values.into_iter().flatten().collect();
        held.iter_mut().zip(&values).try_for_each(|(held, value)| held.prepare(call, value))?;
        held.into_iter().zip(&values).try_for_each(|(held, value)| held.set(call, value))?;
        Ok(about)
    };
    // Take the turn before the variables, in the order of a run, so that the two cannot deadlock.
    match strategy {
        Some(strategy) => strategy.in_turn(call, restore),
        None => restore(),
    }
}

/// Returns the names, dtypes and shapes of variables in words, in the order of the names.
fn describe(variables: &[(String, Saveable<'_>)]) -> String {
    let words =
        |(name, variable): &(String, Saveable<'_>)| format!("{name:?} {}{:?}", variable.dtype(), variable.shape());
    let mut words: Vec<_> = variables.iter().map(words).collect();
    words.sort_unstable();
    words.join(", ")
}

/// Returns the strategy of several workers that variables belong to, if any.
fn strategy_of_several<'v>(variables: &[(String, Saveable<'v>)]) -> Option<&'v Strategy> {
    variables.iter().filter_map(|(_, variable)| variable.strategy()).find(|strategy| strategy.workers().is_some())
}

fn several_workers<'v>(variables: &[(String, Saveable<'v>)]) -> Option<&'v Arc<Workers>> {
    strategy_of_several(variables)?.workers()
}

/// Returns the value. On an error the call is refused, so that the other workers fail too.
fn or_refuse<T>(strategy: Option<&Strategy>, kind: Kind, checked: Result<T>) -> Result<T> {
    match strategy {
        Some(strategy) => strategy.or_refuse(kind, checked),
        None => checked,
    }
}

/// Waits until all workers are in this call, and checks that they have the same arguments.
fn agree(
    strategy: Option<&Strategy>,
    kind: Kind,
    arguments: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<()> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let digests = arguments.iter().flat_map(|(argument, value)| [digest(argument), digest(value)]);
    let digest = digests.reduce(mix).unwrap_or_default();
    let describe = || arguments.iter().map(|(argument, value)| (argument.to_string(), value.clone())).collect();
    let meet = |communicator: &mut Communicator| {
        communicator.meet(kind, &Agreement { call: Some(kind), digest, describe: &describe })
    };
    let met = strategy.and_then(|strategy| strategy.across(kind.name(), meet));
    met.map_or(Ok(()), |met| met.map(drop))
}

/// Collects the variables with their names. Checks that names and variables differ, that the caller
/// is not in a replica, and that it is the chief of variables on servers.
fn list<'v, N: Into<String>, V: Into<Saveable<'v>>>(
    kind: Kind,
    call: &'static str,
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<Vec<(String, Saveable<'v>)>> {
    if let Some(replica) = context::replica() {
        let problem = format!("called in replica {replica}, but it is of the cross-replica context; see merge_call");
        return Err(Error::WrongContext { call, problem });
    }
    let variables: Vec<(String, Saveable<'v>)> =
        variables.into_iter().map(|(name, variable)| (name.into(), variable.into())).collect();
    or_refuse(strategy_of_several(&variables), kind, check(call, &variables))?;
    Ok(variables)
}

fn check(call: &'static str, variables: &[(String, Saveable<'_>)]) -> Result<()> {
    let mut names = BTreeSet::from(["__metadata__"]);
    for (name, _) in variables {
        if !names.insert(name) {
            let expected = "names that differ, and from __metadata__";
            return Err(Error::invalid(call, "variables", expected, format!("{name:?}")));
        }
    }
    for (place, (second, variable)) in variables.iter().enumerate() {
        if let Some((first, _)) = variables[..place].iter().find(|(_, other)| other.is(variable)) {
            let found = format!("the same as {first:?} and {second:?}");
            return Err(Error::invalid(call, "variables", "each variable under one name", found));
        }
        variable.check(call)?;
    }
    // The error of a server reaches one process.
    let on_servers = variables.iter().find(|(_, variable)| variable.strategy().is_none());
    if let (Some((name, _)), Some(_)) = (on_servers, strategy_of_several(variables)) {
        let expected = "variables of several workers, or on servers, in calls of their own";
        return Err(Error::invalid(call, "variables", expected, format!("both, of which {name:?} is on servers")));
    }
    Ok(())
}
