//! An accumulator for handles and jobs, which share it.

use crate::codes::Type;
use consonance::{
    Communicator, ReduceOp, Result,
    raw::{Buf, LeafSum},
};
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The accumulator of a rank's leaves, for any thread, with the element type of its caller.
///
/// ```
/// use consonance::{Communicator, ReduceOp, raw::Call};
/// use consonance_c::{Job, Leaves, codes::TYPES};
/// let (mut alone, f32) = (Communicator::threads(1).remove(0), TYPES[11]);
/// let leaves = Leaves::new(&mut alone, (f32, ReduceOp::Sum), 2, 0..2, 2)?;
/// leaves.add([1.0f32, 2.0].as_slice().into())?;
/// assert_eq!(leaves.added(), 1);
/// let last: &'static mut [f32] = vec![0.5, 0.5].leak();
/// let job = Job::new(Call::AllReduce { op: leaves.op(), send: None, recv: last.into() }, f32);
/// job.with_leaves(&leaves).execute(&mut alone)?;
/// assert_eq!(leaves.added(), 0);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Leaves {
    sum: Arc<Mutex<LeafSum>>,
    of: Type,
    op: ReduceOp,
}

impl Leaves {
    /// Makes room for the leaves `leaves` of `0..all`, of `count` parts of elements of a type.
    ///
    /// # Errors
    /// As [`Communicator::accumulator`].
    pub fn new(
        communicator: &mut Communicator,
        (of, op): (Type, ReduceOp),
        count: usize,
        leaves: Range<usize>,
        all: usize,
    ) -> Result<Leaves> {
        let sum = communicator.accumulator_of(of.dtype, op, count, leaves, all)?;
        Ok(Leaves { sum: Arc::new(Mutex::new(sum)), of, op })
    }

    /// Returns the element type of the leaves.
    pub fn of_type(&self) -> Type {
        self.of
    }

    /// Returns the operation.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// Adds the next leaf.
    ///
    /// # Errors
    /// As [`LeafSum::add`].
    pub fn add(&self, leaf: Buf<'_>) -> Result<()> {
        self.lock().add(leaf)
    }

    /// Returns the number of leaves that were added since the last call.
    pub fn added(&self) -> usize {
        self.lock().added()
    }

    /// Drops the leaves that were added.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LeafSum> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
