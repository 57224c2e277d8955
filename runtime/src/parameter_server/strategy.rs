//! The strategy: who plays which role, and how they start.

use super::{
    chief::{Chief, Limits, Terms},
    effect::Effect,
    processes::Process,
    program::Program,
    tables::tensor,
    threads,
    variable::{Accessed, Asked, Layout, ShardedVariable},
};
use crate::{
    ClusterResolver, Error, Result, Tensor, TfConfigClusterResolver,
    cluster::server_roles::{Place, ServerRoles},
    comm::options::{DEFAULT_TIMEOUT, check_timeout},
    variable::update::Update,
};
use consonance_spec::{OnError, Order, Partitioner};
use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// A strategy, which its coordinators share.
#[derive(Debug)]
pub(super) struct Inner {
    played: Played,
    workers: usize,
    servers: usize,
    options: Options,
    state: Mutex<Phase>,
}

/// The phases of a strategy.
#[derive(Debug)]
enum Phase {
    /// The program declares variables and functions.
    Declares(Program),
    /// The roles work.
    Works(Arc<Chief>),
    /// The roles could not start, or a role that is not the chief's has been played.
    Failed(Error),
}

/// The roles that this process plays.
#[derive(Debug)]
enum Played {
    /// It plays all roles.
    All,
    /// It has one of them.
    One(Process),
}

struct Options {
    order: Order,
    on_error: OnError,
    limits: Limits,
    partitioner: Option<Box<dyn Partitioner + Send + Sync>>,
}

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

/// The closures that may wait for workers by default, as in TensorFlow.
const QUEUE: usize = 262_144;

impl ParameterServerStrategy {
    /// Makes the strategy of the cluster in the environment variable `TF_CONFIG`, which has the
    /// jobs `chief`, `worker` and `ps`. All processes are on this host.
    ///
    /// # Errors
    /// As [`builder`](Self::builder), and [`Error::InvalidCall`] if the variable is malformed.
    pub fn new() -> Result<ParameterServerStrategy> {
        ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?.build()
    }

    /// As [`new`](Self::new), with options, for the cluster of a resolver.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the cluster has not one chief, or no worker, or no server, if this
    /// process is none of them, or if one of them is on another host.
    pub fn builder(resolver: impl ClusterResolver + 'static) -> Result<ParameterServerBuilder> {
        let roles = ServerRoles::of("ParameterServerStrategy", &resolver)?;
        let (workers, servers) = (roles.workers().len(), roles.servers().len());
        Ok(ParameterServerBuilder {
            played: Played::One(Process(roles)),
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
                    Phase::Works(_) => unreachable!("only a chief works"),
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
    /// [`Error::InvalidCall`] if there are no workers or no servers, for a queue without room, and
    /// for a timeout that is zero or longer than a day.
    pub fn build(self) -> Result<ParameterServerStrategy> {
        let call = "ParameterServerStrategy";
        let ParameterServerBuilder { played, workers, servers, options } = self;
        for (argument, count) in [("workers", workers), ("servers", servers), ("queue", options.limits.queue)] {
            if count == 0 {
                return Err(Error::invalid(call, argument, "at least 1", "0"));
            }
        }
        check_timeout(call, options.limits.timeout)?;
        check_timeout(call, options.limits.closure_timeout)?;
        let state = Mutex::new(Phase::Declares(Program::new(workers, servers)));
        let inner = Inner { played, workers, servers, options, state };
        Ok(ParameterServerStrategy { owner: Arc::new(Owner(Arc::new(inner))) })
    }
}

impl Inner {
    /// Changes the program, before the roles start.
    ///
    /// # Errors
    /// [`Error::WrongContext`] when they have.
    pub(super) fn declare<R>(&self, call: &'static str, declare: impl FnOnce(&mut Program) -> Result<R>) -> Result<R> {
        match &mut *self.lock() {
            Phase::Declares(program) => declare(program),
            Phase::Works(_) | Phase::Failed(_) => Err(Error::WrongContext {
                call,
                problem: "declarations come before the first closure and the first access to a variable".to_owned(),
            }),
        }
    }

    /// Returns the chief, which is started in the first call.
    ///
    /// # Errors
    /// Those of the start, also in later calls.
    pub(super) fn chief(&self, call: &'static str) -> Result<Arc<Chief>> {
        let mut state = self.lock();
        let program = match &mut *state {
            Phase::Works(chief) => return Ok(chief.clone()),
            Phase::Failed(error) => return Err(error.clone()),
            Phase::Declares(_) if !self.played.is_chief() => {
                let problem = "only the chief makes this call; a worker reads variables in a closure".to_owned();
                return Err(Error::WrongContext { call, problem });
            }
            Phase::Declares(program) => mem::replace(program, Program::new(0, 1)),
        };
        match self.played.start(call, program, &self.options.terms()) {
            Ok(chief) => {
                *state = Phase::Works(chief.clone());
                Ok(chief)
            }
            Err(error) => {
                *state = Phase::Failed(error.clone());
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accessed for Inner {
    fn read(&self, call: &'static str, layout: &Layout, asked: Asked<'_>) -> Result<Tensor> {
        let chief = self.settled(call)?;
        tensor(layout, asked, chief.tables.read(layout, asked)?)
    }

    fn update(&self, call: &'static str, layout: &Arc<Layout>, update: Update, value: &Tensor) -> Result<()> {
        self.settled(call)?.apply(&Effect::all(layout, update, value))
    }
}

impl Inner {
    /// Returns the chief, when all closures have ended whose place is before an access of its own.
    fn settled(&self, call: &'static str) -> Result<Arc<Chief>> {
        let chief = self.chief(call)?;
        match self.options.order {
            Order::Arrival => {}
            Order::Scheduled { .. } => chief.wait_for_all(call, self.options.limits.timeout)?,
        }
        Ok(chief)
    }
}

impl Played {
    fn is_chief(&self) -> bool {
        match self {
            Played::All => true,
            Played::One(process) => process.0.own() == Place::Chief,
        }
    }

    /// Returns whether this process plays the server of this number.
    fn plays(&self, server: usize) -> bool {
        match self {
            Played::All => true,
            Played::One(process) => process.0.own() == Place::Server(server),
        }
    }

    fn start(&self, call: &'static str, program: Program, terms: &Terms) -> Result<Arc<Chief>> {
        match self {
            Played::All => threads::start(program, terms),
            Played::One(process) => process.start(call, program, terms),
        }
    }
}

impl Options {
    fn terms(&self) -> Terms {
        Terms { order: self.order, on_error: self.on_error, limits: self.limits }
    }
}

impl Default for Options {
    fn default() -> Options {
        let limits = Limits { timeout: DEFAULT_TIMEOUT, closure_timeout: DEFAULT_TIMEOUT, queue: QUEUE };
        Options { order: Order::default(), on_error: OnError::default(), limits, partitioner: None }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Phase::Works(chief) = &*self.0.lock() {
            chief.end();
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("order", &self.order).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl fmt::Debug for ParameterServerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.owner.0;
        let mut shown = f.debug_struct("ParameterServerStrategy");
        shown.field("workers", &inner.workers).field("servers", &inner.servers).finish_non_exhaustive()
    }
}
