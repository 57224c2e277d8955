//! The variables of a checkpoint, of all kinds.

use crate::{
    DType, Result, ShardedVariable, Strategy, Tensor, Variable, VariableSynchronization,
    parameter_server::saveable::Settled, variable::exclusive::Exclusive,
};

/// A variable that a checkpoint saves and restores: that of a [`Strategy`](crate::Strategy), or one
/// on the servers of a [`ParameterServerStrategy`](crate::ParameterServerStrategy).
///
/// References to either are taken where all are of one kind. Both kinds go together as this type.
///
/// ```
/// use consonance::{MirroredStrategy, ParameterServerStrategy, Tensor, checkpoint::{self, Saveable}};
/// # let path = std::env::temp_dir().join(format!("doc-saveable-{}", std::process::id()));
/// let servers = ParameterServerStrategy::threads(2, 2)?;
/// let table = servers.variable(|| Tensor::from([[0.5f32, 1.0], [1.5, 2.0]]))?;
/// let mirrored = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let step = mirrored.variable(|| Tensor::from(7u64))?;
/// checkpoint::save(&path, [("table", Saveable::from(&table)), ("step", Saveable::from(&step))])?;
///
/// let copy = mirrored.variable(|| Tensor::from([[0.0f32, 0.0], [0.0, 0.0]]))?;
/// checkpoint::restore(&path, [("table", &copy)])?;
/// assert_eq!(copy.read()?, table.read()?);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Saveable<'v> {
    /// A variable whose value each replica has, or a component of it.
    Variable(&'v Variable),
    /// A variable on servers.
    Sharded(&'v ShardedVariable),
}

/// A variable that is about to be set.
pub(super) enum Held<'v> {
    Variable(Exclusive<'v>),
    Sharded(Settled<'v>),
}

impl<'v> From<&'v Variable> for Saveable<'v> {
    fn from(variable: &'v Variable) -> Saveable<'v> {
        Saveable::Variable(variable)
    }
}

impl<'v> From<&'v ShardedVariable> for Saveable<'v> {
    fn from(variable: &'v ShardedVariable) -> Saveable<'v> {
        Saveable::Sharded(variable)
    }
}

impl<'v> Saveable<'v> {
    pub(super) fn dtype(&self) -> DType {
        match self {
            Saveable::Variable(variable) => variable.dtype(),
            Saveable::Sharded(variable) => variable.dtype(),
        }
    }

    pub(super) fn shape(&self) -> &'v [usize] {
        match self {
            Saveable::Variable(variable) => variable.shape(),
            Saveable::Sharded(variable) => variable.shape(),
        }
    }

    /// Returns whether both are the same variable.
    pub(super) fn is(&self, other: &Saveable<'_>) -> bool {
        match (self, other) {
            (Saveable::Variable(one), Saveable::Variable(other)) => one == other,
            (Saveable::Sharded(one), Saveable::Sharded(other)) => one.is(other),
            (Saveable::Variable(_), Saveable::Sharded(_)) | (Saveable::Sharded(_), Saveable::Variable(_)) => false,
        }
    }

    /// Returns the place in the order in which variables are taken and set. Those on servers come
    /// first: to set them can fail, and then no other has changed.
    pub(super) fn turn(&self) -> (bool, u64) {
        match self {
            Saveable::Variable(variable) => (true, variable.id()),
            Saveable::Sharded(variable) => (false, variable.number() as u64),
        }
    }

    /// Returns the strategy, if each of its replicas has the variable.
    pub(super) fn strategy(&self) -> Option<&'v Strategy> {
        match self {
            Saveable::Variable(variable) => Some(variable.strategy()),
            Saveable::Sharded(_) => None,
        }
    }

    /// Checks that this process saves and restores the variable.
    pub(super) fn check(&self, call: &'static str) -> Result<()> {
        match self {
            Saveable::Variable(_) => Ok(()),
            Saveable::Sharded(variable) => variable.check_chief(call),
        }
    }

    /// Returns whether a read is a collective of all workers of a strategy.
    pub(super) fn reads_collectively(&self) -> bool {
        match self {
            Saveable::Variable(variable) => {
                variable.synchronization() == VariableSynchronization::OnRead && variable.strategy().workers().is_some()
            }
            Saveable::Sharded(_) => false,
        }
    }

    pub(super) fn read(&self, call: &'static str) -> Result<Tensor> {
        match self {
            Saveable::Variable(variable) => variable.read(),
            Saveable::Sharded(variable) => variable.saved(call),
        }
    }

    /// Takes the variable, to set it together with others.
    pub(super) fn hold(&self, call: &'static str) -> Result<Held<'v>> {
        match self {
            Saveable::Variable(variable) => variable.hold(call).map(Held::Variable),
            Saveable::Sharded(variable) => variable.settled(call).map(Held::Sharded),
        }
    }
}

impl Held<'_> {
    /// Prepares to [set](Held::set) the variable, without a change of it.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if a device has no memory for its copy.
    pub(super) fn prepare(&mut self, call: &'static str, value: &Tensor) -> Result<()> {
        match self {
            Held::Variable(held) => held.prepare(call, value),
            Held::Sharded(_) => Ok(()),
        }
    }

    /// Sets the variable to `value`, for which it was prepared.
    ///
    /// # Errors
    /// Of one on servers, those of its servers.
    pub(super) fn set(self, call: &'static str, value: &Tensor) -> Result<()> {
        match self {
            Held::Variable(held) => {
                held.set();
                Ok(())
            }
            Held::Sharded(settled) => settled.set(call, value),
        }
    }
}
