//! The place of a closure: its worker, and the variables as it sees them.

use super::{
    declarations::Known,
    effect::{Call, Effect, Write},
    message,
    tables::{Tables, tensor},
    update_function::{UpdateFunction, summed},
    variable::{Asked, Layout, ShardedVariable, check_own},
    worker_state::Own,
};
use crate::{Error, IndexedSlices, Result, Tensor, variable::update::Update};
use consonance_kernels::memory::HostMemory;
use consonance_spec::Updates;
use std::{
    cell::{OnceCell, RefCell},
    fmt,
    ops::Range,
    sync::Arc,
};

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
    pub(super) known: &'a Known,
    pub(super) updates: Updates,
    pub(super) tables: &'a Tables,
    /// The effects so far, in their order.
    pub(super) effects: RefCell<Vec<Effect>>,
    pub(super) own: Own<'a>,
}

impl WorkerContext<'_> {
    /// Returns the number of this worker.
    pub fn worker_index(&self) -> usize {
        self.worker
    }

    /// Returns the number of workers.
    pub fn num_workers(&self) -> usize {
        self.known.workers
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
        self.assigns("WorkerContext::assign", variable, Update::Assign, value)
    }

    /// Adds to a variable.
    ///
    /// # Errors
    /// As [`assign`](Self::assign), also for a variable of `bool`.
    pub fn assign_add(&self, variable: &ShardedVariable, value: &Tensor) -> Result<()> {
        self.assigns("WorkerContext::assign_add", variable, Update::AssignAdd, value)
    }

    /// Subtracts from a variable.
    ///
    /// # Errors
    /// As [`assign_add`](Self::assign_add).
    pub fn assign_sub(&self, variable: &ShardedVariable, value: &Tensor) -> Result<()> {
        self.assigns("WorkerContext::assign_sub", variable, Update::AssignSub, value)
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

    /// Updates a variable and its slots by a
    /// [function](crate::ParameterServerStrategy::update_function), with a gradient of the
    /// variable's dtype and shape.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a function or variables of another strategy, for a variable that
    /// occurs twice, a slot that does not lie [beside](crate::ParameterServerStrategy::slot) the
    /// variable, a variable of `bool`, and a gradient of another dtype or shape.
    pub fn update<const N: usize>(
        &self,
        function: &UpdateFunction<N>,
        variable: &ShardedVariable,
        slots: [&ShardedVariable; N],
        gradient: &Tensor,
    ) -> Result<()> {
        let call = "WorkerContext::update";
        let variables = self.check_slots(call, function, variable, slots)?;
        variable.layout.check(call, Update::AssignAdd, gradient)?;
        let (function, gradient) = (function.number, gradient.clone());
        self.effect(Effect::Call(Call { function, variables, rows: None, gradient, seen: OnceCell::new() }))
    }

    /// As [`update`](Self::update), for the rows that have gradients. Gradients of the same row are
    /// added first, one after the other.
    ///
    /// # Errors
    /// As [`update`](Self::update), and [`Error::InvalidCall`] for an index out of range.
    pub fn update_rows<const N: usize>(
        &self,
        function: &UpdateFunction<N>,
        variable: &ShardedVariable,
        slots: [&ShardedVariable; N],
        gradients: &IndexedSlices,
    ) -> Result<()> {
        let call = "WorkerContext::update_rows";
        let variables = self.check_slots(call, function, variable, slots)?;
        let rows = variable.layout.check_rows(call, Update::AssignAdd, gradients)?;
        let (rows, gradient) = summed(&rows, gradients)?;
        let (function, rows) = (function.number, Some(rows));
        self.effect(Effect::Call(Call { function, variables, rows, gradient, seen: OnceCell::new() }))
    }

    fn assigns(&self, call: &'static str, variable: &ShardedVariable, update: Update, value: &Tensor) -> Result<()> {
        self.check(call, variable)?;
        variable.layout.check(call, update, value)?;
        self.effect(Effect::all(&variable.layout, update, value))
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
        self.effect(Effect::rows(&variable.layout, update, places, rows))
    }

    /// Keeps an effect until the closure ends, or brings it to the servers at once.
    fn effect(&self, effect: Effect) -> Result<()> {
        match self.updates {
            Updates::AtEnd => self.effects.borrow_mut().push(effect),
            Updates::AtOnce => {
                for (server, request) in self.tables.requests(&message::request(message::APPLY), [&effect])? {
                    self.tables.call(server, &request)?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, call: &'static str, variable: &ShardedVariable) -> Result<()> {
        check_own(call, "variable", &self.known.variables, &variable.layout)
    }

    /// Checks an update by a function, and returns the variable and its slots.
    fn check_slots<const N: usize>(
        &self,
        call: &'static str,
        function: &UpdateFunction<N>,
        variable: &ShardedVariable,
        slots: [&ShardedVariable; N],
    ) -> Result<Vec<Arc<Layout>>> {
        self.known.check_update(call, function)?;
        self.check(call, variable)?;
        let of = &variable.layout;
        let mut variables = vec![of.clone()];
        for (place, slot) in slots.into_iter().enumerate() {
            let argument = format!("slots[{place}]");
            check_own(call, &argument, &self.known.variables, &slot.layout)?;
            if !slot.layout.is_beside(of) {
                return Err(Error::invalid(call, argument, "a variable beside the other one", slot.layout.spec()));
            }
            if variables.iter().any(|other| Arc::ptr_eq(other, &slot.layout)) {
                return Err(Error::invalid(call, argument, "variables that differ", "one that occurs twice"));
            }
            variables.push(slot.layout.clone());
        }
        Ok(variables)
    }

    fn view(&self, layout: &Arc<Layout>, asked: Asked<'_>) -> Result<Tensor> {
        tensor(layout, asked, self.after(&self.effects.borrow(), layout, asked)?)
    }

    /// Returns committed values with these effects.
    fn after(&self, effects: &[Effect], layout: &Arc<Layout>, asked: Asked<'_>) -> Result<HostMemory> {
        let mut memory = self.tables.read(layout, asked)?;
        for (place, effect) in effects.iter().enumerate() {
            let write = match effect {
                Effect::Write(of, write) => Arc::ptr_eq(of, layout).then_some(write),
                Effect::Call(call) => match call.variables.iter().position(|of| Arc::ptr_eq(of, layout)) {
                    None => None,
                    Some(at) => Some(&self.updated(&effects[..place], call)?[at]),
                },
            };
            if let Some(write) = write {
                write.show(asked, layout.row_count(), &mut memory)?;
            }
        }
        Ok(memory)
    }

    /// Returns the rows that a call of an update function leaves after these effects. Each call
    /// runs once, when the closure first reads what it has changed.
    fn updated<'c>(&self, effects: &[Effect], call: &'c Call) -> Result<&'c [Write]> {
        if let Some(seen) = call.seen.get() {
            return Ok(seen);
        }
        let asked = call.rows.as_deref().map_or(Asked::All, Asked::Rows);
        let read = |layout: &Arc<Layout>| tensor(layout, asked, self.after(effects, layout, asked)?);
        let mut rows = call.variables.iter().map(read).collect::<Result<Vec<_>>>()?;
        self.known.update_functions[call.function].run(&mut rows, &call.gradient)?;
        let rows = rows.into_iter().map(|rows| Write::assign(call.rows.clone(), rows)).collect();
        Ok(call.seen.get_or_init(|| rows))
    }
}

impl fmt::Debug for WorkerContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext").field("worker", &self.worker).finish_non_exhaustive()
    }
}
