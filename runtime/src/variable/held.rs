//! Variables that are held while several of them are set together.

use super::{Variable, Writing};
use crate::{Result, Tensor, VariableAggregation, VariableSynchronization};
use consonance_spec::for_each_dtype;

/// A variable that nobody else reads or writes until this is dropped.
pub(crate) struct Held<'v> {
    variable: &'v Variable,
    places: Vec<Writing<'v>>,
}

impl Variable {
    /// Holds the variable, to set it as a whole.
    ///
    /// # Errors
    /// [`Error::WrongContext`](crate::Error::WrongContext) in a replica or in another strategy's
    /// scope, or if this thread holds it already; [`Error::InvalidCall`](crate::Error::InvalidCall)
    /// if it is synchronised on reading and has no aggregation;
    /// [`Error::Timeout`](crate::Error::Timeout) if an update on another thread does not end.
    pub(crate) fn hold(&self, call: &'static str) -> Result<Held<'_>> {
        self.require_across(call, "checkpoints are of all replicas")?;
        if self.0.synchronization == VariableSynchronization::OnRead && self.0.aggregation == VariableAggregation::None
        {
            return Err(self.without_aggregation(call, "to be restored"));
        }
        Ok(Held { variable: self, places: self.write_all(call)? })
    }
}

impl Held<'_> {
    /// Sets the value, of the variable's dtype and shape, so that it reads the same outside of
    /// replicas, bit for bit.
    ///
    /// Where components are summed the first one becomes the value and the others what adds nothing
    /// to it. Where they are averaged all become the value, whose mean is rounded.
    pub(crate) fn set(mut self, value: &Tensor) {
        let nothing = self.variable.is_shared().then(|| nothing_to_add(value));
        let first = self.variable.strategy().local_replicas().start;
        for (replica, place) in (first..).zip(&mut self.places) {
            **place = nothing.clone().filter(|_| replica > 0).unwrap_or_else(|| value.clone());
        }
    }
}

/// Adds nothing to a value like this one. Of floats that is -0: 0 would make 0 of -0.
fn nothing_to_add(value: &Tensor) -> Tensor {
    let mut nothing = Tensor::zeros(value.dtype(), value.shape());
    macro_rules! negative {
        (Float $type:ty) => {
            if let Ok(elements) = nothing.as_mut_slice::<$type>() {
                elements.iter_mut().for_each(|element| *element = -*element);
            }
        };
        ($integer:ident $type:ty) => {};
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            $(negative!($class $type);)*
        };
    }
    for_each_dtype!(by_dtype);
    nothing
}
