//! Metrics over the samples of all replicas.

use crate::{Nest, ReduceOp, ReplicaContext, Result};
use std::ops::AddAssign;

/// The mean of values, such as the loss of each sample.
///
/// It has the sum and the count of this replica. So the result over the replicas is the mean of all
/// values, also if replicas have different numbers of them. As a [`Nest`], several metrics are
/// combined by one call: see [`result`](Mean::result).
///
/// ```
/// use consonance::{MirroredStrategy, training::Mean};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let means = strategy.run(|replica| {
///     let mut loss = Mean::new();
///     // Replica 0 has one sample, replica 1 two.
///     (0..=replica.replica_id_in_sync_group()).for_each(|sample| loss.add(sample as f64));
///     loss.result(replica)
/// })?;
/// assert_eq!(means.values(), [Some(1.0 / 3.0); 2]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Nest)]
pub struct Mean {
    sum: f64,
    count: u64,
}

/// The sum of values.
///
/// ```
/// use consonance::{MirroredStrategy, training::Sum};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let sums = strategy.run(|replica| {
///     let mut tokens = Sum::new();
///     tokens.add(100.0);
///     tokens.result(replica)
/// })?;
/// assert_eq!(sums.values(), [200.0; 2]);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Nest)]
pub struct Sum {
    sum: f64,
}

/// The fraction of the answers that are right.
///
/// ```
/// use consonance::{MirroredStrategy, ReduceOp, training::{Accuracy, Mean}};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let results = strategy.run(|replica| {
///     let (mut right, mut loss) = (Accuracy::new(), Mean::new());
///     right.add(replica.replica_id_in_sync_group() == 0);
///     loss.add(0.5);
///     // One call for both.
///     let (right, loss) = replica.all_reduce(ReduceOp::Sum, (right, loss))?;
///     Ok((right.value(), loss.value()))
/// })?;
/// assert_eq!(results[1], (Some(0.5), Some(0.5)));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Nest)]
pub struct Accuracy {
    right: u64,
    count: u64,
}

impl Mean {
    /// Makes a metric without values.
    pub fn new() -> Mean {
        Mean::default()
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.add_sum(value, 1);
    }

    /// Adds `count` values, given as their sum.
    pub fn add_sum(&mut self, sum: f64, count: u64) {
        self.sum += sum;
        self.count += count;
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean of the values in it; `None` if there are none. Those are this replica's
    /// values, until metrics of replicas are combined by a sum.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Returns the mean of the values of all replicas; `None` if there are none. Every replica
    /// makes the call and gets the same bits. The metric stays as it is: see
    /// [`reset`](Mean::reset).
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`].
    pub fn result(&self, replica: &ReplicaContext<'_>) -> Result<Option<f64>> {
        Ok(replica.all_reduce(ReduceOp::Sum, *self)?.value())
    }

    /// Removes all values.
    pub fn reset(&mut self) {
        *self = Mean::default();
    }
}

impl Sum {
    /// Makes a metric without values.
    pub fn new() -> Sum {
        Sum::default()
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
    }

    /// Returns the sum of the values in it: this replica's values, until metrics of replicas are
    /// combined by a sum.
    pub fn value(&self) -> f64 {
        self.sum
    }

    /// Returns the sum of the values of all replicas. Every replica makes the call and gets the
    /// same bits.
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`].
    pub fn result(&self, replica: &ReplicaContext<'_>) -> Result<f64> {
        Ok(replica.all_reduce(ReduceOp::Sum, *self)?.value())
    }

    /// Removes all values.
    pub fn reset(&mut self) {
        *self = Sum::default();
    }
}

impl Accuracy {
    /// Makes a metric without answers.
    pub fn new() -> Accuracy {
        Accuracy::default()
    }

    /// Adds an answer.
    pub fn add(&mut self, is_right: bool) {
        self.add_count(is_right.into(), 1);
    }

    /// Adds `count` answers, of which `right` are right.
    pub fn add_count(&mut self, right: u64, count: u64) {
        self.right += right;
        self.count += count;
    }

    /// Returns the number of answers.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the fraction of the answers in it that are right; `None` if there are none. Those
    /// are this replica's answers, until metrics of replicas are combined by a sum.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.right as f64 / self.count as f64)
    }

    /// Returns the fraction of the answers of all replicas that are right; `None` if there are
    /// none. Every replica makes the call.
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`].
    pub fn result(&self, replica: &ReplicaContext<'_>) -> Result<Option<f64>> {
        Ok(replica.all_reduce(ReduceOp::Sum, *self)?.value())
    }

    /// Removes all answers.
    pub fn reset(&mut self) {
        *self = Accuracy::default();
    }
}

/// Adds the values of another metric.
impl AddAssign for Mean {
    fn add_assign(&mut self, other: Mean) {
        self.add_sum(other.sum, other.count);
    }
}

/// Adds the values of another metric.
impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.add(other.sum);
    }
}

/// Adds the answers of another metric.
impl AddAssign for Accuracy {
    fn add_assign(&mut self, other: Accuracy) {
        self.add_count(other.right, other.count);
    }
}
