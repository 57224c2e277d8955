//! The resolver of Kubernetes, by the name of the pod.

use super::{ClusterResolver, ClusterSpec, SimpleClusterResolver, inside, process_environment};
use crate::{Error, Result, device::index_of};

const CALL: &str = "KubernetesClusterResolver";

/// Resolves the workers of an Indexed Job or a StatefulSet behind a headless service. Their pods
/// are named `NAME-0`, `NAME-1`, …; each finds its name in the variable `HOSTNAME`. Their hosts are
/// `NAME-0.SERVICE` and so on. It makes no request to Kubernetes. For operators of training jobs,
/// which set `TF_CONFIG`, use [`TfConfigClusterResolver`](super::TfConfigClusterResolver).
///
/// ```
/// use consonance::{ClusterResolver, cluster::KubernetesClusterResolver};
/// let environment = |name: &str| (name == "HOSTNAME").then(|| "train-1".to_owned());
/// let resolver = KubernetesClusterResolver::from_environment("workers", 3, 2222, environment)?;
/// assert_eq!((resolver.task_type(), resolver.task_id()), (Some("worker"), Some(1)));
/// assert_eq!(resolver.cluster_spec().task_address("worker", 2)?, "train-2.workers:2222");
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesClusterResolver {
    resolved: SimpleClusterResolver,
}

impl KubernetesClusterResolver {
    /// Reads this process's environment. `service` is the headless service, `workers` the
    /// completions of the job or the replicas of the set, `port` the port of each worker.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if `HOSTNAME` is not the name of a pod with an index below `workers`;
    /// also as [`ClusterSpec::job`].
    pub fn new(service: &str, workers: usize, port: u16) -> Result<KubernetesClusterResolver> {
        KubernetesClusterResolver::from_environment(service, workers, port, process_environment)
    }

    /// Reads the environment that the function returns.
    ///
    /// # Errors
    /// As [`new`](KubernetesClusterResolver::new).
    pub fn from_environment(
        service: &str,
        workers: usize,
        port: u16,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<KubernetesClusterResolver> {
        let pod = environment("HOSTNAME").unwrap_or_default();
        let parts = pod.rsplit_once('-');
        let worker = parts.and_then(|(name, index)| Some((name, index_of(index).filter(|&index| index < workers)?)));
        let Some((name, index)) = worker else {
            let expected = format!("the name of a pod with its index below {workers} (NAME-0)");
            return Err(Error::invalid(CALL, "HOSTNAME", expected, format!("{pod:?}")));
        };
        let addresses = (0..workers).map(|worker| (worker, format!("{name}-{worker}.{service}:{port}")));
        let mut cluster = ClusterSpec::new();
        cluster.push("worker", addresses).map_err(|error| inside(error, CALL, ""))?;
        let resolved = SimpleClusterResolver::new(cluster).with_checked_task(CALL, "task ", "worker", index)?;
        Ok(KubernetesClusterResolver { resolved })
    }
}

impl ClusterResolver for KubernetesClusterResolver {
    fn resolved(&self) -> &SimpleClusterResolver {
        &self.resolved
    }
}

#[cfg(test)]
mod tests {
    use super::KubernetesClusterResolver;

    #[test]
    fn a_pod_without_its_index_is_refused() {
        let names = ["train", "train-3", "train-x", "train-+0", "train-00", "a b-1", "-", ""];
        for name in names.map(Some).into_iter().chain([None]) {
            let environment = |_: &str| name.map(str::to_owned);
            assert!(KubernetesClusterResolver::from_environment("workers", 3, 2222, environment).is_err(), "{name:?}");
        }
        let environment = |_: &str| Some("train-0".to_owned());
        assert!(KubernetesClusterResolver::from_environment("work ers", 3, 2222, environment).is_err());
    }
}
