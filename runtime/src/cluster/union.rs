//! The union of several resolvers.

use super::{ClusterResolver, ClusterSpec, SimpleClusterResolver, inside, spec::is_dense, url};
use crate::{Error, Result};

const CALL: &str = "UnionResolver::new";

/// Merges the jobs of several resolvers. If several have the same job, its lists of tasks are
/// concatenated; if one of the lists has gaps, every task keeps its index. The task, the protocol
/// and the accelerators are those of the first resolver that has any.
///
/// ```
/// use consonance::{ClusterResolver, ClusterSpec, SimpleClusterResolver, UnionResolver};
/// let workers = |addresses: [&str; 2]| Ok::<_, consonance::Error>(ClusterSpec::new().job("worker", addresses)?);
/// let near = SimpleClusterResolver::new(workers(["a:1", "b:1"])?);
/// let far = SimpleClusterResolver::new(workers(["c:1", "d:1"])?).with_task("worker", 0)?;
/// let both = UnionResolver::new([Box::new(near) as Box<dyn ClusterResolver>, Box::new(far)])?;
/// assert_eq!(both.cluster_spec().to_string(), r#"{"worker":["a:1","b:1","c:1","d:1"]}"#);
/// assert_eq!(both.task_id(), Some(2));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Debug)]
pub struct UnionResolver {
    first: Box<dyn ClusterResolver>,
    resolved: SimpleClusterResolver,
}

impl UnionResolver {
    /// Merges these resolvers.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there are none, if two of them have the same task of a job with
    /// gaps, or if two tasks have the same address.
    pub fn new(resolvers: impl IntoIterator<Item = Box<dyn ClusterResolver>>) -> Result<UnionResolver> {
        let mut resolvers: Vec<_> = resolvers.into_iter().collect();
        if resolvers.is_empty() {
            return Err(Error::invalid(CALL, "resolvers", "at least one", "none"));
        }
        let mut resolved = SimpleClusterResolver::new(merged(&resolvers).map_err(|error| inside(error, CALL, ""))?);
        if let Some((owner, (job, index))) = resolvers.iter().enumerate().find_map(|(owner, resolver)| {
            let task = resolver.task_type().zip(resolver.task_id())?;
            Some((owner, task))
        }) {
            let index = index.saturating_add(shift(&resolvers, owner, job));
            resolved = resolved.with_checked_task(CALL, "task ", job, index)?;
        }
        resolved.rpc_layer = resolvers.iter().find_map(|resolver| resolver.rpc_layer()).map(str::to_owned);
        let accelerators = resolvers.iter().map(|resolver| resolver.num_accelerators());
        resolved.accelerators = accelerators.into_iter().find(|known| !known.is_empty()).cloned().unwrap_or_default();
        Ok(UnionResolver { first: resolvers.swap_remove(0), resolved })
    }

    /// Sets the task of this process. Overrides the resolvers.
    ///
    /// # Errors
    /// As [`SimpleClusterResolver::with_task`].
    pub fn with_task(mut self, task_type: &str, task_id: usize) -> Result<UnionResolver> {
        let call = "UnionResolver::with_task";
        self.resolved = self.resolved.with_checked_task(call, "task ", task_type, task_id)?;
        Ok(self)
    }

    /// Sets the protocol. Overrides the resolvers.
    pub fn with_rpc_layer(mut self, rpc_layer: &str) -> UnionResolver {
        self.resolved = self.resolved.with_rpc_layer(rpc_layer);
        self
    }
}

impl ClusterResolver for UnionResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        &self.resolved
    }

    /// Returns the address of the given task. Unless both its type and its id are given, returns
    /// the master of the first resolver.
    fn master(&self, task_type: Option<&str>, task_id: Option<usize>, rpc_layer: Option<&str>) -> Result<String> {
        match (task_type, task_id) {
            (Some(job), Some(index)) => {
                Ok(url(self.cluster_spec().task_address(job, index)?, rpc_layer.or(self.rpc_layer())))
            }
            _ => self.first.master(None, None, rpc_layer),
        }
    }
}

fn merged(resolvers: &[Box<dyn ClusterResolver>]) -> Result<ClusterSpec> {
    let mut cluster = ClusterSpec::new();
    for job in resolvers.iter().flat_map(|resolver| resolver.cluster_spec().jobs()) {
        if cluster.tasks(job).is_some() {
            continue;
        }
        let tasks = resolvers.iter().enumerate().flat_map(|(owner, resolver)| {
            let shift = shift(resolvers, owner, job);
            let tasks = resolver.cluster_spec().tasks(job).into_iter().flatten();
            tasks.map(move |(index, address)| (index + shift, address))
        });
        cluster.push(job, tasks)?;
    }
    cluster.unique()
}

/// Returns the offset of the indices of `owner`'s tasks: the number of tasks of the resolvers
/// before it, or 0 if some list has gaps.
fn shift(resolvers: &[Box<dyn ClusterResolver>], owner: usize, job: &str) -> usize {
    let mut parts = resolvers.iter().map(|resolver| resolver.cluster_spec().tasks(job));
    if parts.clone().flatten().all(is_dense) {
        parts.by_ref().take(owner).flatten().map(|tasks| tasks.len()).sum()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{found, refusal};

    #[test]
    fn a_task_beyond_all_is_refused() {
        let one = SimpleClusterResolver::new(ClusterSpec::new().job("worker", ["a:1"]).unwrap());
        // A cluster without jobs takes any task.
        let none = SimpleClusterResolver::new(ClusterSpec::new()).with_task("worker", usize::MAX).unwrap();
        let error = UnionResolver::new([Box::new(one) as Box<dyn ClusterResolver>, Box::new(none)]).unwrap_err();
        assert_eq!(refusal(&error), ("UnionResolver::new", "task index", None));
        assert_eq!(found(&error), "18446744073709551615");
    }
}
