//! What a variable holds, as the spec says: the spec's rules for scalars, for every element.

use crate::sample::Sample;
use consonance_spec::{
    Class, ReduceOp, VariableAggregation, VariableSynchronization, for_each_dtype,
    number::Number,
    variable::{self, Refused},
};

/// What is done to a variable.
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
    /// A variable whose components are all `initial`.
    ///
    /// # Errors
    /// If there is none such.
    pub fn new(
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
        replicas: usize,
        initial: &[T],
    ) -> Result<Model<T>, Refused> {
        variable::create::<T>(synchronization, aggregation)?;
        Ok(Model { synchronization, aggregation, components: vec![initial.to_vec(); replicas] })
    }

    /// Each replica's elements.
    pub fn components(&self) -> &[Vec<T>] {
        &self.components
    }

    /// What is read outside of the replicas.
    ///
    /// # Errors
    /// If that has no meaning.
    pub fn read_across(&self) -> Result<Vec<T>, Refused> {
        let read = |elements: &[T]| variable::read_across(self.synchronization, self.aggregation, elements);
        // What has no meaning has none for no elements either.
        read(&vec![T::default(); self.components.len()])?;
        (0..self.components[0].len()).map(|at| read(&column(&self.components, at))).collect()
    }

    /// Each replica updates with its operand.
    ///
    /// # Errors
    /// If that has no meaning; the components are then as before.
    pub fn assign_in_replicas(&mut self, update: Update, operands: &[Vec<T>]) -> Result<(), Refused> {
        let (synchronization, aggregation) = (self.synchronization, self.aggregation);
        self.assign(update, operands, |components, operands| {
            let update = |a, b| T::update(update, a, b);
            variable::assign_in_replicas(synchronization, aggregation, components, operands, update)
        })
    }

    /// One operand outside of the replicas.
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

    /// Updates element by element: all components of one at once.
    fn assign(
        &mut self,
        update: Update,
        operands: &[Vec<T>],
        assigned: impl Fn(&[T], &[T]) -> Result<Vec<T>, Refused>,
    ) -> Result<(), Refused> {
        if update != Update::Assign && T::DTYPE.class() == Class::Bool {
            return Err(Refused);
        }
        // What has no meaning has none for no elements either.
        let nothing = vec![T::default(); self.components.len()];
        assigned(&nothing, &nothing[..operands.len()])?;
        for at in 0..self.components[0].len() {
            let after = assigned(&column(&self.components, at), &column(operands, at))?;
            self.components.iter_mut().zip(after).for_each(|(component, element)| component[at] = element);
        }
        Ok(())
    }
}

/// Element `at` of each replica.
fn column<T: Copy>(replicas: &[Vec<T>], at: usize) -> Vec<T> {
    replicas.iter().map(|elements| elements[at]).collect()
}

/// An element type with the difference of two elements, rounded once.
pub trait Difference: Sample {
    /// `a - b`; integers wrap.
    fn difference(a: Self, b: Self) -> Self;

    /// `a` updated with `b`.
    fn update(update: Update, a: Self, b: Self) -> Self {
        match update {
            Update::Assign => b,
            Update::AssignAdd => Self::finish(ReduceOp::Sum, Self::combine(ReduceOp::Sum, a.widen(), b.widen()), 2),
            Update::AssignSub => Self::difference(a, b),
        }
    }
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
    (Float $a:ident, $b:ident) => { Self::finish(ReduceOp::Sum, $a.widen() - $b.widen(), 2) };
    ($integer:ident $a:ident, $b:ident) => { $a.wrapping_sub($b) };
}

for_each_dtype!(difference);
