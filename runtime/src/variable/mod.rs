//! Variables: tensors that outlive a run.

mod builder;
#[cfg(feature = "checkpoint")]
mod held;
mod of_strategy;
mod place;
mod replica;
mod update;
mod view;

pub use builder::VariableBuilder;
pub use view::VariableMut;

use crate::{
    Axes, DType, Error, PerReplica, ReduceOp, Result, Strategy, Tensor, VariableAggregation, VariableSynchronization,
    handle::context, strategy::LocalResults,
};
use consonance_spec::Kind;
use place::{Place, Writing};
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
};
use update::Update;

/// A tensor that outlives a run, placed as the strategy in whose scope it was created says.
///
/// # Where its value is
///
/// A variable that is synchronised on writing (the default) has a copy for each *memory* in which
/// the strategy's devices lie, not for each device: all CPU devices of a process share the host's
/// memory, so that there is one copy, under [`MirroredStrategy`](crate::MirroredStrategy) as under
/// [`CentralStorageStrategy`](crate::CentralStorageStrategy). Copies of one process cannot come
/// apart, and an update is done once. Several workers have a copy each; outside of replicas each
/// writes its own, so all of them are to write the same.
///
/// A variable that is synchronised on reading ([`VariableSynchronization::OnRead`]) has a component
/// for each replica, of its own: counts and sums that replicas keep without waiting for each other.
/// Only [`MirroredStrategy`](crate::MirroredStrategy) has such: elsewhere every variable has one
/// copy, which is as one that is synchronised on writing whatever is asked.
///
/// # What each call does
///
/// With operands `x0`, `x1`, … of the replicas, or `x` outside of them:
///
/// | synchronised | [`ReplicaContext::assign`](crate::ReplicaContext::assign) | [`assign`](Variable::assign) | [`read`](Variable::read) in a replica | `read` outside |
/// |---|---|---|---|---|
/// | on writing | every copy becomes the aggregate of `x0`, `x1`, … | every copy becomes `x` | the value | the value |
/// | on reading | the replica's component becomes its own operand | every component becomes `x`; its share of `x` where they are summed | its component | the aggregate of the components |
///
/// The aggregate is the sum, the mean, or the first replica's, as [`VariableAggregation`] says;
/// without aggregation what would need one is an error. `assign_add` and `assign_sub` do the same
/// with sums and differences; integers wrap.
///
/// A share is the operand divided by the number of replicas; of integers, whole parts that add up
/// to it, the larger ones on the first replicas.
///
/// # Memory
///
/// Reading shares the elements and copies nothing. Writing is in place, unless somebody still holds
/// what was read or assigned: then the elements are copied first, so that nobody sees them change.
/// Cloning gives another handle to the same variable. dtype and shape never change.
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
///     Ok::<_, consonance::Error>((weights, examples))
/// })??;
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
    /// No other variable of this process has this number.
    id: u64,
    /// By what number the workers know it, where there are several; else `id`.
    number: u64,
    strategy: Strategy,
    /// Resolved: `OnWrite` or `OnRead`.
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    dtype: DType,
    shape: Vec<usize>,
    /// Synchronised on writing: the copy of each memory. On reading: the component of each replica
    /// of this process.
    places: Vec<Place>,
}

