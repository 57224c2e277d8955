//! All-reduces that go on while a replica computes: what it hands over is collected in buckets,
//! which travel when they are full.
//!
//! A thread that the strategy keeps carries the buckets out, one after the other, with the
//! replica's communicator: the replica lends it, and takes it back before it makes any other call.
//! What is handed over is owned, not borrowed, and the closure of [`ReplicaContext::overlap`] does
//! not end before all of it is back.
//!
//! Where every core has a replica, such a thread only takes time from one that computes. There the
//! replica itself carries the buckets out, when it waits. Which of the two it is, each replica may
//! choose for itself: the calls are the same.

use super::overlap_queue::{Flow, Parcel};
use crate::{
    CommunicationOptions, Error, ReplicaContext, Result,
    error::{IntoReduceOp, op_of},
    replica::nest_call::check_leaves,
    value::nest::{Nest, Path},
};
use consonance_kernels::group::Reason;
use std::{sync::Arc, time::Duration};

/// Where a replica hands over what is to be all-reduced while it goes on: see
/// [`ReplicaContext::overlap`].
pub struct Buckets<'r> {
    replica: &'r ReplicaContext<'r>,
}

/// What a replica has handed over, until it [waits](PendingNest::wait) for the result. Dropping it
/// is safe: the all-reduce is made all the same, and the end of the closure reports its error.
pub struct PendingNest<'b, N> {
    buckets: &'b Buckets<'b>,
    /// Without its leaves.
    nest: N,
    parcel: Arc<Parcel>,
}

const CALL: &str = "Buckets::all_reduce";

impl Buckets<'_> {
    /// Hands over `value`, to be combined over all replicas: [`ReplicaContext::all_reduce`], whose
    /// result [`PendingNest::wait`] gives.
    ///
    /// Each replica hands over the same in the same order; in errors, the first is `value/0`, the
    /// second `value/1`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if `op` is not defined on the dtype, and [`Error::UnknownReduceOp`]:
    /// both end the group, after the other replicas are told; [`Error::WrongContext`] in a merge
    /// function. All others come from [`PendingNest::wait`] or the end of the closure.
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
    pub fn all_reduce<N: Nest>(&self, op: impl IntoReduceOp, mut value: N) -> Result<PendingNest<'_, N>> {
        self.replica.require(CALL)?;
        let mut leaves = Vec::new();
        value.take_leaves(&Path::default().join(self.replica.with_flow(|flow, _| flow.handed_over())), &mut leaves);
        let checked = op_of(CALL, op).and_then(|op| check_leaves(CALL, op, &leaves));
        let op = checked.map_err(|error| {
            let error = error.of_replica(self.replica.replica_id_in_sync_group());
            self.replica.with_flow(|flow, held| flow.refuse(&error, held));
            error
        })?;
        let parcel = self.replica.with_flow(|flow, held| flow.take(op, leaves, held));
        Ok(PendingNest { buckets: self, nest: value, parcel })
    }

    /// How long the collectives of the buckets that are finished took, together: the time in them,
    /// waiting for other replicas included. Beside the time in which the replica itself stood still
    /// for them, it tells how much was hidden.
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
    /// Waits until all of it has been combined, and gives the result. Bounded, as each all-reduce
    /// is.
    ///
    /// What is in a bucket that is not full goes on its way now, with all other such buckets. So
    /// the first wait for it has its place among the calls that replicas make in the same order.
    ///
    /// # Errors
    /// As [`ReplicaContext::all_reduce`]. When the group has ended, all that comes after has the
    /// error by which it did.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| replica.overlap(|buckets| buckets.all_reduce("sum", 1.5f64)?.wait()))?;
    /// assert_eq!(sums.values(), [3.0, 3.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn wait(self) -> Result<N> {
        self.buckets.replica.with_flow(|flow, held| flow.hasten(&self.parcel, held));
        self.buckets.replica.put(CALL, self.nest, self.parcel.wait()?)
    }
}

impl ReplicaContext<'_> {
    /// Runs `body`, in which all-reduces go on while the replica does something else: it hands each
    /// layer's gradients over as soon as it has them, computes the next layer's meanwhile, and
    /// waits at the end.
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
    /// What is handed over is collected, by operation and dtype, in buckets of
    /// [`CommunicationOptions::bytes_per_pack`]. A full one is all-reduced at once, by a thread
    /// that the strategy keeps for it; the others are when the replica waits for them, and at the
    /// end. Where every core has a replica there is no such thread, and the replica itself does it
    /// all when it waits: see [`CommunicationOptions::carriers`]. The result has the bits of
    /// [`all_reduce`](ReplicaContext::all_reduce).
    ///
    /// Any other call that the replica makes in `body` comes after all that was handed over before
    /// it, and waits for that.
    ///
    /// # Errors
    /// The error of `body`, else the first of an all-reduce that was not waited for.
    /// [`Error::WrongContext`] within another overlap.
    ///
    /// After an [`Error::Mismatch`] of what was handed over none of that travels any more, and all
    /// of it has that error, on all replicas; the group works. If `body` fails with any other error
    /// the group is ended, as by a replica's own failure: the other replicas may have handed over
    /// more, or less, and no later call is to meet what they wait for.
    ///
    /// # Panics
    /// If `body` panics; the group is then ended, so that no other replica waits.
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
    /// let options = CommunicationOptions::new().bytes_per_pack(1 << 20).carriers(true);
    /// let sums = strategy.run(|replica| replica.overlap_with(options, |buckets| buckets.all_reduce("sum", 1)?.wait()))?;
    /// assert_eq!(sums.values(), [2, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn overlap_with<R>(
        &self,
        options: CommunicationOptions,
        body: impl FnOnce(&Buckets<'_>) -> Result<R>,
    ) -> Result<R> {
        let call = "ReplicaContext::overlap";
        self.require(call)?;
        let options = options.over(self.strategy().options());
        if self.flow.borrow().is_some() {
            return Err(Error::WrongContext {
                call,
                problem: "called within another overlap of the replica".to_owned(),
            });
        }
        let carrier = self.strategy().carrier(options);
        let flow = Flow::new(options, &self.held(), carrier);
        *self.flow.borrow_mut() = Some(flow);
        let mut end = End { replica: self, failure: Some(Reason::Panic) };
        let result = body(&Buckets { replica: self });
        end.failure = match &result {
            // All replicas have the same mismatch, and go on alike.
            Ok(_) | Err(Error::Mismatch { .. }) => None,
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

/// Ends an overlap when it is dropped: what is not on its way is given up, what is comes back.
struct End<'r> {
    replica: &'r ReplicaContext<'r>,
    /// Why the group ends with the overlap, if it does.
    failure: Option<Reason>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.replica.with_flow(|flow, held| flow.end(self.failure, held));
        if let Some(carrier) = self.replica.flow.take().and_then(Flow::into_carrier) {
            self.replica.strategy().give_carrier_back(carrier);
        }
    }
}
