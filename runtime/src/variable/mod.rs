//! Variables: tensors that outlive a run.

mod builder;
mod copies;
mod display;
#[cfg(feature = "checkpoint")]
pub(crate) mod exclusive;
mod strategy;
mod on_device;
mod place;
mod replica;
mod scatter;
pub(crate) mod update;
mod verification;
mod view;

pub use builder::VariableBuilder;
pub use view::VariableMut;

use crate::{
    Axes, DType, Error, PerReplica, ReduceOp, Result, Strategy, Tensor, VariableAggregation, VariableSynchronization,
    execution::context, kind, strategy::LocalResults,
};
use consonance_kernels::memory::Space;
use consonance_spec::Kind;
use copies::change_component;
use place::{Place, Writing};
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};
use update::Update;

/// A tensor that outlives a run. The strategy in whose scope it was created places it.
///
/// # Where its value is
///
/// A variable that is synchronised on writing (the default) has a copy for each *memory* of the
/// strategy's devices, not for each device. All CPU devices of a process share the host's memory,
/// so there is one copy, under [`MirroredStrategy`](crate::MirroredStrategy) and
/// [`CentralStorageStrategy`](crate::CentralStorageStrategy) alike. All logical devices of a GPU
/// share its memory, too. An update is computed once, and each copy gets its bits, so that copies
/// of one process cannot diverge. With several workers each has a copy. Outside of replicas each
/// worker writes its own copy, so all must write the same value.
///
/// A read returns a tensor in the memory of the reader: in a replica that of its device, outside of
/// replicas the host's. It copies the elements only if the variable has no copy there. An operand
/// may lie in any memory, if the strategy has a GPU.
///
/// A variable that is synchronised on reading ([`VariableSynchronization::OnRead`]) has a component
/// for each replica, in the memory of its device. Use it for counts and sums that replicas keep
/// without waiting for each other. Only strategies that mirror variables
/// ([`MirroredStrategy`](crate::MirroredStrategy) and
/// [`MultiWorkerMirroredStrategy`](crate::MultiWorkerMirroredStrategy)) have components. In the
/// others every variable has one copy and behaves as synchronised on writing, whatever was
/// requested.
///
/// # What each call does
///
/// Replicas pass the operands `x0`, `x1`, …; a call outside of replicas passes `x`:
///
/// | synchronised | [`ReplicaContext::assign`](crate::ReplicaContext::assign) | [`assign`](Variable::assign) | [`read`](Variable::read) in a replica | `read` outside |
/// |---|---|---|---|---|
/// | on writing | every copy becomes the aggregate of `x0`, `x1`, … | every copy becomes `x` | the value | the value |
/// | on reading | the replica's component becomes its own operand | every component becomes `x`; its share of `x` where they are summed | its component | the aggregate of the components |
///
/// The aggregate is the sum, the mean, or the first replica's value: see [`VariableAggregation`].
/// Without aggregation, a call that needs an aggregate is an error. `assign_add` and `assign_sub`
/// add and subtract in the same way; integers wrap.
///
/// A share is the operand divided by the number of replicas. Integers are split into whole parts
/// that add up to the operand; the first replicas get the larger parts.
///
/// # Memory
///
/// Reading shares the elements and copies nothing between tensors of one memory. Writing is in
/// place in host memory, unless a tensor that was read or assigned still shares the elements: then
/// they are copied first, so that the tensor does not change. In the memory of a GPU the new value
/// gets new memory, and the old one is reused after the last tensor that shares it. Cloning returns
/// another handle to the same variable. dtype and shape never change.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, Variable, VariableAggregation, VariableSynchronization};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let (weights, examples) = strategy.scope(|| {
///     let weights = Variable::new(Tensor::from([1.0f32, 2.0]))?;
///     let examples = Variable::builder(|| Tensor::from(0i64))
///         .synchronization(VariableSynchronization::OnRead)
///         .aggregation(VariableAggregation::Sum)
///         .build()?;
///     Ok((weights, examples))
/// })?;
/// strategy.run(|replica| {
///     assert_eq!(weights.read()?, Tensor::from([1.0f32, 2.0]));
///     replica.assign_add(&examples, 10 + replica.replica_id_in_sync_group() as i64)
/// })?;
/// assert_eq!(examples.read()?, Tensor::from(21i64));
/// weights.assign_sub([0.5f32, 0.5])?;
/// assert_eq!(strategy.local_results(&weights), [Tensor::from([0.5f32, 1.5]), Tensor::from([0.5f32, 1.5])]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone)]
pub struct Variable(Arc<Inner>);

