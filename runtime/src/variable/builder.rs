//! The builder of a variable.

use super::Variable;
use crate::{
    Error, ReduceOp, Result, Strategy, Tensor, VariableAggregation, VariableSynchronization, current_strategy,
    execution::context, kind,
};
use consonance_spec::Class;
use std::fmt;

const CALL: &str = "Variable::builder";

/// Builds a [`Variable`]: first the initial value, then the options that differ from the default,
/// then [`build`](VariableBuilder::build).
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, Variable, VariableAggregation};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let largest = strategy.scope(|| {
///     Variable::builder(|| Tensor::from(0i32)).aggregation(VariableAggregation::OnlyFirstReplica).build()
/// })?;
/// strategy.run(|replica| replica.assign(&largest, 7 + replica.replica_id_in_sync_group() as i32))?;
/// assert_eq!(largest.read()?, Tensor::from(7));
/// # Ok::<(), consonance::Error>(())
/// ```
#[must_use]
pub struct VariableBuilder<F> {
    initial_value: F,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
}

impl<F: FnOnce() -> Tensor> VariableBuilder<F> {
    pub(super) fn new(initial_value: F) -> VariableBuilder<F> {
        VariableBuilder {
            initial_value,
            synchronization: VariableSynchronization::default(),
            aggregation: VariableAggregation::default(),
        }
    }

    /// Sets when the components are aggregated. By default on writing.
    pub fn synchronization(mut self, synchronization: VariableSynchronization) -> Self {
        self.synchronization = synchronization;
        self
    }

    /// Sets how the components are aggregated. By default they are not.
    pub fn aggregation(mut self, aggregation: VariableAggregation) -> Self {
        self.aggregation = aggregation;
        self
    }

    /// Makes the variable in the [current strategy](current_strategy). With several workers all of
    /// them make the variable, and it gets the chief's initial value.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica; [`Error::InvalidCall`] for the synchronization
    /// [`None`](VariableSynchronization::None) under a strategy that mirrors variables, a sum of
    /// `bool` or a mean of anything but floats; [`Error::System`] if a device has no memory for its
    /// copy; with several workers also the errors of a
    /// collective, [`Error::Mismatch`] if their variables differ.
    pub fn build(self) -> Result<Variable> {
        self.build_in("Variable::new", current_strategy())
    }

    /// Makes the variable in this strategy. The caller has checked that this is not another
    /// strategy's scope.
    pub(crate) fn build_in(self, call: &'static str, strategy: Strategy) -> Result<Variable> {
        if let Some(replica) = context::replica() {
            let problem =
                format!("called in replica {replica}; create variables outside of `run`, in the strategy's scope");
            return Err(Error::WrongContext { call, problem });
        }
        let resolved = strategy.or_refuse(kind::NEW_VARIABLE, self.resolve(&strategy))?;
        let (synchronization, aggregation, initial_value) = resolved;
        let Some(workers) = strategy.workers() else {
            return Variable::place(strategy, synchronization, aggregation, initial_value, None);
        };
        let spec = format!("{}, {synchronization:?}, {aggregation:?}", initial_value.spec());
        let chiefs = |value| strategy.chiefs(kind::NEW_VARIABLE, ("variable", &spec), value);
        let number: u64 = chiefs(Tensor::from(workers.variables().wrapping_add(1)))?.item()?;
        let initial_value = chiefs(initial_value)?;
        workers.set_variables(number);
        Variable::place(strategy.clone(), synchronization, aggregation, initial_value, Some(number))
    }

    /// Resolves synchronization and aggregation under this strategy, and calls `initial_value`.
    fn resolve(self, strategy: &Strategy) -> Result<(VariableSynchronization, VariableAggregation, Tensor)> {
        let synchronization = match self.synchronization {
            // A single copy behaves as synchronised on writing, whatever was requested.
            _ if !strategy.has_mirrored_variables() => VariableSynchronization::OnWrite,
            VariableSynchronization::OnRead => VariableSynchronization::OnRead,
            VariableSynchronization::None => {
                let expected = format!("Auto, OnWrite or OnRead for the copies of {strategy}");
                return Err(Error::invalid(CALL, "synchronization", expected, "None"));
            }
            VariableSynchronization::Auto | VariableSynchronization::OnWrite => VariableSynchronization::OnWrite,
        };
        let initial_value = (self.initial_value)();
        let dtype = initial_value.dtype();
        let defined = match self.aggregation {
            VariableAggregation::Sum => ReduceOp::Sum.result(dtype).is_some(),
            VariableAggregation::Mean => dtype.class() == Class::Float,
            VariableAggregation::None | VariableAggregation::OnlyFirstReplica => true,
        };
        if !defined {
            let expected = format!("an aggregation that gives {dtype} of {dtype}");
            return Err(Error::invalid(CALL, "aggregation", expected, format!("{:?}", self.aggregation)));
        }
        Ok((synchronization, self.aggregation, initial_value))
    }
}

impl<F> fmt::Debug for VariableBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VariableBuilder")
            .field("synchronization", &self.synchronization)
            .field("aggregation", &self.aggregation)
            .finish_non_exhaustive()
    }
}
