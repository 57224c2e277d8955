//! Exclusive access to variables, so that several can be set together.

use super::{Variable, Writing};
use crate::{Result, Tensor, VariableAggregation, VariableSynchronization};
use consonance_spec::for_each_dtype;

/// Exclusive access to a variable until this is dropped.
pub(crate) struct Exclusive<'v> {
    variable: &'v Variable,
    places: Vec<Writing<'v>>,
    /// The next values of the places.
    prepared: Vec<Tensor>,
}

impl Variable {
    /// Takes exclusive access, to set the variable as a whole.
    ///
    /// # Errors
    /// [`Error::WrongContext`](crate::Error::WrongContext) in a replica or in another strategy's
    /// scope, or if this thread holds it already; [`Error::InvalidCall`](crate::Error::InvalidCall)
    /// if it is synchronised on reading and has no aggregation;
    /// [`Error::Timeout`](crate::Error::Timeout) if an update on another thread does not end.
    pub(crate) fn hold(&self, call: &'static str) -> Result<Exclusive<'_>> {
        self.require_across(call, "checkpoints are of all replicas")?;
        if self.0.synchronization == VariableSynchronization::OnRead && self.0.aggregation == VariableAggregation::None
        {
            return Err(self.without_aggregation(call, "to be restored"));
        }
        Ok(Exclusive { variable: self, places: self.write_all(call)?, prepared: Vec::new() })
    }
}

impl Exclusive<'_> {
    /// Prepares a [`set`](Exclusive::set), after which a read outside of replicas returns `value`
    /// bit for bit. `value` has the variable's dtype and shape.
    ///
    /// If components are summed, the first one becomes the value and the others the neutral
    /// element. If they are averaged, all become the value; their mean is rounded.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if a device has no memory for its copy.
    pub(crate) fn prepare(&mut self, call: &'static str, value: &Tensor) -> Result<()> {
        let nothing = self.variable.is_shared().then(|| nothing_to_add(value));
        let first = self.variable.strategy().local_replicas().start;
        let part = |replica| nothing.clone().filter(|_| replica > 0).unwrap_or_else(|| value.clone());
        let placed = (first..).zip(&self.places).map(|(replica, place)| part(replica).into_space(call, place.space()));
        self.prepared = placed.collect::<Result<_>>()?;
        Ok(())
    }

    /// Sets the variable to what was prepared.
    pub(crate) fn set(mut self) {
        self.places.iter_mut().zip(self.prepared).for_each(|(place, value)| **place = value);
    }
}

/// Returns the neutral element of addition, with this dtype and shape. For floats it is -0, because
/// 0 + -0 is 0.
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