impl Variable {
    /// A variable of the [current strategy](crate::current_strategy), synchronised on writing,
    /// without aggregation.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica: create variables outside of [`run`](Strategy::run).
    ///
    /// ```
    /// use consonance::{OneDeviceStrategy, Tensor, Variable};
    /// let strategy = OneDeviceStrategy::new("cpu:0")?;
    /// let bias = strategy.scope(|| Variable::new(Tensor::from(0.5f32)))??;
    /// assert_eq!(bias.read()?, Tensor::from(0.5f32));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn new(initial_value: Tensor) -> Result<Variable> {
        Variable::builder(|| initial_value).build()
    }

    /// A variable that is synchronised or aggregated in another way; `initial_value` is called
    /// once.
    pub fn builder<F: FnOnce() -> Tensor>(initial_value: F) -> VariableBuilder<F> {
        VariableBuilder::new(initial_value)
    }

    fn place(
        strategy: Strategy,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
        initial_value: Tensor,
        number: Option<u64>,
    ) -> Variable {
        static VARIABLES: Mutex<u64> = Mutex::new(0);
        let id = {
            let mut variables = VARIABLES.lock().expect("nobody panics counting variables");
            *variables += 1;
            *variables
        };
        let places = match synchronization {
            VariableSynchronization::OnRead => strategy.local_replicas().len(),
            // All devices of a process lie in one memory.
            _ => 1,
        };
        let (dtype, shape) = (initial_value.dtype(), initial_value.shape().to_vec());
        // Components share memory until one is written.
        let places = (0..places).map(|_| Place::new(initial_value.clone())).collect();
        let number = number.unwrap_or(id);
        Variable(Arc::new(Inner { id, number, strategy, synchronization, aggregation, dtype, shape, places }))
    }

    /// The number of the variable, which no other one of this process has.
    #[cfg(feature = "checkpoint")]
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The strategy that placed it.
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The size of each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// When its components are brought together: `OnWrite` or `OnRead`, never `Auto`.
    pub fn synchronization(&self) -> VariableSynchronization {
        self.0.synchronization
    }

    /// How they are.
    pub fn aggregation(&self) -> VariableAggregation {
        self.0.aggregation
    }

    /// The value; of a variable that is synchronised on reading this replica's component, or
    /// outside of replicas the aggregate of all: where there are several workers, a collective that
    /// each of them calls. The elements are shared: a value that is kept makes the next write copy
    /// them.
    ///
    /// # Errors
    /// Of a variable that is synchronised on reading: [`Error::InvalidCall`] outside of replicas if
    /// it has no aggregation, [`Error::WrongContext`] in another strategy's scope or replica. Of
    /// any: [`Error::WrongContext`] in a [`Strategy::update`] of the same variable,
    /// [`Error::Timeout`] if one on another thread does not end.
    pub fn read(&self) -> Result<Tensor> {
        self.read_part(Kind::ReadVariable, |value| Ok(value.clone()))
    }

    /// Some rows of the [value](Variable::read): the entries `rows` along axis 0. Of a large
    /// variable that is aggregated on reading no more than these rows are aggregated.
    ///
    /// # Errors
    /// As [`read`](Variable::read), and [`Error::InvalidCall`] for a scalar, or rows that are not
    /// there.
    ///
    /// ```
    /// use consonance::{Tensor, Variable};
    /// let table = Variable::new(Tensor::from([[1, 2], [3, 4], [5, 6]]))?;
    /// assert_eq!(table.read_rows(1..2)?, Tensor::from([[3, 4]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn read_rows(&self, rows: Range<usize>) -> Result<Tensor> {
        let kind = Kind::ReadRows;
        self.read_part(kind, |value| value.rows_for(kind.name(), rows.clone()))
    }

    /// Sets the value, from outside of replicas. The elements of `value` are shared, not copied.
    /// Where there are several workers each of them sets its own copy: to the same value, or the
    /// copies come apart.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if dtype or shape are not the variable's; [`Error::WrongContext`] in
    /// a replica, where [`ReplicaContext::assign`](crate::ReplicaContext::assign) is meant, and in
    /// another strategy's scope; otherwise as [`read`](Variable::read). The value is then as
    /// before.
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

    /// Calls `update` with each copy or component, on behalf of `call`, which has checked the
    /// context.
    pub(crate) fn update_copies<R>(
        &self,
        call: &'static str,
        mut update: impl FnMut(&mut VariableMut<'_>) -> Result<R>,
    ) -> Result<Vec<R>> {
        self.write_all(call)?.iter_mut().map(|writing| update(&mut VariableMut::new(writing))).collect()
    }

    fn read_part(&self, kind: Kind, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let call = kind.name();
        if self.0.synchronization == VariableSynchronization::OnWrite {
            return part(&self.0.places[0].read(call, self.strategy())?);
        }
        if let Some(replica) = context::replica_of(self.strategy()) {
            let place = replica - self.strategy().local_replicas().start;
            return part(&self.0.places[place].read(call, self.strategy())?);
        }
        let allowed = self.require_across(call, "a replica of the variable's own strategy reads its component");
        let op = allowed.and_then(|()| match self.0.aggregation {
            VariableAggregation::Sum => Ok(Some(ReduceOp::Sum)),
            VariableAggregation::Mean => Ok(Some(ReduceOp::Mean)),
            VariableAggregation::OnlyFirstReplica => Ok(None),
            VariableAggregation::None => Err(self.without_aggregation(call, "to be read outside of replicas")),
        });
        let Some(op) = self.strategy().or_refuse(kind, op)? else {
            let first = self.0.places[0].read(call, self.strategy()).and_then(|first| part(&first));
            let first = self.strategy().or_refuse(kind, first)?;
            let spec = first.spec();
            return self.strategy().chiefs(kind, ("variable", &spec), first);
        };
        // All at once, so that no assignment from another thread is seen in some components alone.
        let components = self.write_all(call).and_then(|all| all.iter().map(|writing| part(writing)).collect());
        let components = self.strategy().or_refuse(kind, components)?;
        self.strategy().reduce_along(call, kind, op, &PerReplica::new(components), &Axes::default(), "")
    }

    fn update_across(&self, call: &'static str, update: Update, operand: Tensor) -> Result<()> {
        self.require_across(call, "ReplicaContext has calls of the same name for replicas")?;
        self.check_operand(call, update, &operand)?;
        let mut places = self.write_all(call)?;
        let (parts, first) = (self.strategy().num_replicas_in_sync(), self.strategy().local_replicas().start);
        let shared = self.is_shared();
        for (replica, writing) in (first..).zip(places.iter_mut()) {
            let part = if shared { update::share(&operand, parts, replica)? } else { operand.clone() };
            update.apply(writing, part);
        }
        Ok(())
    }

    /// Whether each replica has a part of the value, which is the sum of them.
    fn is_shared(&self) -> bool {
        self.0.synchronization == VariableSynchronization::OnRead
            && self.0.aggregation == VariableAggregation::Sum
            && self.strategy().num_replicas_in_sync() > 1
    }

    /// Checks that this is no replica, nor another strategy's scope. A variable of the default
    /// strategy belongs to all scopes.
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

    /// Checks that `update` can be done with `operand`.
    fn check_operand(&self, call: &'static str, update: Update, operand: &Tensor) -> Result<()> {
        if (self.dtype(), self.shape()) != (operand.dtype(), operand.shape()) {
            return Err(Error::invalid(call, "value", self.spec(), operand.spec()));
        }
        update.check(call, self.dtype())
    }

    fn without_aggregation(&self, call: &'static str, what: &str) -> Error {
        let expected = format!("an aggregation (sum, mean or only_first_replica) of the variable {what}");
        Error::invalid(call, "aggregation", expected, "none; give one to Variable::builder")
    }

    /// The right to write every copy or component, always taken in the same order.
    fn write_all(&self, call: &'static str) -> Result<Vec<Writing<'_>>> {
        self.0.places.iter().map(|place| place.write(call, self.strategy())).collect()
    }

    /// dtype and shape as users read them: `f32[2, 3]`.
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

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { id, strategy, synchronization, aggregation, .. } = &*self.0;
        write!(f, "Variable({id}, {}, {synchronization:?}, {aggregation:?}, {strategy})", self.spec())
    }
}

/// Each replica's component of a variable that is synchronised on reading; else the value on each
/// device that has variables.
///
/// # Panics
/// In an update of the same variable, and if one on another thread does not end before the
/// strategy's timeout.
impl LocalResults for Variable {
    type Value = Tensor;

    fn local_results(&self) -> Vec<Tensor> {
        let read = |place: &Place| match place.read("Strategy::local_results", self.strategy()) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        };
        match self.0.synchronization {
            VariableSynchronization::OnRead => self.0.places.iter().map(read).collect(),
            _ => vec![read(&self.0.places[0]); self.strategy().parameter_devices().len()],
        }
    }
}
