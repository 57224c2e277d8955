//! The place of a closure: its worker, and the variables as it sees them.

use super::{
    effect::Effect,
    tables::{Tables, tensor},
    variable::{Asked, Layout, ShardedVariable},
};
use crate::{Error, IndexedSlices, Result, Tensor, variable::update::Update};
use std::{cell::RefCell, fmt, ops::Range, sync::Arc};

/// The place of a closure: its worker, and the variables as the closure sees them.
///
/// Reads return committed values with the effects of this closure. Effects are kept at the worker.
/// They commit when the closure has ended, all or none.
///
/// ```
/// use consonance::{ClusterCoordinator, ParameterServerStrategy, Tensor};
/// use std::time::Duration;
/// let strategy = ParameterServerStrategy::threads(2, 1)?;
/// let table = strategy.variable(|| Tensor::from([1i32, 2, 3]))?;
/// let coordinator = ClusterCoordinator::new(&strategy);
/// let double = coordinator.function("double", move |worker, ()| {
///     let value = worker.read(&table)?;
///     worker.assign_add(&table, &value)?;
///     worker.lookup(&table, &Tensor::from([2i64, 0]))
/// })?;
/// assert_eq!(coordinator.schedule(&double, ())?.fetch(Duration::from_secs(60))?, Tensor::from([6, 2]));
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct WorkerContext<'a> {
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) variables: &'a [Arc<Layout>],
    pub(super) tables: &'a Tables,
    /// The effects so far, in their order.
    pub(super) effects: RefCell<Vec<Effect>>,
}

impl WorkerContext<'_> {
    /// Returns the number of this worker.
    pub fn worker_index(&self) -> usize {
        self.worker
    }

    /// Returns the number of workers.
    pub fn num_workers(&self) -> usize {
        self.workers
    }

    /// Returns the value of a variable.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a variable of another strategy, [`Error::Aborted`] if a server
    /// was lost.
    pub fn read(&self, variable: &ShardedVariable) -> Result<Tensor> {
        let call = "WorkerContext::read";
        self.check(call, variable)?;
        self.view(&variable.layout, Asked::All)
    }

    /// Returns these rows of a variable, of shape `[rows, ...]`.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidCall`] for rows that are not there.
    pub fn read_rows(&self, variable: &ShardedVariable, rows: Range<usize>) -> Result<Tensor> {
        let call = "WorkerContext::read_rows";
        self.check(call, variable)?;
        self.view(&variable.layout, Asked::Rows(&variable.layout.check_range(call, rows)?))
    }

    /// Returns the rows with these indices, in their order, each as often as it is asked for.
    /// `indices` has shape `[rows]` and dtype i32 or i64.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidCall`] for an index out of range.
    pub fn lookup(&self, variable: &ShardedVariable, indices: &Tensor) -> Result<Tensor> {
        let call = "WorkerContext::lookup";
        self.check(call, variable)?;
        self.view(&variable.layout, Asked::Rows(&variable.layout.check_indices(call, indices)?))
    }

    /// Sets a variable.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a variable of another strategy, and for a value of another dtype
    /// or shape.
    pub fn assign(&self, variable: &ShardedVariable, value: &Tensor) -> Result<()> {
        self.update("WorkerContext::assign", variable, Update::Assign, value)
    }

    /// Adds to a variable.
    ///
    /// # Errors
    /// As [`assign`](Self::assign), also for a variable of `bool`.
    pub fn assign_add(&self, variable: &ShardedVariable, value: &Tensor) -> Result<()> {
        self.update("WorkerContext::assign_add", variable, Update::AssignAdd, value)
    }

    /// Subtracts from a variable.
    ///
    /// # Errors
    /// As [`assign_add`](Self::assign_add).
    pub fn assign_sub(&self, variable: &ShardedVariable, value: &Tensor) -> Result<()> {
        self.update("WorkerContext::assign_sub", variable, Update::AssignSub, value)
    }

    /// Sets rows of a variable, one after the other. The last of rows with the same index counts.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a variable of another strategy, rows of another dtype or shape,
    /// and an index out of range.
    pub fn scatter_update(&self, variable: &ShardedVariable, rows: &IndexedSlices) -> Result<()> {
        self.scatter("WorkerContext::scatter_update", variable, Update::Assign, rows)
    }

    /// Adds rows to those of a variable, one after the other.
    ///
    /// # Errors
    /// As [`scatter_update`](Self::scatter_update), also for a variable of `bool`.
    pub fn scatter_add(&self, variable: &ShardedVariable, rows: &IndexedSlices) -> Result<()> {
        self.scatter("WorkerContext::scatter_add", variable, Update::AssignAdd, rows)
    }

    /// Subtracts rows from those of a variable, one after the other.
    ///
    /// # Errors
    /// As [`scatter_add`](Self::scatter_add).
    pub fn scatter_sub(&self, variable: &ShardedVariable, rows: &IndexedSlices) -> Result<()> {
        self.scatter("WorkerContext::scatter_sub", variable, Update::AssignSub, rows)
    }

    fn update(&self, call: &'static str, variable: &ShardedVariable, update: Update, value: &Tensor) -> Result<()> {
        self.check(call, variable)?;
        variable.layout.check(call, update, value)?;
        self.effects.borrow_mut().push(Effect::all(&variable.layout, update, value));
        Ok(())
    }

    fn scatter(
        &self,
        call: &'static str,
        variable: &ShardedVariable,
        update: Update,
        rows: &IndexedSlices,
    ) -> Result<()> {
        self.check(call, variable)?;
        let places = variable.layout.check_rows(call, update, rows)?;
        self.effects.borrow_mut().push(Effect::rows(&variable.layout, update, places, rows));
        Ok(())
    }

    /// Checks that a variable is one of this program.
    fn check(&self, call: &'static str, variable: &ShardedVariable) -> Result<()> {
        let own = self.variables.get(variable.layout.number);
        match own.is_some_and(|own| Arc::ptr_eq(own, &variable.layout)) {
            true => Ok(()),
            false => Err(Error::invalid(call, "variable", "one of this strategy", "one of another strategy")),
        }
    }

    fn view(&self, layout: &Arc<Layout>, asked: Asked<'_>) -> Result<Tensor> {
        let mut memory = self.tables.read(layout, asked)?;
        for effect in self.effects.borrow().iter().filter(|effect| Arc::ptr_eq(&effect.variable, layout)) {
            effect.apply(asked, &mut memory)?;
        }
        tensor(layout, asked, memory)
    }
}

impl fmt::Debug for WorkerContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext").field("worker", &self.worker).finish_non_exhaustive()
    }
}
