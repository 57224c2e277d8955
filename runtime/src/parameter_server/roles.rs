//! The roles of a process: what it plays, and how the roles start.

use super::{
    chief::{Chief, Limits, Terms},
    effect::Effect,
    other_processes::Others,
    processes::Process,
    program::Program,
    tables::tensor,
    threads,
    variable::{Accessed, Asked, Layout},
};
use crate::{
    Error, IndexedSlices, Result, Tensor, cluster::server_roles::Place, comm::options::DEFAULT_TIMEOUT,
    variable::update::Update,
};
use consonance_spec::{OnError, Order, Partitioner, Updates};
use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A strategy, which its coordinators share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) played: Played,
    pub(super) workers: usize,
    pub(super) servers: usize,
    pub(super) options: Options,
    pub(super) state: Mutex<Phase>,
}

/// The phases of a strategy.
#[derive(Debug)]
pub(super) enum Phase {
    /// The program declares variables and functions.
    Declares(Program),
    /// The roles work. Those that are processes are known.
    Works(Arc<Chief>, Option<Arc<Others>>),
    /// The roles could not start, or a role that is not the chief's has been played.
    Failed(Error),
}

/// The roles that this process plays.
#[derive(Debug)]
pub(super) enum Played {
    /// It plays all roles.
    All,
    /// It has one of them.
    One(Process),
}

/// The options of a strategy.
pub(super) struct Options {
    pub(super) order: Order,
    pub(super) updates: Updates,
    pub(super) on_error: OnError,
    pub(super) limits: Limits,
    pub(super) partitioner: Option<Box<dyn Partitioner + Send + Sync>>,
}

/// The closures that may wait for workers by default, as in TensorFlow.
const QUEUE: usize = 262_144;

impl Inner {
    /// Changes the program, before the roles start.
    ///
    /// # Errors
    /// [`Error::WrongContext`] when they have.
    pub(super) fn declare<R>(&self, call: &'static str, declare: impl FnOnce(&mut Program) -> Result<R>) -> Result<R> {
        match &mut *self.lock() {
            Phase::Declares(program) => declare(program),
            Phase::Works(..) | Phase::Failed(_) => Err(Error::WrongContext {
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
            Phase::Works(chief, _) => return Ok(chief.clone()),
            Phase::Failed(error) => return Err(error.clone()),
            Phase::Declares(program) => {
                self.check_chief(call)?;
                let strategy = program.known.strategy.clone();
                mem::replace(program, Program::new(strategy, 0, 1))
            }
        };
        match self.played.start(call, program, &self.options.terms()) {
            Ok((chief, others)) => {
                *state = Phase::Works(chief.clone(), others);
                Ok(chief)
            }
            Err(error) => {
                *state = Phase::Failed(error.clone());
                Err(error)
            }
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Phase> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accessed for Inner {
    fn check_chief(&self, call: &'static str) -> Result<()> {
        match self.played.is_chief() {
            true => Ok(()),
            false => {
                let problem = "only the chief makes this call; a worker reads variables in a closure".to_owned();
                Err(Error::WrongContext { call, problem })
            }
        }
    }

    fn settle(&self, call: &'static str) -> Result<()> {
        let chief = self.chief(call)?;
        match self.options.order {
            Order::Arrival => chief.check(call),
            Order::Scheduled { .. } => chief.wait_for_all(call, self.options.limits.timeout),
        }
    }

    fn read(&self, call: &'static str, layout: &Layout, asked: Asked<'_>) -> Result<Tensor> {
        tensor(layout, asked, self.chief(call)?.tables()?.read(layout, asked)?)
    }

    fn update(&self, call: &'static str, layout: &Arc<Layout>, update: Update, value: &Tensor) -> Result<()> {
        self.chief(call)?.apply(&Effect::all(layout, update, value))
    }

    fn update_rows(
        &self,
        call: &'static str,
        layout: &Arc<Layout>,
        update: Update,
        (rows, slices): (Vec<usize>, &IndexedSlices),
    ) -> Result<()> {
        self.chief(call)?.apply(&Effect::rows(layout, update, rows, slices))
    }
}

impl Played {
    pub(super) fn is_chief(&self) -> bool {
        match self {
            Played::All => true,
            Played::One(process) => process.roles.own() == Place::Chief,
        }
    }

    /// Returns whether this process plays the server of this number.
    pub(super) fn plays(&self, server: usize) -> bool {
        match self {
            Played::All => true,
            Played::One(process) => process.roles.own() == Place::Server(server),
        }
    }

    fn start(
        &self,
        call: &'static str,
        mut program: Program,
        terms: &Terms,
    ) -> Result<(Arc<Chief>, Option<Arc<Others>>)> {
        match self {
            Played::All => Ok((threads::start(program, terms)?, None)),
            Played::One(process) => {
                drop(mem::take(&mut program.values));
                let (chief, others) = Others::meet(call, process.clone(), Arc::new(program), *terms)?;
                Ok((chief, Some(others)))
            }
        }
    }
}

impl Options {
    pub(super) fn terms(&self) -> Terms {
        Terms { order: self.order, updates: self.updates, on_error: self.on_error, limits: self.limits }
    }
}

impl Default for Options {
    fn default() -> Options {
        let limits = Limits { timeout: DEFAULT_TIMEOUT, closure_timeout: DEFAULT_TIMEOUT, queue: QUEUE };
        Options {
            order: Order::default(),
            updates: Updates::default(),
            on_error: OnError::default(),
            limits,
            partitioner: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("order", &self.order).field("limits", &self.limits).finish_non_exhaustive()
    }
}