struct Inner {
    /// Unique in this process.
    id: u64,
    /// The number that all workers use for the variable. Without several workers it is `id`.
    number: u64,
    strategy: Strategy,
    /// Resolved: `OnWrite` or `OnRead`.
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    dtype: DType,
    shape: Vec<usize>,
    /// Synchronised on writing: one copy per memory, the host's first. On reading: one component
    /// per replica of this process, in host memory.
    places: Vec<Place>,
    /// Whether the copies and the replicas' devices have no memory but the host's.
    is_on_host: bool,
}

impl Variable {
    /// Creates a variable of the [current strategy](crate::current_strategy), synchronised on
    /// writing, without aggregation.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica: create variables outside of [`run`](Strategy::run).
    ///
    /// ```
    /// use consonance::{OneDeviceStrategy, Tensor, Variable};
    /// let strategy = OneDeviceStrategy::new("cpu:0")?;
    /// let bias = strategy.scope(|| Variable::new(Tensor::from(0.5f32)))?;
    /// assert_eq!(bias.read()?, Tensor::from(0.5f32));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn new(initial_value: Tensor) -> Result<Variable> {
        Variable::builder(|| initial_value).build()
    }

    /// Starts a variable with other synchronization or aggregation. `initial_value` is called once.
    pub fn builder<F: FnOnce() -> Tensor>(initial_value: F) -> VariableBuilder<F> {
        VariableBuilder::new(initial_value)
    }

    fn place(
        strategy: Strategy,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
        initial_value: Tensor,
        number: Option<u64>,
    ) -> Result<Variable> {
        static VARIABLES: Mutex<u64> = Mutex::new(0);
        let id = {
            let mut variables = VARIABLES.lock().expect("nobody panics counting variables");
            *variables += 1;
            *variables
        };
        let spaces = match synchronization {
            VariableSynchronization::OnRead => strategy.worker_devices().iter().map(|device| device.space()).collect(),
            _ => strategy.parameter_spaces(),
        };
        let (dtype, shape) = (initial_value.dtype(), initial_value.shape().to_vec());
        // Components share memory until one is written.
        let placed =
            |&space: &Space| Ok(Place::new(initial_value.clone().into_space(kind::NEW_VARIABLE.name(), space)?));
        let places = spaces.iter().map(placed).collect::<Result<_>>()?;
        let devices = strategy.worker_devices().iter().map(|device| device.space());
        let is_on_host = spaces.iter().copied().chain(devices).all(|space| space == Space::Host);
        let number = number.unwrap_or(id);
        let inner = Inner { id, number, strategy, synchronization, aggregation, dtype, shape, places, is_on_host };
        Ok(Variable(Arc::new(inner)))
    }

    /// Returns the number of the variable, unique in this process.
    #[cfg(feature = "checkpoint")]
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the strategy that placed the variable.
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the size of each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Returns when the components are aggregated: `OnWrite` or `OnRead`, never `Auto`.
    pub fn synchronization(&self) -> VariableSynchronization {
        self.0.synchronization
    }

    /// Returns how the components are aggregated.
    pub fn aggregation(&self) -> VariableAggregation {
        self.0.aggregation
    }

    /// Returns the value. For a variable that is synchronised on reading this is the component of
    /// this replica, and outside of replicas the aggregate of all components; with several workers
    /// the latter is a collective that each of them calls. The elements are shared: keeping the
    /// result makes the next write copy them. In a replica on a GPU the result lies in the GPU's
    /// memory, outside of replicas always in the host's.
    ///
    /// # Errors
    /// For a variable that is synchronised on reading: [`Error::InvalidCall`] outside of replicas
    /// if it has no aggregation, [`Error::WrongContext`] in another strategy's scope or replica.
    /// For any variable: [`Error::WrongContext`] in a [`Strategy::update`] of it,
    /// [`Error::Timeout`] if an update on another thread does not end, [`Error::System`] if a GPU
    /// cannot be read.
    pub fn read(&self) -> Result<Tensor> {
        self.read_part(kind::READ_VARIABLE, |value| Ok(value.clone()))
    }

    /// Returns the entries `rows` along axis 0 of the [value](Variable::read). If the read
    /// aggregates components, it aggregates these rows only.
    ///
    /// # Errors
    /// As [`read`](Variable::read), and [`Error::InvalidCall`] for a scalar, or rows out of range.
    ///
    /// ```
    /// use consonance::{Tensor, Variable};
    /// let table = Variable::new(Tensor::from([[1, 2], [3, 4], [5, 6]]))?;
    /// assert_eq!(table.read_rows(1..2)?, Tensor::from([[3, 4]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn read_rows(&self, rows: Range<usize>) -> Result<Tensor> {
        let kind = kind::READ_ROWS;
        self.read_part(kind, |value| value.rows_for(kind.name(), rows.clone()))
    }

    /// Sets the value, from outside of replicas. The elements of `value` are shared, not copied.
    /// With several workers each sets its own copy. Set all to the same value, or the copies
    /// diverge.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if dtype or shape are not the variable's; [`Error::WrongContext`] in
    /// a replica, where [`ReplicaContext::assign`](crate::ReplicaContext::assign) is the call to
    /// use, and in another strategy's scope; otherwise as [`read`](Variable::read). On an error the
    /// value does not change.
    pub fn assign(&self, value: impl Into<Tensor>) -> Result<()> {
        self.update_across("Variable::assign", Update::Assign, value.into())
    }

    /// Adds to the value, from outside of replicas.
    ///
    /// # Errors
    /// As [`assign`](Variable::assign), and [`Error::InvalidCall`] for a variable of `bool`.
    pub fn assign_add(&self, value: impl Into<Tensor>) -> Result<()> {
        self.update_across("Variable::assign_add", Update::AssignAdd, value.into())
    }

    /// Subtracts from the value, from outside of replicas.
    ///
    /// # Errors
    /// As [`assign_add`](Variable::assign_add).
    pub fn assign_sub(&self, value: impl Into<Tensor>) -> Result<()> {
        self.update_across("Variable::assign_sub", Update::AssignSub, value.into())
    }

    /// Calls `update` with each copy or component. The caller `call` has checked the context.
    pub(crate) fn update_copies<R>(
        &self,
        call: &'static str,
        mut update: impl FnMut(&mut VariableMut<'_>) -> Result<R>,
    ) -> Result<Vec<R>> {
        let on_host = self.is_on_host();
        if self.0.synchronization == VariableSynchronization::OnWrite {
            return self.change(call, |value| update(&mut VariableMut::new(value, on_host))).map(|result| vec![result]);
        }
        let mut components = self.write_all(call)?;
        let update =
            |component| change_component(call, component, |value| update(&mut VariableMut::new(value, on_host)));
        components.iter_mut().map(|component| &mut **component).map(update).collect()
    }

    fn read_part(&self, kind: Kind, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let call = kind.name();
        if self.0.synchronization == VariableSynchronization::OnWrite {
            if self.is_on_host() {
                return part(&self.0.places[0].read(call, self.strategy())?);
            }
            let space = self.reader_space();
            return part(&self.copy_in(space).read(call, self.strategy())?)?.into_space(call, space);
        }
        if let Some(replica) = context::replica_of(self.strategy()) {
            let place = replica - self.strategy().local_replicas().start;
            return part(&self.0.places[place].read(call, self.strategy())?);
        }
        let allowed = self.require_across(call, "a replica of the variable's own strategy reads its component");
        let op = allowed.and_then(|()| self.aggregation_op(call, "to be read outside of replicas"));
        let Some(op) = self.strategy().or_refuse(kind, op)? else {
            let first = self.0.places[0].read(call, self.strategy()).and_then(|first| part(&first));
            let first = first.and_then(|first| first.into_space(call, Space::Host));
            let first = self.strategy().or_refuse(kind, first)?;
            let spec = first.spec();
            return self.strategy().chiefs(kind, ("variable", &spec), first);
        };
        // Take all components first, so that an assignment from another thread is seen in all of
        // them or in none.
        let components = self.write_all(call).and_then(|all| all.iter().map(|writing| part(writing)).collect());
        let components = self.strategy().or_refuse(kind, components)?;
        let components = PerReplica::new(components);
        let whole = self.strategy().reduce_along(call, kind, op, &components, &Axes::default(), "")?;
        whole.into_space(call, Space::Host)
    }

    fn update_across(&self, call: &'static str, update: Update, operand: Tensor) -> Result<()> {
        let allowed = self.require_across(call, "ReplicaContext has calls of the same name for replicas");
        let checked = allowed.and_then(|()| self.check_operand(call, update, &operand)).map(|()| operand);
        let operand = self.verified(update.kind(), checked)?;
        if self.0.synchronization == VariableSynchronization::OnWrite {
            return self.change(call, |value| update.apply(value, operand));
        }
        let mut places = self.write_all(call)?;
        let (parts, first) = (self.strategy().num_replicas_in_sync(), self.strategy().local_replicas().start);
        let shared = self.is_shared();
        for (replica, writing) in (first..).zip(places.iter_mut()) {
            let part = if shared { update::share(&operand, parts, replica)? } else { operand.clone() };
            update.apply(writing, part)?;
        }
        Ok(())
    }

    /// Returns whether the copies and the replicas' devices have no memory but the host's.
    fn is_on_host(&self) -> bool {
        self.0.is_on_host
    }

    /// Returns whether the value is the sum of the replicas' components.
    fn is_shared(&self) -> bool {
        self.0.synchronization == VariableSynchronization::OnRead
            && self.0.aggregation == VariableAggregation::Sum
            && self.strategy().num_replicas_in_sync() > 1
    }

    /// Checks that the caller is neither in a replica nor in another strategy's scope. A variable
    /// of the default strategy is allowed in all scopes.
    fn require_across(&self, call: &'static str, in_replica: &str) -> Result<()> {
        if let Some(replica) = context::replica() {
            let problem = format!("called in replica {replica}, but it is of the cross-replica context; {in_replica}");
            return Err(Error::WrongContext { call, problem });
        }
        if self.strategy().is_default() {
            return Ok(());
        }
        context::require_cross_replica(call, self.strategy())
    }

    /// Checks that `operand` is valid for `update`.
    fn check_operand(&self, call: &'static str, update: Update, operand: &Tensor) -> Result<()> {
        if (self.dtype(), self.shape()) != (operand.dtype(), operand.shape()) {
            return Err(update::other_operand(call, self.spec(), self.dtype(), operand));
        }
        match self.is_on_host() {
            true => update.check(call, operand),
            false => update.check_dtype(call, operand.dtype()),
        }
    }

    /// Returns the operation that aggregates the replicas' values, `None` if the first replica's is
    /// the value.
    fn aggregation_op(&self, call: &'static str, what: &str) -> Result<Option<ReduceOp>> {
        match self.0.aggregation {
            VariableAggregation::Sum => Ok(Some(ReduceOp::Sum)),
            VariableAggregation::Mean => Ok(Some(ReduceOp::Mean)),
            VariableAggregation::OnlyFirstReplica => Ok(None),
            VariableAggregation::None => Err(self.without_aggregation(call, what)),
        }
    }

    fn without_aggregation(&self, call: &'static str, what: &str) -> Error {
        let expected = format!("an aggregation (sum, mean or only_first_replica) of the variable {what}");
        Error::invalid(call, "aggregation", expected, "none; give one to Variable::builder")
    }

    /// Takes every copy or component for writing, always in the same order.
    fn write_all(&self, call: &'static str) -> Result<Vec<Writing<'_>>> {
        self.0.places.iter().map(|place| place.write(call, self.strategy())).collect()
    }

    /// Formats dtype and shape for messages: `f32[2, 3]`.
    fn spec(&self) -> String {
        format!("{}{:?}", self.0.dtype, self.0.shape)
    }
}

/// Two handles to the same variable are equal.
impl PartialEq for Variable {
    fn eq(&self, other: &Variable) -> bool {
        self.0.id == other.0.id
    }
}

/// Returns each local replica's component if the variable is synchronised on reading; else the
/// value once for each device that holds variables. All lie in host memory.
///
/// # Panics
/// In an update of the same variable, if an update on another thread does not end before the
/// strategy's timeout, and if a device cannot be read.
impl LocalResults for Variable {
    type Value = Tensor;

    fn local_results(&self) -> Vec<Tensor> {
        let call = "Strategy::local_results";
        let read = |place: &Place| match place.read(call, self.strategy()).and_then(|value| value.to_host()) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        };
        match self.0.synchronization {
            VariableSynchronization::OnRead => self.0.places.iter().map(read).collect(),
            _ => vec![read(self.copy_in(Space::Host)); self.strategy().parameter_devices().len()],
        }
    }
}
