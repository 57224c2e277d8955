//! A model of a variable's value: the spec's rules for scalars, applied to every element.

use crate::sample::Sample;
use consonance_spec::{
    Class, ReduceOp, VariableAggregation, VariableSynchronization, for_each_dtype,
    number::{Number, Reduction},
    variable::{self, Refused},
};

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
}

/// A variable of several replicas.
pub struct Model<T> {
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    /// Each replica's elements.
    components: Vec<Vec<T>>,
}

impl<T: Difference> Model<T> {
    /// Returns a variable whose components are all `initial`.
    ///
    /// # Errors
    /// If the spec has no such variable.
    pub fn new(
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
        replicas: usize,
        initial: &[T],
    ) -> Result<Model<T>, Refused> {
        variable::create::<T>(synchronization, aggregation)?;
        Ok(Model { synchronization, aggregation, components: vec![initial.to_vec(); replicas] })
    }

    /// Returns each replica's elements.
    pub fn components(&self) -> &[Vec<T>] {
        &self.components
    }

    /// Returns the value that a read outside the replicas returns.
    ///
    /// # Errors
    /// If the spec does not define the read.
    pub fn read_across(&self) -> Result<Vec<T>, Refused> {
        let read = |elements: &[T]| variable::read_across(self.synchronization, self.aggregation, elements);
        // An undefined read is refused even if the variable has no elements.
        read(&vec![T::default(); self.components.len()])?;
        (0..self.components[0].len()).map(|at| read(&column(&self.components, at))).collect()
    }

    /// Updates in each replica with the replica's own operand.
    ///
    /// # Errors
    /// If the spec does not define the update. The components are then unchanged.
    pub fn assign_in_replicas(&mut self, update: Update, operands: &[Vec<T>]) -> Result<(), Refused> {
        let (synchronization, aggregation) = (self.synchronization, self.aggregation);
        self.assign(update, operands, |components, operands| {
            let update = |a, b| T::update(update, a, b);
            variable::assign_in_replicas(synchronization, aggregation, components, operands, update)
        })
    }

    /// Updates outside the replicas, with one operand.
    ///
    /// # Errors
    /// As [`assign_in_replicas`](Model::assign_in_replicas).
    pub fn assign_across(&mut self, update: Update, operand: &[T]) -> Result<(), Refused> {
        let (synchronization, aggregation) = (self.synchronization, self.aggregation);
        self.assign(update, &[operand.to_vec()], |components, operand| {
            let update = |a, b| T::update(update, a, b);
            variable::assign_across(synchronization, aggregation, components, operand[0], update)
        })
    }

    /// Updates element by element, all components of an element at once.
    fn assign(
        &mut self,
        update: Update,
        operands: &[Vec<T>],
        assigned: impl Fn(&[T], &[T]) -> Result<Vec<T>, Refused>,
    ) -> Result<(), Refused> {
        if update != Update::Assign && T::DTYPE.class() == Class::Bool {
            return Err(Refused);
        }
        // An undefined update is refused even if the variable has no elements.
        let nothing = vec![T::default(); self.components.len()];
        assigned(&nothing, &nothing[..operands.len()])?;
        for at in 0..self.components[0].len() {
            let after = assigned(&column(&self.components, at), &column(operands, at))?;
            self.components.iter_mut().zip(after).for_each(|(component, element)| component[at] = element);
        }
        Ok(())
    }
}

/// Returns element `at` of each replica.
fn column<T: Copy>(replicas: &[Vec<T>], at: usize) -> Vec<T> {
    replicas.iter().map(|elements| elements[at]).collect()
}

/// An element type with the difference of two elements, rounded once.
pub trait Difference: Sample {
    /// Returns `a - b`. Integers wrap.
    fn difference(a: Self, b: Self) -> Self;

    /// Returns `a` updated with `b`.
    fn update(update: Update, a: Self, b: Self) -> Self {
        match update {
            Update::Assign => b,
            Update::AssignAdd => sum::<Self>().fold(&[a, b]).expect("two elements"),
            Update::AssignSub => Self::difference(a, b),
        }
    }
}

fn sum<T: Number>() -> Reduction<T, T::Acc, T> {
    T::reduction(ReduceOp::Sum).expect("a number has a sum")
}

macro_rules! difference {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(impl Difference for $type {
            fn difference(a: $type, b: $type) -> $type {
                difference!($class a, b)
            }
        })*
    };
    (Bool $a:ident, $b:ident) => { unreachable!("truth values have no difference: {} - {}", $a, $b) };
    // In the accumulation type, then rounded.
    (Float $a:ident, $b:ident) => {{
        let Reduction { widen, finish, .. } = sum::<Self>();
        finish(widen($a) - widen($b), 2)
    }};
    ($integer:ident $a:ident, $b:ident) => { $a.wrapping_sub($b) };
}

for_each_dtype!(difference);
