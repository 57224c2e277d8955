//! All-reduces that overlap with a replica's computation. Values are collected in buckets, and a
//! full bucket is all-reduced.
//!
//! A thread of the strategy all-reduces the buckets in order, with the replica's communicator. The
//! replica lends it the communicator and takes it back before it makes any other call. Values are
//! owned, not borrowed, and [`ReplicaContext::overlap`] does not return before all of them are
//! back.
//!
//! If every core has a replica, such a thread would only take time from a replica that computes.
//! Then the replica itself all-reduces the buckets when it waits. Replicas may differ in this
//! choice: the calls are the same.

use super::{
    earlier_contributions::{Earlier, Run},
    overlap_queue::{CALL, Flow, Passed},
};
use crate::{
    CommunicationOptions, Error, ReplicaContext, Result,
    error::IntoReduceOp,
    replica::nest_call::check_leaves,
    value::nest::{Nest, Path},
};
use consonance_kernels::group::Reason;
use std::{fmt, iter, time::Duration};

/// Accepts values to all-reduce while the replica computes: see [`ReplicaContext::overlap`].
pub struct Buckets<'r> {
    replica: &'r ReplicaContext<'r>,
}

/// A nest in an overlapped all-reduce, until the replica [waits](PendingNest::wait) for the result.
/// Dropping it is safe: the all-reduce still takes place, and the overlap returns its error.
pub struct PendingNest<'b, N> {
    buckets: &'b Buckets<'b>,
    /// The nest without its leaves.
    nest: N,
    passed: Passed,
}

impl Buckets<'_> {
    /// Starts [`ReplicaContext::all_reduce`] of `value`. [`PendingNest::wait`] returns the result.
    ///
    /// Each replica starts the same all-reduces in the same order. Errors name the first value
    /// `value/0` and the second `value/1`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if `op` is not defined on the dtype, and [`Error::UnknownReduceOp`]:
    /// both abort the group, after the other replicas are told. [`Error::WrongContext`] in a merge
    /// function. All others come from [`PendingNest::wait`] or the end of the overlap.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| {
    ///     replica.overlap(|buckets| {
    ///         let (last, first) = (buckets.all_reduce("sum", [1, 2])?, buckets.all_reduce("mean", 0.5f32)?);
    ///         Ok((first.wait()?, last.wait()?))
    ///     })
    /// })?;
    /// assert_eq!(sums[0], (0.5, [2, 4]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce<N: Nest>(&self, op: impl IntoReduceOp, value: N) -> Result<PendingNest<'_, N>> {
        self.all_reduce_after(op, value, iter::empty())
    }

    /// Starts the all-reduce of `value` and of the contributions before it, one for each leaf.
    pub(crate) fn all_reduce_after<N: Nest>(
        &self,
        op: impl IntoReduceOp,
        mut value: N,
        earlier: impl Iterator<Item = Earlier>,
    ) -> Result<PendingNest<'_, N>> {
        self.replica.require(CALL)?;
        let mut leaves = Vec::new();
        value.take_leaves(&Path::default().join(self.replica.with_flow(|flow, _| flow.handed_over())), &mut leaves);
        let checked = self.replica.reduced_op(CALL, op).and_then(|op| check_leaves(CALL, op, &leaves));
        let op = checked.map_err(|error| {
            let error = error.of_replica(self.replica.replica_id_in_sync_group());
            self.replica.with_flow(|flow, held| flow.refuse(&error, held));
            error
        })?;
        let passed = self.replica.with_flow(|flow, held| flow.take(op, leaves, earlier, held));
        Ok(PendingNest { buckets: self, nest: value, passed })
    }

    /// Returns the total time in the collectives of the finished buckets, including their waits for
    /// other replicas. Compare it with the time for which the replica itself was blocked, to see
    /// how much communication was hidden.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// use std::time::Instant;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// strategy.run(|replica| {
    ///     replica.overlap(|buckets| {
    ///         let sum = buckets.all_reduce("sum", Tensor::from(vec![1.0f32; 100_000]))?;
    ///         // … something else is computed here …
    ///         let start = Instant::now();
    ///         sum.wait()?;
    ///         println!("waited {:?} for collectives of {:?}", start.elapsed(), buckets.in_collectives());
    ///         Ok(())
    ///     })
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn in_collectives(&self) -> Duration {
        self.replica.with_flow(|flow, _| flow.in_collectives())
    }
}

