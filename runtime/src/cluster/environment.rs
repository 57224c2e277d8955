//! The group of a process whose launcher says in the environment who it is.

use super::{number, process_environment, roster::Job};
use crate::{
    Error, ProcessGroup, ProcessGroupBuilder, Result, SlurmClusterResolver, TfConfigClusterResolver, UniqueId,
};

const CALL: &str = "ProcessGroup::from_env";

impl ProcessGroup {
    /// Returns a builder that joins the processes that one launcher has started, on one host. It
    /// reads the variables of the first of these launchers that has set some:
    ///
    /// * `consonance run`, and all who set `TF_CONFIG`;
    /// * `torchrun` (torch's elastic launcher): `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
    ///   `MASTER_PORT`, which any launcher may set, and if they are there `LOCAL_WORLD_SIZE`,
    ///   `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT`. Nobody connects to the address: it
    ///   only tells one job from another;
    /// * Slurm's `srun`.
    ///
    /// Without them the process is a group of its own.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if variables are missing or wrong, or if the ranks are on several
    /// hosts.
    ///
    /// ```no_run
    /// # use consonance::ProcessGroup;
    /// let mut group = ProcessGroup::from_env()?.join()?;
    /// let communicator = group.communicators().remove(0);
    /// println!("rank {} of {}", communicator.rank(), communicator.size());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_env() -> Result<ProcessGroupBuilder> {
        ProcessGroup::from_environment(process_environment)
    }

    /// Does what [`from_env`](ProcessGroup::from_env) does, for the environment that the function
    /// returns.
    ///
    /// # Errors
    /// As [`from_env`](ProcessGroup::from_env).
    ///
    /// ```
    /// # use consonance::ProcessGroup;
    /// let alone = ProcessGroup::from_environment(|_name| None)?.join()?;
    /// assert_eq!(alone.size(), 1);
    /// let half = ProcessGroup::from_environment(|name| (name == "RANK").then(|| "0".to_owned()));
    /// let expected = "ProcessGroup::from_env: WORLD_SIZE: expected a number, since RANK is set, found nothing";
    /// assert_eq!(half.err().unwrap().to_string(), expected);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_environment(environment: impl Fn(&str) -> Option<String>) -> Result<ProcessGroupBuilder> {
        let variable = |name: &str| environment(name).filter(|text| !text.is_empty());
        if variable("TF_CONFIG").is_none() && variable("RANK").is_some() {
            return ranks(variable);
        }
        if variable("TF_CONFIG").is_none() && variable("SLURM_PROCID").is_some() {
            return Ok(ProcessGroup::builder(SlurmClusterResolver::builder().build_from(environment)?));
        }
        Ok(ProcessGroup::builder(TfConfigClusterResolver::from_environment(environment)?))
    }
}

/// Reads the variables of torch's launcher.
fn ranks(variable: impl Fn(&str) -> Option<String>) -> Result<ProcessGroupBuilder> {
    let text = |name: &str, what: &str| {
        let missing = || Error::invalid(CALL, name, format!("{what}, since RANK is set"), "nothing");
        variable(name).ok_or_else(missing)
    };
    let count = |name: &str| number(CALL, name, &text(name, "a number")?);
    let (rank, size) = (count("RANK")?, count("WORLD_SIZE")?);
    if let Some(local) = variable("LOCAL_WORLD_SIZE")
        && number(CALL, "LOCAL_WORLD_SIZE", &local)? != size
    {
        let expected = format!("WORLD_SIZE, {size}: all ranks are on one host");
        return Err(Error::invalid(CALL, "LOCAL_WORLD_SIZE", expected, local));
    }
    let (address, port) = (text("MASTER_ADDR", "an address")?, text("MASTER_PORT", "a port")?);
    let run = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "CONSONANCE_JOB"];
    let run = run.map(|name| variable(name).unwrap_or_default()).join("\n");
    let id = UniqueId::derived(&format!("{address}\n{port}\n{run}"))?;
    Ok(ProcessGroupBuilder::of(Job::Id { id: Box::new(id), rank, size, is_private: false }))
}
