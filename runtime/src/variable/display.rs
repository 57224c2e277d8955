//! Variables as text.

use super::{Inner, Place, Variable, VariableMut};
use crate::{PerReplica, Tensor, VariableSynchronization};
use std::fmt;

/// Prints the value as a [`Tensor`] prints, with its precision and `{:#}`. A variable that is
/// synchronised on reading prints as a [`PerReplica`] of this process's components. Waits for no
/// other thread: where an update has the value, it prints dtype and shape.
///
/// ```
/// use consonance::{Tensor, Variable};
/// let weights = Variable::new(Tensor::from([1.0f32, 0.25]))?;
/// assert_eq!(weights.to_string(), "f32[2] [1, 0.25]");
/// assert_eq!(format!("{weights:#.2}"), "[1.00, 0.25]");
/// # Ok::<(), consonance::Error>(())
/// ```
impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.0.places.iter().map(|place| Shown { variable: self, value: on_host(place) });
        match self.0.synchronization {
            VariableSynchronization::OnRead => fmt::Display::fmt(&values.collect::<PerReplica<_>>(), f),
            _ => values.take(1).try_for_each(|value| fmt::Display::fmt(&value, f)),
        }
    }
}

/// Returns the value of a place if no writer has it: in host memory, unless its device cannot be
/// read.
fn on_host(place: &Place) -> Option<Tensor> {
    place.look().map(|value| value.to_host().unwrap_or(value))
}

/// The value of a copy or component, `None` while an update has it.
struct Shown<'v> {
    variable: &'v Variable,
    value: Option<Tensor>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => fmt::Display::fmt(value, f),
            None => write!(f, "{} (an update has the value)", self.variable.spec()),
        }
    }
}

/// Prints `Variable(number 7, f32[2] [1, 2], OnWrite, aggregation None, MirroredStrategy(cpu:0))`:
/// the value of the first copy or component, if it has few elements and nobody writes it.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        let Inner { id, strategy, synchronization, aggregation, shape, places, .. } = &*self.0;
        let is_small = shape.iter().product::<usize>() <= SHOWN;
        let value = places.first().filter(|_| is_small).and_then(on_host);
        let value = value.map_or_else(|| self.spec(), |value| value.to_string());
        write!(f, "Variable(number {id}, {value}, {synchronization:?}, aggregation {aggregation:?}, {strategy})")
    }
}

/// Prints the value as a [`Tensor`] prints.
impl fmt::Display for VariableMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MirroredStrategy, Result, VariableAggregation};

    #[test]
    fn a_variable_shows_its_value_or_components() -> Result<()> {
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
        let weights = strategy.variable(|| Tensor::from([[1.0f32, -0.5]]))?;
        assert_eq!(weights.to_string(), "f32[1, 2] [[1, -0.5]]");
        let counts = strategy.scope(|| {
            let builder = Variable::builder(|| Tensor::from(0.0f64)).aggregation(VariableAggregation::Sum);
            builder.synchronization(VariableSynchronization::OnRead).build()
        })?;
        strategy.run(|replica| replica.assign(&counts, replica.replica_id_in_sync_group() as f64 + 0.125))?;
        assert_eq!(counts.to_string(), "PerReplica:{\n  0: f64[] 0.125,\n  1: f64[] 1.125\n}");
        assert_eq!(format!("{counts:#.1}"), "PerReplica:{\n  0: 0.1,\n  1: 1.1\n}");
        Ok(())
    }

    #[test]
    fn display_does_not_wait_for_an_update() -> Result<()> {
        let strategy = MirroredStrategy::new(["cpu:0"])?;
        let weights = strategy.variable(|| Tensor::from([1, 2]))?;
        strategy.update(&weights, |copy| {
            assert_eq!(weights.to_string(), "i32[2] (an update has the value)");
            assert_eq!(copy.to_string(), "i32[2] [1, 2]");
            Ok(())
        })?;
        assert_eq!(weights.to_string(), "i32[2] [1, 2]");
        Ok(())
    }
}
