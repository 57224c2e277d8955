//! The recovery of parameter servers from a checkpoint.

use super::{Saveable, check, file::Saved};
use crate::{ParameterServerStrategy, Result, ShardedVariable, comm::options::check_timeout};
use std::{
    path::Path,
    time::{Duration, Instant},
};

impl ParameterServerStrategy {
    /// Goes on after a server was lost, with the values of a checkpoint. `variables` has the name
    /// of each variable in the file at `path`; none may be left out, since a lost server has parts
    /// of any, and all get the values of one moment. Only the chief calls it.
    ///
    /// Every call returns [`Error::Aborted`](crate::Error::Aborted) from the loss to this call, and
    /// [`is_loss`](crate::Error::is_loss) is true of it. The other processes stay in
    /// [`serve`](Self::serve), and wait. This call takes a process that comes in the place of the
    /// lost one in the first half of `timeout`. If none comes, the servers that are left play the
    /// lost one's part, too. A process that comes later takes its place in the next recovery. If
    /// another server is lost meanwhile, this call begins anew.
    ///
    /// Closures that had not ended are lost: their [`fetch`](crate::RemoteValue::fetch) returns the
    /// error of the loss. Results from before are no arguments of later closures. The numbers of
    /// closures begin at 0 again, and workers take the elements of their data sets from the first
    /// one on. What workers keep of their own stays. The next
    /// [`join`](crate::ClusterCoordinator::join) names a worker that is lost meanwhile.
    ///
    /// After an error the strategy is as before, and the call can be repeated.
    ///
    /// ```
    /// use consonance::{ClusterCoordinator, ParameterServerStrategy, Result, Tensor, checkpoint};
    /// use std::{path::Path, time::Duration};
    ///
    /// const LIMIT: Duration = Duration::from_secs(60);
    ///
    /// fn train(strategy: &ParameterServerStrategy, path: &Path) -> Result<Tensor> {
    ///     let table = strategy.variable(|| Tensor::from([0i64, 0]))?;
    ///     let coordinator = ClusterCoordinator::new(strategy);
    ///     let add = coordinator.function("add", {
    ///         let table = table.clone();
    ///         move |worker, ()| worker.assign_add(&table, &Tensor::from([1i64, 2]))
    ///     })?;
    ///     # if !strategy.is_chief() { strategy.serve()?; return Ok(Tensor::from(0i64)); }
    ///     let epoch = || {
    ///         for _ in 0..10 {
    ///             coordinator.schedule(&add, ())?;
    ///         }
    ///         coordinator.join(LIMIT)?;
    ///         checkpoint::save(path, [("table", &table)])
    ///     };
    ///     checkpoint::save(path, [("table", &table)])?;
    ///     let mut done = 0;
    ///     while done < 3 {
    ///         match epoch() {
    ///             Err(error) if error.is_loss() => strategy.recover(path, [("table", &table)], LIMIT)?,
    ///             ended => {
    ///                 ended?;
    ///                 done += 1;
    ///             }
    ///         }
    ///     }
    ///     table.read()
    /// }
    ///
    /// # let path = std::env::temp_dir().join(format!("doc-recover-{}", std::process::id()));
    /// assert_eq!(train(&ParameterServerStrategy::threads(2, 2)?, &path)?, Tensor::from([30i64, 60]));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::WrongContext`](crate::Error::WrongContext) in a worker or a server, and if no
    ///   server is lost: [threads](Self::threads) are never.
    /// * [`Error::InvalidCall`](crate::Error::InvalidCall) for a variable without a name, or with
    ///   two, for a name that occurs twice, for variables of another strategy, and for a timeout
    ///   that is zero or longer than a day; those of
    ///   [`checkpoint::restore`](crate::checkpoint::restore) about the file. Then nothing has
    ///   begun.
    /// * [`Error::Meeting`](crate::Error::Meeting) if no server is left, or one does not come in
    ///   time; [`Error::Timeout`](crate::Error::Timeout) if one does not answer;
    ///   [`Error::Aborted`](crate::Error::Aborted) if another server is lost, and no time is left.
    pub fn recover<'v, N: Into<String>>(
        &self,
        path: impl AsRef<Path>,
        variables: impl IntoIterator<Item = (N, &'v ShardedVariable)>,
        timeout: Duration,
    ) -> Result<()> {
        let call = "ParameterServerStrategy::recover";
        let begin = Instant::now();
        check_timeout(call, timeout)?;
        let variables: Vec<(String, &ShardedVariable)> =
            variables.into_iter().map(|(name, variable)| (name.into(), variable)).collect();
        self.check_lost(call, &variables)?;
        let saved: Vec<(String, Saveable<'_>)> =
            variables.iter().map(|(name, variable)| (name.clone(), Saveable::from(*variable))).collect();
        check(call, &saved)?;
        let values = Saved::open(call, path.as_ref())?.read(&saved)??;
        let values = variables.iter().map(|(_, variable)| *variable).zip(values).collect();
        self.begin_again(call, timeout.saturating_sub(begin.elapsed()), values)
    }
}
