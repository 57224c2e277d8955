//! Replicas in several processes, each with copies of every variable.

use super::{Builder, Strategy, Workers};
use crate::{
    ClusterResolver, CommunicationOptions, Communicator, Device, Error, Result,
    cluster::{Role, check_on_this_host},
};
use std::ops::Deref;

const CALL: &str = "MultiWorkerMirroredStrategy";

/// Replicas in several workers, which are processes, some in each. Every worker runs the same program and makes the same calls in
/// the same order; the bits are those of as many replicas in one process.
///
/// The workers are the tasks `chief` and `worker` of the cluster, in this order, and replicas are numbered worker by worker. How
/// many replicas a worker has is its own affair. In each process:
///
/// * [`run`](Strategy::run) runs that worker's replicas, takes and gives their values; collectives are of all replicas.
/// * [`reduce`](Strategy::reduce), [`gather`](Strategy::gather) and what else combines values of replicas is a collective: every
///   worker makes the call.
/// * So is the making of a [`Variable`](crate::Variable), which has the chief's initial value everywhere.
/// * [`distribute_dataset`](Strategy::distribute_dataset) gives that worker's replicas their parts.
///
/// A cluster without tasks is one worker: it is as [`MirroredStrategy`](crate::MirroredStrategy) is.
///
/// ```
/// use consonance::{MultiWorkerMirroredStrategy, ReduceOp, Tensor, TfConfigClusterResolver};
/// let alone = TfConfigClusterResolver::from_text("{}")?;
/// let strategy = MultiWorkerMirroredStrategy::builder(alone).replicas(2).build()?;
/// let totals = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, Tensor::from(1.0f32)))?;
/// assert_eq!(totals.values(), [Tensor::from(2.0f32), Tensor::from(2.0f32)]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MultiWorkerMirroredStrategy(Strategy);

impl MultiWorkerMirroredStrategy {
    /// A strategy for the workers of a cluster.
    pub fn builder(resolver: impl ClusterResolver + 'static) -> MultiWorkerBuilder {
        let options = CommunicationOptions::new();
        MultiWorkerBuilder { resolver: Box::new(resolver), replicas: 1, options, pin_threads: false }
    }
}

impl Deref for MultiWorkerMirroredStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.0
    }
}

/// How a [`MultiWorkerMirroredStrategy`] is made: the cluster first, then what differs from the default.
#[must_use]
pub struct MultiWorkerBuilder {
    resolver: Box<dyn ClusterResolver>,
    replicas: usize,
    options: CommunicationOptions,
    pin_threads: bool,
}

impl MultiWorkerBuilder {
    /// So many replicas in this worker, on `cpu:0`, `cpu:1`, … By default one.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Options of all collectives, where a call does not override them.
    pub fn options(mut self, options: CommunicationOptions) -> Self {
        self.options = options;
        self
    }

    /// Binds the thread of replica `i` to core `i`, modulo the cores that this process may use, where `i` counts the replicas of all
    /// workers. By default the system places threads.
    pub fn pin_threads(mut self, pin: bool) -> Self {
        self.pin_threads = pin;
        self
    }

    /// Makes the strategy.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is no worker of the cluster, if it has no replicas or more than there are devices, if a
    /// worker is on another host, or if there are several: they need communicators, see
    /// [`build_on`](MultiWorkerBuilder::build_on).
    pub fn build(self) -> Result<MultiWorkerMirroredStrategy> {
        let role = Role::of(CALL, &*self.resolver)?;
        if role.workers.len() > 1 {
            check_on_this_host(CALL, &role)?;
            let found = format!("a cluster of {} workers", role.workers.len());
            return Err(Error::invalid(CALL, "communicators", "one for each replica, for build_on", found));
        }
        let replicas = self.replicas;
        self.build_with(replicas, None)
    }

    /// Makes the strategy on communicators of your own, a rank for each replica of all workers, on whatever engine they are: for
    /// each replica of this worker its communicator, in rank order. All workers make this call, with the same cluster; they tell each
    /// other how many replicas each has, so that [`replicas`](MultiWorkerBuilder::replicas) says nothing here.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if this process is no worker of the cluster, and if the communicators are not those of ranks that follow
    /// each other, or not of all workers in their order; otherwise as [`Communicator::barrier`], with the timeout that the
    /// communicators have.
    ///
    /// Two threads that play two workers:
    ///
    /// ```
    /// use consonance::{
    ///     ClusterSpec, Communicator, MultiWorkerMirroredStrategy, ReduceOp, Result, SimpleClusterResolver, Tensor,
    /// };
    /// fn work(index: usize, communicator: Communicator) -> Result<()> {
    ///     let cluster = ClusterSpec::new().job("worker", ["localhost:2222", "localhost:2223"])?;
    ///     let resolver = SimpleClusterResolver::new(cluster).with_task("worker", index)?;
    ///     let strategy = MultiWorkerMirroredStrategy::builder(resolver).build_on(vec![communicator])?;
    ///     assert_eq!((strategy.num_replicas_in_sync(), strategy.local_replicas()), (2, index..index + 1));
    ///
    ///     let ids = strategy.run(|replica| Ok(Tensor::from(replica.replica_id_in_sync_group() as i32)))?;
    ///     assert_eq!(strategy.local_results(&ids), [Tensor::from(index as i32)]);
    ///     assert_eq!(strategy.reduce(ReduceOp::Sum, &ids, None)?, Tensor::from(1));
    ///     Ok(())
    /// }
    /// std::thread::scope(|scope| {
    ///     let workers: Vec<_> = Communicator::threads(2)
    ///         .into_iter()
    ///         .enumerate()
    ///         .map(|(index, communicator)| scope.spawn(move || work(index, communicator)))
    ///         .collect();
    ///     workers.into_iter().try_for_each(|worker| worker.join().unwrap())
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn build_on(self, communicators: Vec<Communicator>) -> Result<MultiWorkerMirroredStrategy> {
        let role = Role::of(CALL, &*self.resolver)?;
        let replicas = communicators.len();
        let cluster = self.resolver.cluster_spec().to_string();
        let workers = Workers::meet(CALL, communicators, role.worker, role.workers.len().max(1), &cluster)?;
        // Where there is one worker nobody else is to be asked.
        self.build_with(replicas, Some(workers).filter(|workers| workers.count() > 1))
    }

    fn build_with(self, replicas: usize, workers: Option<Workers>) -> Result<MultiWorkerMirroredStrategy> {
        let devices = (0..replicas).map(Device::Cpu);
        let builder = Builder::new(CALL, devices, MultiWorkerMirroredStrategy).mirrors();
        let builder = builder.options(self.options).pin_threads(self.pin_threads);
        Builder { resolver: Some(self.resolver), workers, ..builder }.build()
    }
}
