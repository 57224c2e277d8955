//! A folder of checkpoints, of which the last few are kept.

use super::{
    Saveable,
    file::{self, Saved},
    list, restore_all, save_all,
};
use crate::{Error, Result, kind};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The names of the files are this, the number of steps, and [`SUFFIX`].
const PREFIX: &str = "ckpt-";
const SUFFIX: &str = ".safetensors";

/// A folder of checkpoints: keeps the last few, and resumes the newest that is whole. TensorFlow's
/// `tf.train.CheckpointManager`.
///
/// The file of step 100 is `ckpt-100.safetensors`, and [`restore`](super::restore) reads it, too.
/// The number is also in the file, under its digest: a file with another name is not taken for
/// another step. Newer means of more steps. The manager itself has no state: it lists the folder in
/// each call, so another process continues with the same folder. Use a folder for each training.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, checkpoint::CheckpointManager};
/// # let folder = std::env::temp_dir().join(format!("doc-manager-{}", std::process::id()));
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let weights = strategy.variable(|| Tensor::from([0.0f32, 0.0]))?;
/// let manager = CheckpointManager::new(&folder, 3)?;
/// let resumed = manager.restore_or_initialize([("weights", &weights)])?;
/// let first = resumed.map_or(0, |restored| restored.step);
/// for step in first..10 {
///     weights.assign_add([1.0f32, 2.0])?;
///     manager.save(step + 1, [("weights", &weights)])?;
/// }
/// assert_eq!(manager.checkpoints()?.len(), 3);
///
/// // What a process does that is started after a crash.
/// let weights = strategy.variable(|| Tensor::from([0.0f32, 0.0]))?;
/// let resumed = manager.restore_or_initialize([("weights", &weights)])?;
/// assert_eq!(resumed.expect("a checkpoint").step, 10);
/// assert_eq!(weights.read()?, Tensor::from([10.0f32, 20.0]));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CheckpointManager {
    directory: PathBuf,
    max_to_keep: Option<usize>,
}

/// The result of [`CheckpointManager::restore_or_initialize`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Restored {
    /// The number of steps that were done when it was saved.
    pub step: u64,
    /// The file.
    pub path: PathBuf,
    /// An [`Error::InvalidCall`] for each newer file that is damaged, the newest first. It names
    /// the file and what is wrong with it.
    pub skipped: Vec<Error>,
}

impl CheckpointManager {
    /// Makes the manager of the checkpoints in `directory`, of which the newest `max_to_keep` are
    /// kept; `None` keeps all. The first save creates the folder.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if `max_to_keep` is 0.
    pub fn new(directory: impl Into<PathBuf>, max_to_keep: impl Into<Option<usize>>) -> Result<CheckpointManager> {
        let (directory, max_to_keep) = (directory.into(), max_to_keep.into());
        if max_to_keep == Some(0) {
            return Err(Error::invalid("CheckpointManager::new", "max_to_keep", "at least 1, or None", "0"));
        }
        Ok(CheckpointManager { directory, max_to_keep })
    }

    /// Returns the folder.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the checkpoints in the folder, the oldest first. They need not be whole.
    ///
    /// # Errors
    /// [`Error::System`] if the folder cannot be listed. A folder that does not exist has none.
    pub fn checkpoints(&self) -> Result<Vec<PathBuf>> {
        let all = self.list("CheckpointManager::checkpoints")?;
        Ok(all.into_iter().map(|step| self.path(step)).collect())
    }

    /// Returns the newest checkpoint in the folder, if there is one. It need not be whole.
    ///
    /// # Errors
    /// As [`checkpoints`](CheckpointManager::checkpoints).
    pub fn latest_checkpoint(&self) -> Result<Option<PathBuf>> {
        let all = self.list("CheckpointManager::latest_checkpoint")?;
        Ok(all.last().map(|&step| self.path(step)))
    }

