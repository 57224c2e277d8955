//! Variables: tensors that outlive a run.

use crate::{Error, Result, Strategy, Tensor, current_strategy, strategy::LocalResults};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A tensor that outlives a run, placed as the strategy in whose scope it was created says: a copy for each replica
/// ([`MirroredStrategy`](crate::MirroredStrategy)), or one for all
/// ([`CentralStorageStrategy`](crate::CentralStorageStrategy)).
///
/// Cloning gives another handle to the same variable. dtype and shape never change.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, Variable};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let variable = strategy.scope(|| Variable::new(Tensor::from(1.0f32)))?;
/// assert_eq!(strategy.local_results(&variable).len(), 2);
/// variable.assign(Tensor::from(2.0f32))?;
/// assert_eq!(variable.read(), Tensor::from(2.0f32));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone)]
pub struct Variable(Arc<Inner>);

struct Inner {
    strategy: Strategy,
    copies: Vec<RwLock<Tensor>>,
}

impl Variable {
    /// A variable of the [current strategy](current_strategy). Create variables outside of [`run`](Strategy::run): one that a
    /// replica's function creates belongs to that replica's call alone.
    pub fn new(initial_value: Tensor) -> Variable {
        let strategy = current_strategy();
        // Copies share memory until one is written.
        let copies = strategy.parameter_devices().iter().map(|_| RwLock::new(initial_value.clone())).collect();
        Variable(Arc::new(Inner { strategy, copies }))
    }

    /// The strategy that placed it.
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// The value: of the first copy, to which all others are equal, in replicas too.
    pub fn read(&self) -> Tensor {
        self.copy(0).clone()
    }

    /// Sets every copy to `value`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if dtype or shape are not the variable's; [`Error::WrongContext`] in a replica, whose copies
    /// would come apart.
    pub fn assign(&self, value: Tensor) -> Result<()> {
        let call = "Variable::assign";
        crate::context::require_cross_replica(call, self.strategy())?;
        let (expected, found) = (self.copy(0).spec(), value.spec());
        if expected != found {
            return Err(Error::invalid(call, "value", expected, found));
        }
        (0..self.0.copies.len()).for_each(|index| *self.copy_mut(index) = value.clone());
        Ok(())
    }

    /// Calls `update` with each copy, and keeps dtype and shape as they are.
    pub(crate) fn update_copies<R>(&self, mut update: impl FnMut(&mut Tensor) -> Result<R>) -> Result<Vec<R>> {
        (0..self.0.copies.len())
            .map(|index| {
                let mut copy = self.copy_mut(index);
                let mut value = copy.clone();
                let result = update(&mut value)?;
                let (expected, found) = (copy.spec(), value.spec());
                if expected != found {
                    return Err(Error::invalid("Strategy::update", "the updated variable", expected, found));
                }
                *copy = value;
                Ok(result)
            })
            .collect()
    }

    fn copy(&self, index: usize) -> RwLockReadGuard<'_, Tensor> {
        self.0.copies[index].read().unwrap_or_else(|poison| poison.into_inner())
    }

    fn copy_mut(&self, index: usize) -> RwLockWriteGuard<'_, Tensor> {
        // A panic in an update leaves the value before it.
        self.0.copies[index].write().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// Each copy.
impl LocalResults for Variable {
    type Value = Tensor;

    fn local_results(&self) -> Vec<Tensor> {
        (0..self.0.copies.len()).map(|index| self.copy(index).clone()).collect()
    }
}