impl<N: Nest> PendingNest<'_, N> {
    /// Waits until the whole nest is combined, and returns the result. The deadline of each
    /// all-reduce bounds the wait.
    ///
    /// If a part of the nest is in a bucket that is not full, all buckets that are not full are
    /// all-reduced now. So the first wait for such a nest counts as a call: all replicas must make
    /// it at the same position in their order of calls.
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`]. After an error that aborts the group, all later values
    /// fail with that error.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| replica.overlap(|buckets| buckets.all_reduce("sum", 1.5f64)?.wait()))?;
    /// assert_eq!(sums.values(), [3.0, 3.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn wait(self) -> Result<N> {
        self.wait_for_all().map(|(nest, _)| nest)
    }

    /// Does [`wait`](PendingNest::wait), and returns the room for contributions before each leaf.
    pub(crate) fn wait_for_all(self) -> Result<(N, Vec<Earlier>)> {
        self.buckets.replica.with_flow(|flow, held| flow.hasten(self.passed.value, held));
        let (leaves, earlier) = self.passed.wait()?.into_iter().unzip();
        Ok((self.buckets.replica.put(CALL, self.nest, leaves)?, earlier))
    }
}

impl ReplicaContext<'_> {
    /// Runs `body`, in which all-reduces overlap with computation: start the all-reduce of each
    /// layer's gradients as soon as they are computed, compute the next layer's meanwhile, and wait
    /// at the end.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| {
    ///     replica.overlap(|buckets| {
    ///         let mut pending = Vec::new();
    ///         for layer in (0..3).rev() {
    ///             let gradient = Tensor::from(vec![layer as f32; 1000]);
    ///             pending.push(buckets.all_reduce(ReduceOp::Sum, gradient)?);
    ///         }
    ///         pending.into_iter().map(|gradient| gradient.wait()).collect::<Result<Vec<_>, _>>()
    ///     })
    /// })?;
    /// assert_eq!(sums[1][0], Tensor::from(vec![4.0f32; 1000]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// Values are collected, by operation and dtype, in buckets of
    /// [`CommunicationOptions::bytes_per_pack`]. A thread of the strategy all-reduces a full bucket
    /// at once. Other buckets are all-reduced when the replica waits for them, and at the end. If
    /// every core has a replica there is no such thread, and the replica itself all-reduces all
    /// buckets when it waits: see [`CommunicationOptions::background_threads`]. The result has the
    /// same bits as that of [`all_reduce`](ReplicaContext::all_reduce).
    ///
    /// Any other call that the replica makes in `body` first waits for all values that were passed
    /// before it.
    ///
    /// # Errors
    /// The error of `body`, else the first error of an all-reduce that was not waited for.
    /// [`Error::WrongContext`] within another overlap.
    ///
    /// After an [`Error::Mismatch`] of a bucket, or a NaN that
    /// [`verify`](CommunicationOptions::verify) finds in one, no further bucket is all-reduced. All
    /// their values fail with that error, on all replicas, and the group still works. If `body`
    /// fails with any other error the group is aborted, as by a replica's own failure: the other
    /// replicas may have passed more or fewer values, and no later call may match theirs.
    ///
    /// # Panics
    /// If `body` panics. The group is then aborted, so that no other replica waits.
    pub fn overlap<R>(&self, body: impl FnOnce(&Buckets<'_>) -> Result<R>) -> Result<R> {
        self.overlap_with(CommunicationOptions::new(), body)
    }

    /// [`overlap`](ReplicaContext::overlap) with options that override the strategy's.
    ///
    /// # Errors
    /// As [`overlap`](ReplicaContext::overlap).
    ///
    /// ```
    /// use consonance::{CommunicationOptions, MirroredStrategy};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let options = CommunicationOptions::new().bytes_per_pack(1 << 20).background_threads(true);
    /// let sums = strategy.run(|replica| replica.overlap_with(options, |buckets| buckets.all_reduce("sum", 1)?.wait()))?;
    /// assert_eq!(sums.values(), [2, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn overlap_with<R>(
        &self,
        options: CommunicationOptions,
        body: impl FnOnce(&Buckets<'_>) -> Result<R>,
    ) -> Result<R> {
        self.overlap_of(options, None, body)
    }

    /// [`overlap_with`](ReplicaContext::overlap_with), in which each value is the last of the
    /// contributions `run`, if any.
    pub(crate) fn overlap_of<R>(
        &self,
        options: CommunicationOptions,
        run: Option<Run>,
        body: impl FnOnce(&Buckets<'_>) -> Result<R>,
    ) -> Result<R> {
        let call = "ReplicaContext::overlap";
        self.require(call)?;
        let options = options.over(self.strategy().options());
        if self.flow().borrow().is_some() {
            return Err(Error::WrongContext {
                call,
                problem: "called within another overlap of the replica".to_owned(),
            });
        }
        let thread = self.strategy().take_thread(options);
        let flow = Flow::new(options, self.contract().cloned(), run, &self.held(), thread);
        *self.flow().borrow_mut() = Some(flow);
        let mut end = End { replica: self, failure: Some(Reason::Panic) };
        let result = body(&Buckets { replica: self });
        end.failure = match &result {
            // All replicas get the same error, so they stay in step.
            Ok(_) | Err(Error::Mismatch { .. }) => None,
            Err(Error::InvalidCall { .. }) if self.with_flow(|flow, _| flow.found_nan()) => None,
            Err(_) => Some(Reason::Failure),
        };
        if end.failure.is_none() {
            self.with_flow(|flow, held| flow.settle(held));
        }
        let error = self.with_flow(|flow, _| flow.first_error());
        drop(end);
        let value = result?;
        error.map_or(Ok(value), Err)
    }
}

/// Ends an overlap when it is dropped: discards buckets that were not sent, and waits for those
/// that were.
struct End<'r> {
    replica: &'r ReplicaContext<'r>,
    /// The reason to abort the group at the end of the overlap, if any.
    failure: Option<Reason>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.replica.with_flow(|flow, held| flow.end(self.failure, held));
        if let Some(thread) = self.replica.flow().take().and_then(Flow::into_thread) {
            self.replica.strategy().keep_thread(thread);
        }
    }
}

impl fmt::Debug for Buckets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets").field("replica", self.replica).finish()
    }
}

impl<N> fmt::Debug for PendingNest<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingNest").field("replica", self.buckets.replica).finish_non_exhaustive()
    }
}