    /// Saves the variables as [`save`](super::save) does, together with the number of steps that
    /// are done, and returns the file. Then removes all checkpoints but the newest.
    ///
    /// A checkpoint of the same step is replaced. One of more steps is an error if it is whole: it
    /// is of another training, or of one that has not been restored. Damaged ones of more steps are
    /// removed.
    ///
    /// With several workers all make the call with the same step, and the chief writes and removes.
    /// Processes with separate strategies save in one process.
    ///
    /// # Errors
    /// As [`save`](super::save); [`Error::InvalidCall`] for a step before that of a whole
    /// checkpoint; [`Error::System`] if the folder cannot be created or listed, or a file cannot be
    /// removed: the new checkpoint is then written.
    pub fn save<'v, N: Into<String>, V: Into<Saveable<'v>>>(
        &self,
        step: u64,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<PathBuf> {
        let call = "CheckpointManager::save";
        let path = self.path(step);
        save_all(call, &list(kind::SAVE, call, variables)?, Some(step), |values| {
            fs::create_dir_all(&self.directory).map_err(|source| failed(call, "create", &self.directory, source))?;
            let damaged = self.damaged_after(call, step)?;
            file::write(call, &path, Some(step), values)?;
            damaged.into_iter().try_for_each(|step| self.remove(call, step))?;
            let all = self.list(call)?;
            let old = all.len().saturating_sub(self.max_to_keep.unwrap_or(all.len()));
            all.into_iter().take(old).try_for_each(|step| self.remove(call, step))
        })?;
        Ok(path)
    }

    /// Sets the variables to their values in the newest whole checkpoint, as
    /// [`restore`](super::restore) does. Without any checkpoint the variables keep the values that
    /// they were made with, and the result is `None`.
    ///
    /// Damaged files are skipped: see [`Restored::skipped`]. A whole file that does not fit the
    /// variables is an error: an older one would not fit either.
    ///
    /// With several workers all make the call, and the chief reads its folder. All restore its file
    /// or none, and return what it has found.
    ///
    /// # Errors
    /// As [`restore`](super::restore); [`Error::InvalidCall`] if there are checkpoints and all are
    /// damaged, about the newest.
    pub fn restore_or_initialize<'v, N: Into<String>, V: Into<Saveable<'v>>>(
        &self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Option<Restored>> {
        let call = "CheckpointManager::restore_or_initialize";
        let found = restore_all(call, list(kind::RESTORE, call, variables)?, |variables| {
            let mut skipped = Vec::new();
            for step in self.list(call)?.into_iter().rev() {
                match self.open(call, step).and_then(|saved| saved.read(variables)) {
                    Ok(values) => return Ok((Some(values?), Some((step, skipped)))),
                    Err(Error::InvalidCall { argument, expected, found, .. }) => {
                        skipped.push([argument, expected, found]);
                    }
                    Err(error) => return Err(error),
                }
            }
            match skipped.into_iter().next() {
                Some(newest) => Err(damage(call, newest)),
                None => Ok((None, None)),
            }
        })?;
        Ok(found.map(|(step, skipped)| {
            let skipped = skipped.into_iter().map(|fields| damage(call, fields)).collect();
            Restored { step, path: self.path(step), skipped }
        }))
    }

    fn path(&self, step: u64) -> PathBuf {
        self.directory.join(format!("{PREFIX}{step}{SUFFIX}"))
    }

    /// Returns the steps of the checkpoints in the folder, in ascending order.
    fn list(&self, call: &'static str) -> Result<Vec<u64>> {
        let failed = |source| failed(call, "list", &self.directory, source);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            steps.extend(entry.map_err(failed)?.file_name().to_str().and_then(step_of));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// Opens the checkpoint of a step, and checks that it is of this step.
    fn open(&self, call: &'static str, step: u64) -> Result<Saved> {
        let saved = Saved::open(call, &self.path(step))?;
        saved.check_step(step)?;
        Ok(saved)
    }

    /// Returns the steps after `step` whose checkpoints are damaged.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if one of them is whole.
    fn damaged_after(&self, call: &'static str, step: u64) -> Result<Vec<u64>> {
        let mut damaged = self.list(call)?;
        damaged.retain(|&later| later > step);
        for &later in &damaged {
            match self.open(call, later).and_then(|saved| saved.check_digest()) {
                Ok(_) => {
                    let expected = format!("at least {later}, the step of {}", self.path(later).display());
                    return Err(Error::invalid(call, "step", expected, step.to_string()));
                }
                Err(Error::InvalidCall { .. }) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    }

    fn remove(&self, call: &'static str, step: u64) -> Result<()> {
        let path = self.path(step);
        fs::remove_file(&path).map_err(|source| failed(call, "remove", &path, source))
    }
}

/// Returns the number of steps in the name of a checkpoint. A number has one name.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    digits.parse().ok().filter(|step: &u64| step.to_string() == digits)
}

/// Makes the error of a damaged file of its argument, what was expected and what was found.
fn damage(call: &'static str, [argument, expected, found]: [String; 3]) -> Error {
    Error::invalid(call, argument, expected, found)
}

fn failed(call: &str, what: &str, path: &Path, source: io::Error) -> Error {
    Error::system(format!("{call}: {what} {}", path.display()), source)
}
