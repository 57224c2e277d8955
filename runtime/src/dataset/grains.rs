//! Data sets whose batches are divided among grains.

use super::{Cardinality, DistributedDataset, DistributedIterator, TensorSpec};
use crate::{Error, Grains, Nest, PerReplica, Result, Strategy};
use consonance_spec::partition::block;
use std::{fmt, ops::Range};

/// A data set whose elements are divided among the grains of a strategy: see
/// [`Strategy::distribute_grains`].
///
/// Iterating with `for step in &dataset` gives a [`PerReplica`] of [`Grains`] for each step, to
/// pass to [`Strategy::run_with`]. Each iteration starts at the first element. After a
/// [reform](crate::MultiWorkerMirroredStrategy::reform) distribute the data set again: a step of
/// grains that this process no longer has is an [`Error::InvalidCall`].
#[derive(Clone)]
pub struct DistributedGrains<E> {
    strategy: Strategy,
    parts: DistributedDataset<E>,
    /// The grains of each replica of this process.
    runs: Vec<Range<usize>>,
}

impl<E: Nest + Clone + Send + 'static> DistributedGrains<E> {
    /// Returns the data set whose parts are those of the grains of this process's replicas.
    pub(super) fn new(strategy: &Strategy, parts: DistributedDataset<E>) -> DistributedGrains<E> {
        DistributedGrains { strategy: strategy.clone(), parts, runs: runs(strategy) }
    }

    /// Iterates over the steps from the first, in epoch 0.
    pub fn iter(&self) -> GrainsIterator<E> {
        self.epoch(0)
    }

    /// Iterates over the steps of this epoch from the first, as [`DistributedDataset::epoch`].
    pub fn epoch(&self, epoch: u64) -> GrainsIterator<E> {
        GrainsIterator { strategy: self.strategy.clone(), parts: self.parts.epoch(epoch), runs: self.runs.clone() }
    }

    /// Returns the specs of the tensors of each grain's elements, as
    /// [`DistributedDataset::element_spec`].
    ///
    /// # Errors
    /// As [`DistributedDataset::element_spec`].
    pub fn element_spec(&self) -> Result<Vec<TensorSpec>> {
        self.parts.element_spec()
    }

    /// Returns the number of steps, as [`DistributedDataset::cardinality`].
    pub fn cardinality(&self) -> Cardinality {
        self.parts.cardinality()
    }
}

/// Returns the grains of each replica of this process.
pub(super) fn runs(strategy: &Strategy) -> Vec<Range<usize>> {
    let (grains, replicas) = (strategy.grains(), strategy.num_replicas_in_sync());
    strategy.local_replicas().map(|replica| block(grains, replicas, replica)).collect()
}

/// Iterates over the steps from the first.
impl<E: Nest + Clone + Send + 'static> IntoIterator for &DistributedGrains<E> {
    type Item = Result<PerReplica<Grains<E>>>;
    type IntoIter = GrainsIterator<E>;

    fn into_iter(self) -> GrainsIterator<E> {
        self.iter()
    }
}

/// The steps of [`DistributedGrains`], read ahead as those of a [`DistributedIterator`].
pub struct GrainsIterator<E> {
    strategy: Strategy,
    parts: DistributedIterator<E>,
    runs: Vec<Range<usize>>,
}

impl<E: Nest + Clone + Send + 'static> Iterator for GrainsIterator<E> {
    type Item = Result<PerReplica<Grains<E>>>;

    fn next(&mut self) -> Option<Result<PerReplica<Grains<E>>>> {
        let step = match self.parts.next()? {
            Ok(step) => step,
            Err(error) => return Some(Err(error)),
        };
        let now = runs(&self.strategy);
        if now != self.runs {
            let expected = format!("{now:?}, dealt anew after a reform; distribute the data set again");
            return Some(Err(Error::invalid("GrainsIterator::next", "grains", expected, format!("{:?}", self.runs))));
        }
        let mut parts = step.into_values().into_iter();
        let of = |run: &Range<usize>| Grains::new(run.start, parts.by_ref().take(run.len()).collect());
        Some(Ok(PerReplica::new(self.runs.iter().map(of).collect())))
    }
}

/// `DistributedGrains(3 of 8 grains, Finite(3))`
impl<E: Nest + Clone + Send + 'static> fmt::Debug for DistributedGrains<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own: usize = self.runs.iter().map(Range::len).sum();
        write!(f, "DistributedGrains({own} of {} grains, {:?})", self.strategy.grains(), self.cardinality())
    }
}

impl<E> fmt::Debug for GrainsIterator<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrainsIterator({:?})", self.parts)
    }
}

/// Checks that grains can be dealt to this strategy's replicas.
pub(super) fn check_devices(call: &'static str, strategy: &Strategy) -> Result<()> {
    match strategy.worker_devices().iter().find(|device| device.gpu().is_some()) {
        Some(device) => {
            let expected = "processors (grains in the memory of GPUs are not in this version)";
            Err(Error::invalid(call, "devices", expected, device.to_string()))
        }
        None => Ok(()),
    }
}
