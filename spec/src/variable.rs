//! What reading and assigning a variable of several replicas do, by its synchronization and
//! aggregation.
//!
//! A variable is written here as its components, one scalar a replica: larger ones behave so
//! element by element. `update` is what is done to a component with an operand: assign, assign_add,
//! assign_sub.

use crate::{
    aggregation::{VariableAggregation, VariableSynchronization},
    collective,
    dtype::Class,
    number::Number,
    op::ReduceOp,
};

use VariableAggregation::{Mean, OnlyFirstReplica, Sum};
use VariableSynchronization::OnRead;

/// The variable can not be, or what was asked of it has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Whether there are such variables of several components: none without synchronization, and only
/// those of numbers have a sum, of floats a mean.
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

/// The components after each replica assigned its operand.
///
/// A variable synchronised on reading changes on each replica alone. One synchronised on writing is
/// updated everywhere with the operands' aggregate; without aggregation its components would drift
/// apart, so more than one replica is refused.
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

/// The components after one operand was assigned outside of the replicas.
///
/// Every component is updated with it; of a variable that is summed on reading, each with its
/// [share](Number::share), so that what is read changes by the operand.
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

/// What is read outside of the replicas; inside, each reads its component.
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
