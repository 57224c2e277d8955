//! Variables of several replicas: where they are, and the results of reading and assigning them, by
//! their synchronization and aggregation.
//!
//! A variable is represented by its *components*: the elements that each replica reads, one `Vec`
//! per replica. A shape changes nothing, so there is none.
//!
//! | synchronization | assigned in replicas | assigned across replicas | read across replicas |
//! |---|---|---|---|
//! | on writing | the aggregate of the operands, on all | the operand, on all | any component |
//! | on reading | each operand, on its own replica | the operand, on all; for a sum, a share on each | the aggregate of the components |
//!
//! TensorFlow differs in three places. It lets components diverge where a variable synchronised on
//! writing has no aggregation; here that is refused. It refuses to add to a variable that is summed
//! on reading, or to subtract from it, across replicas. It shares an integer by a division that
//! loses the remainder; here the shares add up to the integer.

use crate::{
    aggregation::{VariableAggregation, VariableSynchronization},
    collective,
    dtype::Class,
    number::Number,
    op::ReduceOp,
};
use std::ops::Range;

use VariableAggregation::{Mean, OnlyFirstReplica, Sum};
use VariableSynchronization::{OnRead, OnWrite};

/// The place where a strategy keeps a variable.
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

/// An update of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The operand becomes its value.
    Assign,
    /// The operand is added.
    AssignAdd,
    /// The operand is subtracted.
    AssignSub,
}

impl Update {
    /// Every update.
    pub const ALL: [Update; 3] = [Update::Assign, Update::AssignAdd, Update::AssignSub];

    /// Returns a component after the update with an operand. Each element is rounded once; integers
    /// wrap.
    ///
    /// # Errors
    /// If the operand has another number of elements, or if truth values are added or subtracted.
    pub fn updated<T: Number>(self, component: &[T], operand: &[T]) -> Result<Vec<T>, Refused> {
        if component.len() != operand.len() {
            return Err(Refused);
        }
        match self {
            Update::Assign => Ok(operand.to_vec()),
            Update::AssignAdd => {
                collective::reduce(ReduceOp::Sum, &[component.to_vec(), operand.to_vec()]).map_err(|_| Refused)
            }
            Update::AssignSub if T::DTYPE.class() == Class::Bool => Err(Refused),
            Update::AssignSub => {
                Ok(component.iter().zip(operand).map(|(component, operand)| component.difference(*operand)).collect())
            }
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

/// A variable of several replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable<T> {
    placement: Placement,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    components: Vec<Vec<T>>,
}

impl<T: Number> Variable<T> {
    /// Returns a variable of `replicas` replicas whose components are all `initial`.
    ///
    /// # Errors
    /// If there is [no such variable](create).
    pub fn new(
        placement: Placement,
        requested: VariableSynchronization,
        aggregation: VariableAggregation,
        replicas: usize,
        initial: &[T],
    ) -> Result<Variable<T>, Refused> {
        let synchronization = placement.synchronization(requested);
        create::<T>(synchronization, aggregation)?;
        Ok(Variable { placement, synchronization, aggregation, components: vec![initial.to_vec(); replicas] })
    }

    /// Returns when the components are synchronised, as [placed](Placement::synchronization).
    pub fn synchronization(&self) -> VariableSynchronization {
        self.synchronization
    }

    /// Returns the elements that each replica reads.
    pub fn components(&self) -> &[Vec<T>] {
        &self.components
    }

    /// Returns the copies in a process that has the replicas `local`.
    pub fn local_results(&self, local: Range<usize>) -> &[Vec<T>] {
        let copies = self.placement.local_copies(local.len());
        &self.components[local][..copies]
    }

    /// Returns the value that is read outside of the replicas: the aggregate of the components, if
    /// they are synchronised on reading.
    ///
    /// # Errors
    /// If a variable synchronised on reading has no aggregation.
    pub fn read_across(&self) -> Result<Vec<T>, Refused> {
        if self.synchronization == OnRead { self.aggregate(&self.components) } else { Ok(self.components[0].clone()) }
    }

    /// Returns the variable after each replica has updated it with its own operand.
    ///
    /// A variable synchronised on reading changes on each replica separately. A variable
    /// synchronised on writing is updated on every replica with the aggregate of the operands.
    ///
    /// # Errors
    /// If the update [is refused](Update::updated), or if several replicas update a variable
    /// synchronised on writing that has no aggregation: its components would diverge.
    pub fn assign_in_replicas(&self, update: Update, operands: &[Vec<T>]) -> Result<Variable<T>, Refused> {
        if self.synchronization == OnRead || operands.len() == 1 {
            return self.updated(update, operands);
        }
        let operand = self.aggregate(operands)?;
        self.updated(update, &vec![operand; self.components.len()])
    }

    /// Returns the variable after an update with one operand outside of the replicas.
    ///
    /// Every component is updated with the operand. If the variable is summed on reading, each
    /// component is updated with its [share](Number::share), so that the value that is read changes
    /// by the operand.
    ///
    /// # Errors
    /// If the update [is refused](Update::updated).
    pub fn assign_across(&self, update: Update, operand: &[T]) -> Result<Variable<T>, Refused> {
        let replicas = self.components.len();
        let part = |replica| match (self.synchronization, self.aggregation) {
            (OnRead, Sum) => operand.iter().map(|element| element.share(replicas, replica)).collect(),
            _ => operand.to_vec(),
        };
        self.updated(update, &(0..replicas).map(part).collect::<Vec<_>>())
    }

    /// Returns the variable whose components have been updated with an operand each.
    fn updated(&self, update: Update, operands: &[Vec<T>]) -> Result<Variable<T>, Refused> {
        assert_eq!(operands.len(), self.components.len(), "an operand for each component");
        let components = self.components.iter().zip(operands);
        let components = components.map(|(component, operand)| update.updated(component, operand));
        Ok(Variable { components: components.collect::<Result<_, _>>()?, ..*self })
    }

    fn aggregate(&self, values: &[Vec<T>]) -> Result<Vec<T>, Refused> {
        let reduce = |op| collective::reduce(op, values).map_err(|_| Refused);
        match self.aggregation {
            VariableAggregation::None => Err(Refused),
            Sum => reduce(ReduceOp::Sum),
            Mean => reduce(ReduceOp::Mean),
            OnlyFirstReplica => Ok(values[0].clone()),
        }
    }
}
