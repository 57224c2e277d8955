//! The strategy, and its options.

use super::{
    processes::Process,
    program::Program,
    roles::{Inner, Options, Phase, Played},
    update_function::UpdateFunction,
    variable::{ShardedVariable, check_own},
};
use crate::{
    ClusterResolver, Error, Result, Tensor, TfConfigClusterResolver, cluster::server_roles::ServerRoles,
    comm::options::check_timeout,
};
use consonance_spec::{OnError, Order, Partitioner, Updates};
use std::{
    fmt, mem,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

/// Asynchronous training with variables on servers: TensorFlow's `ParameterServerStrategy`.
///
/// One process is the chief, others are workers and servers. The variables lie on the servers. The
/// chief schedules closures by a [`ClusterCoordinator`](crate::ClusterCoordinator), and the workers
/// run them, each when it is free. The program is the same in all processes: they declare variables
/// and functions in the same order.
///
/// [`threads`](Self::threads) plays all roles in one process.
///
/// ```
/// use consonance::{ClusterCoordinator, DType, IndexedSlices, ParameterServerStrategy, Tensor};
/// use std::time::Duration;
/// let strategy = ParameterServerStrategy::threads(2, 2)?;
/// let table = strategy.variable(|| Tensor::zeros(DType::F32, [1000, 2]))?;
/// let coordinator = ClusterCoordinator::new(&strategy);
/// let step = coordinator.function("step", {
///     let table = table.clone();
///     move |worker, users: Tensor| {
///         let rows = worker.lookup(&table, &users)?;
///         let gradients = vec![-0.5f32; rows.count()];
///         let gradients = Tensor::new(rows.shape(), &gradients)?;
///         worker.scatter_sub(&table, &IndexedSlices::new(gradients, users, None)?)
///     }
/// })?;
/// # if !strategy.is_chief() { return strategy.serve(); }
/// for first in [7i64, 7, 8] {
///     coordinator.schedule(&step, Tensor::from([first, 999]))?;
/// }
/// coordinator.join(Duration::from_secs(60))?;
/// assert_eq!(table.lookup(&Tensor::from([7i64, 8, 999]))?, Tensor::from([[1.0f32, 1.0], [0.5, 0.5], [1.5, 1.5]]));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone)]
pub struct ParameterServerStrategy {
    /// Ends the roles with the last clone.
    owner: Arc<Owner>,
}

/// The strategy of the program, whose drop ends the roles.
#[derive(Debug)]
struct Owner(Arc<Inner>);

/// Options of a [`ParameterServerStrategy`].
///
/// ```
/// use consonance::{DType, ParameterServerStrategy, Tensor, parameter_server::{MaxSizePartitioner, OnError, Order}};
/// use std::{num::NonZeroUsize, time::Duration};
/// let strategy = ParameterServerStrategy::builder_of_threads(2, 2)
///     .order(Order::Scheduled { window: NonZeroUsize::new(8).unwrap() })
///     .on_error(OnError::Continue)
///     .partitioner(MaxSizePartitioner::new(64, None)?)
///     .queue(1000)
///     .timeout(Duration::from_secs(30))
///     .closure_timeout(Duration::from_secs(10))
///     .build()?;
/// let table = strategy.variable(|| Tensor::zeros(DType::F32, [10, 4]))?;
/// assert_eq!(table.shards(), [(0..4, 0), (4..7, 1), (7..10, 0)]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Debug)]
pub struct ParameterServerBuilder {
    played: Played,
    workers: usize,
    servers: usize,
    options: Options,
}

impl ParameterServerStrategy {
    /// Makes the strategy of the cluster in the environment variable `TF_CONFIG`, which has the
    /// jobs `chief`, `worker` and `ps`.
    ///
    /// # Errors
    /// As [`builder`](Self::builder), and [`Error::InvalidCall`] if the variable is malformed.
    pub fn new() -> Result<ParameterServerStrategy> {
        ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?.build()
    }

    /// As [`new`](Self::new), with options, for the cluster of a resolver.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the cluster has not one chief, or no worker, or no server, or if
    /// this process is none of them.
    pub fn builder(resolver: impl ClusterResolver + 'static) -> Result<ParameterServerBuilder> {
        let roles = ServerRoles::of("ParameterServerStrategy", &resolver)?;
        let (workers, servers) = (roles.workers().len(), roles.servers().len());
        Ok(ParameterServerBuilder {
            played: Played::One(Process::new(roles)),
            workers,
            servers,
            options: Options::default(),
        })
    }

    /// Plays a chief, workers and servers by threads of this process.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there are no workers or no servers.
    pub fn threads(workers: usize, servers: usize) -> Result<ParameterServerStrategy> {
        ParameterServerStrategy::builder_of_threads(workers, servers).build()
    }

    /// As [`threads`](Self::threads), with options.
    pub fn builder_of_threads(workers: usize, servers: usize) -> ParameterServerBuilder {
        ParameterServerBuilder { played: Played::All, workers, servers, options: Options::default() }
    }

    /// Declares a variable, with its value. Its shards lie on the servers one after the other, by
    /// the order in which variables are declared. Every process calls `value`.
    ///
    /// # Errors
    /// [`Error::WrongContext`] after the roles have started: at the first closure, or the first
    /// access to a variable. [`Error::InvalidCall`] for a partition that is refused.
    pub fn variable(&self, value: impl FnOnce() -> Tensor) -> Result<ShardedVariable> {
        let inner = &self.owner.0;
        let call = "ParameterServerStrategy::variable";
        let partitioner = inner.options.partitioner.as_ref().map(|partitioner| &**partitioner as &dyn Partitioner);
        let layout = inner
            .declare(call, |program| program.variable(&value(), partitioner, |server| inner.played.plays(server)))?;
        let strategy = Arc::downgrade(inner);
        Ok(ShardedVariable { layout, strategy })
    }

    /// Declares a variable beside another one: its shards have the same rows, on the same servers.
    /// `value` has as many rows, of any shape and dtype. An [update
    /// function](Self::update_function) updates it with the other one. Otherwise it is a variable
    /// like any other.
    ///
    /// # Errors
    /// As [`variable`](Self::variable), and [`Error::InvalidCall`] for a variable of another
    /// strategy and for a value of other rows.
    pub fn slot(&self, of: &ShardedVariable, value: impl FnOnce() -> Tensor) -> Result<ShardedVariable> {
        let inner = &self.owner.0;
        let call = "ParameterServerStrategy::slot";
        let layout = inner.declare(call, |program| {
            check_own(call, "of", &program.known.variables, &of.layout)?;
            program.slot(&of.layout, &value(), |server| inner.played.plays(server))
        })?;
        Ok(ShardedVariable { layout, strategy: of.strategy.clone() })
    }

    /// Declares a function that updates a variable with its `N` slots, as the step of an optimizer
    /// does. Servers run it when the effects of a closure commit, each for its shards.
    ///
    /// The function gets rows of the variable, the same rows of its slots, and a gradient of these
    /// rows: all rows of a shard for [`WorkerContext::update`](super::WorkerContext::update), those
    /// that have a gradient, each once, for
    /// [`update_rows`](super::WorkerContext::update_rows). It changes elements in place. Its result
    /// for a row depends on the values of this row alone, so that the bits do not depend on the
    /// shards.
    ///
    /// An error of the function, or a panic, comes when the effects commit and other shards may
    /// have changed. So it ends the strategy: all calls return it.
    ///
    /// ```
    /// use consonance::{ClusterCoordinator, DType, ParameterServerStrategy, Tensor};
    /// use std::time::Duration;
    /// let strategy = ParameterServerStrategy::threads(2, 2)?;
    /// let weights = strategy.variable(|| Tensor::from([1.0f32, 2.0, 3.0]))?;
    /// let velocity = strategy.slot(&weights, || Tensor::zeros(DType::F32, [3]))?;
    /// let momentum = strategy.update_function("momentum", |weights, [velocity], gradient| {
    ///     let (weights, velocity) = (weights.as_mut_slice::<f32>()?, velocity.as_mut_slice::<f32>()?);
    ///     for ((weight, velocity), gradient) in weights.iter_mut().zip(velocity).zip(gradient.as_slice::<f32>()?) {
    ///         *velocity = 0.5 * *velocity - 0.25 * gradient;
    ///         *weight += *velocity;
    ///     }
    ///     Ok(())
    /// })?;
    /// let coordinator = ClusterCoordinator::new(&strategy);
    /// let step = coordinator.function("step", {
    ///     let weights = weights.clone();
    ///     move |worker, gradient: Tensor| worker.update(&momentum, &weights, [&velocity], &gradient)
    /// })?;
    /// # if !strategy.is_chief() { return strategy.serve(); }
    /// for _ in 0..2 {
    ///     coordinator.schedule(&step, Tensor::from([4.0f32, 0.0, 8.0]))?;
    /// }
    /// coordinator.join(Duration::from_secs(60))?;
    /// assert_eq!(weights.read()?, Tensor::from([-1.5f32, 2.0, -2.0]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a name that another update function has; [`Error::WrongContext`]
    /// after the roles have started.
    pub fn update_function<const N: usize>(
        &self,
        name: &str,
        update: impl Fn(&mut Tensor, &mut [Tensor; N], &Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Result<UpdateFunction<N>> {
        let call = "ParameterServerStrategy::update_function";
        self.owner.0.declare(call, |program| program.update_function(name, update))
    }

    /// Returns whether this process is the chief.
    pub fn is_chief(&self) -> bool {
        self.owner.0.played.is_chief()
    }

    /// Runs closures as a worker, or keeps variables as a server, until the chief drops its
    /// strategy and its coordinator. The program has declared all variables and functions before.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in the chief; [`Error::Meeting`] if a process does not come, or
    /// declares other variables or functions; [`Error::Aborted`] if the chief is lost.
    pub fn serve(&self) -> Result<()> {
        let call = "ParameterServerStrategy::serve";
        let inner = &self.owner.0;
        match &inner.played {
            Played::One(process) if !inner.played.is_chief() => {
                let problem = "this process has served before".to_owned();
                let served = Phase::Failed(Error::WrongContext { call, problem });
                let program = match mem::replace(&mut *inner.lock(), served) {
                    Phase::Declares(program) => program,
                    Phase::Works(..) => unreachable!("only a chief works"),
                    Phase::Failed(error) => return Err(error),
                };
                process.serve(call, program, &inner.options.terms())
            }
            Played::One(_) | Played::All => Err(Error::WrongContext {
                call,
                problem: "the chief schedules closures; workers and servers serve".to_owned(),
            }),
        }
    }

    /// Returns the number of workers.
    pub fn num_workers(&self) -> usize {
        self.owner.0.workers
    }

    /// Returns the number of servers.
    pub fn num_servers(&self) -> usize {
        self.owner.0.servers
    }

    /// Returns 1: each closure runs on one worker, which has one replica.
    pub fn num_replicas_in_sync(&self) -> usize {
        1
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.owner.0
    }
}

impl ParameterServerBuilder {
    /// Sets the order in which effects of closures commit.
    pub fn order(mut self, order: Order) -> Self {
        self.options.order = order;
        self
    }

    /// Sets when changes of variables by a closure take effect: by default when it has ended.
    pub fn updates(mut self, updates: Updates) -> Self {
        self.options.updates = updates;
        self
    }

    /// Sets whether an error cancels the closures that have not begun.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.options.on_error = on_error;
        self
    }

    /// Sets the rule by which variables are divided into shards. Without one they have one each.
    pub fn partitioner(mut self, partitioner: impl Partitioner + Send + Sync + 'static) -> Self {
        self.options.partitioner = Some(Box::new(partitioner));
        self
    }

    /// Sets the number of closures that may wait for workers; 262,144 by default.
    pub fn queue(mut self, closures: usize) -> Self {
        self.options.limits.queue = closures;
        self
    }

    /// Sets the time in which processes meet and servers answer; 5 minutes by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.limits.timeout = timeout;
        self
    }

    /// Sets the time in which a closure must end; 5 minutes by default.
    pub fn closure_timeout(mut self, timeout: Duration) -> Self {
        self.options.limits.closure_timeout = timeout;
        self
    }

    /// Makes the strategy.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there are no workers or no servers, for a queue without room, for
    /// updates at once in a scheduled order, and for a timeout that is zero or longer than a day.
    pub fn build(self) -> Result<ParameterServerStrategy> {
        let call = "ParameterServerStrategy";
        let ParameterServerBuilder { played, workers, servers, options } = self;
        for (argument, count) in [("workers", workers), ("servers", servers), ("queue", options.limits.queue)] {
            if count == 0 {
                return Err(Error::invalid(call, argument, "at least 1", "0"));
            }
        }
        match (options.updates, options.order) {
            (Updates::AtOnce, Order::Scheduled { .. }) => {
                let found = "AtOnce, in a scheduled order";
                return Err(Error::invalid(call, "updates", "AtEnd where effects have an order", found));
            }
            (Updates::AtOnce, Order::Arrival) | (Updates::AtEnd, _) => {}
        }
        check_timeout(call, options.limits.timeout)?;
        check_timeout(call, options.limits.closure_timeout)?;
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| {
            let state = Mutex::new(Phase::Declares(Program::new(inner.clone(), workers, servers)));
            Inner { played, workers, servers, options, state }
        });
        Ok(ParameterServerStrategy { owner: Arc::new(Owner(inner)) })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Phase::Works(chief, others) = &*self.0.lock() {
            match others {
                Some(others) => others.end(),
                None => chief.end(),
            }
        }
    }
}

impl fmt::Debug for ParameterServerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.owner.0;
        let mut shown = f.debug_struct("ParameterServerStrategy");
        shown.field("workers", &inner.workers).field("servers", &inner.servers).finish_non_exhaustive()
    }
}
