//! The placement of a variable of several replicas, and the results of reading and assigning it, by
//! its synchronization and aggregation.
//!
//! A variable is represented by its components, one scalar per replica. Larger variables behave the
//! same for each element. `update` combines a component with an operand: assign, assign_add,
//! assign_sub.

use crate::{
    aggregation::{VariableAggregation, VariableSynchronization},
    collective,
    dtype::Class,
    number::Number,
    op::ReduceOp,
};

use VariableAggregation::{Mean, OnlyFirstReplica, Sum};
use VariableSynchronization::{OnRead, OnWrite};

/// Where a strategy keeps a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A copy for each replica.
    EachReplica,
    /// One copy for all replicas.
    One,
}

impl Placement {
    /// Returns the synchronization of a variable that was created with `requested`. A single copy
    /// behaves as synchronised on writing, whatever was requested.
    pub fn synchronization(self, requested: VariableSynchronization) -> VariableSynchronization {
        match (self, requested) {
            (Placement::One, _) | (Placement::EachReplica, VariableSynchronization::Auto) => OnWrite,
            (Placement::EachReplica, _) => requested,
        }
    }

    /// Returns the number of copies in a process with `replicas` replicas. They are the variable's
    /// local results.
    pub fn local_copies(self, replicas: usize) -> usize {
        match self {
            Placement::EachReplica => replicas,
            Placement::One => 1,
        }
    }
}

/// The variable cannot exist, or the operation on it has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Checks whether variables of several components can have this synchronization and aggregation.
/// They need a synchronization. Only numbers have a sum, and only floats a mean.
pub fn create<T: Number>(
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
) -> Result<(), Refused> {
    let aggregated = match aggregation {
        Sum => T::DTYPE.class() != Class::Bool,
        Mean => T::DTYPE.class() == Class::Float,
        VariableAggregation::None | OnlyFirstReplica => true,
    };
    if aggregated && synchronization != VariableSynchronization::None { Ok(()) } else { Err(Refused) }
}

/// Returns the components after each replica has assigned its operand.
///
/// A variable synchronised on reading changes on each replica separately. A variable synchronised
/// on writing is updated on every replica with the aggregate of the operands. Without aggregation
/// its components would diverge, so more than one replica is refused.
pub fn assign_in_replicas<T: Number>(
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    components: &[T],
    operands: &[T],
    update: impl Fn(T, T) -> T,
) -> Result<Vec<T>, Refused> {
    create::<T>(synchronization, aggregation)?;
    if synchronization == OnRead || operands.len() == 1 {
        return Ok(components.iter().zip(operands).map(|(&component, &operand)| update(component, operand)).collect());
    }
    let operand = aggregate(aggregation, operands)?;
    Ok(components.iter().map(|&component| update(component, operand)).collect())
}

/// Returns the components after one operand has been assigned outside of the replicas.
///
/// Every component is updated with the operand. If the variable is summed on reading, each
/// component is updated with its [share](Number::share), so that the value that is read changes by
/// the operand.
pub fn assign_across<T: Number>(
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    components: &[T],
    operand: T,
    update: impl Fn(T, T) -> T,
) -> Result<Vec<T>, Refused> {
    create::<T>(synchronization, aggregation)?;
    let part = |replica| match (synchronization, aggregation) {
        (OnRead, Sum) => operand.share(components.len(), replica),
        _ => operand,
    };
    Ok(components.iter().enumerate().map(|(replica, &component)| update(component, part(replica))).collect())
}

/// Returns the value that is read outside of the replicas. Inside, each replica reads its
/// component.
pub fn read_across<T: Number>(
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    components: &[T],
) -> Result<T, Refused> {
    create::<T>(synchronization, aggregation)?;
    if synchronization == OnRead { aggregate(aggregation, components) } else { Ok(components[0]) }
}

fn aggregate<T: Number>(aggregation: VariableAggregation, values: &[T]) -> Result<T, Refused> {
    let scalars: Vec<Vec<T>> = values.iter().map(|&value| vec![value]).collect();
    let reduce = |op| collective::reduce(op, &scalars).map(|result| result[0]).map_err(|_| Refused);
    match aggregation {
        VariableAggregation::None => Err(Refused),
        Sum => reduce(ReduceOp::Sum),
        Mean => reduce(ReduceOp::Mean),
        OnlyFirstReplica => Ok(values[0]),
    }
}
