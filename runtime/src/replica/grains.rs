//! The grains of a replica: their numbers, their seeds, and reductions to which each contributes.

use super::grain_sum::{Contributions, Counted, GrainSum};
use crate::{
    Error, Grains, Nest, ReplicaContext, Result, error::IntoReduceOp, execution::random::SplitMix64, value::nest,
};
use consonance_spec::{Kind, partition};
use std::{fmt, marker::PhantomData, ops::Range};

/// The values of a replica's grains in a reduction: see [`ReplicaContext::accumulator`].
pub struct NestAccumulator<'r, N> {
    replica: &'r ReplicaContext<'r>,
    sum: GrainSum,
    nest: PhantomData<fn(N)>,
}

const ADD: &str = "NestAccumulator::add";
const ALL_REDUCE: &str = "NestAccumulator::all_reduce";
const ALL_REDUCE_GRAINS: &str = "ReplicaContext::all_reduce_grains";

impl ReplicaContext<'_> {
    /// Returns the grains of this replica: block `i` of
    /// [`Strategy::grains`](crate::Strategy::grains) on replica `i`. Without
    /// [`Builder::grains`](crate::Builder::grains) it is the replica itself.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).grains(5).build()?;
    /// assert_eq!(strategy.run(|replica| Ok(replica.grains()))?.values(), [0..3, 3..5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn grains(&self) -> Range<usize> {
        partition::block(self.strategy().grains(), self.num_replicas_in_sync(), self.replica_id_in_sync_group())
    }

    /// Returns a seed for the random numbers of a grain in a step, for dropout and the like. It
    /// follows from [`Builder::seed`](crate::Builder::seed), the step and the grain alone, so it is
    /// the same for any number of replicas, and in all versions.
    ///
    /// A SplitMix64 generator has the strategy's seed as its state. Its first output, plus the
    /// step, is the state of a second one. The output of that, plus the grain, is the state of a
    /// third one, whose first output is the result.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let seeds = |replicas: usize| {
    ///     let devices = (0..replicas).map(|replica| format!("cpu:{replica}"));
    ///     let strategy = MirroredStrategy::builder(devices).grains(4).seed(7).build()?;
    ///     let seeds = strategy.run(|replica| {
    ///         Ok(replica.grains().map(|grain| replica.seed(3, grain)).collect::<Vec<u64>>())
    ///     })?;
    ///     Ok::<_, consonance::Error>(seeds.into_values().concat())
    /// };
    /// assert_eq!(seeds(3)?, seeds(1)?);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn seed(&self, step: u64, grain: usize) -> u64 {
        let first = |state| SplitMix64(state).next();
        first(first(first(self.strategy().common().seed).wrapping_add(step)).wrapping_add(grain as u64))
    }

    /// Begins a reduction over all grains, to which this replica contributes a nest for each of its
    /// [grains](ReplicaContext::grains). [Add](NestAccumulator::add) all but the last, in order,
    /// and make the call with that one. The result has the bits of an
    /// [`all_reduce`](ReplicaContext::all_reduce) of as many replicas with one grain each.
    ///
    /// The accumulator can be used again and again. It holds a few partial results, not the nests;
    /// of [`IndexedSlices`](crate::IndexedSlices) it holds the rows, all of which the result has.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`](crate::Error::UnknownReduceOp), after the other replicas are
    /// told.
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// // Grain i contributes i + 0.5; 0, 1 and 2 are on the first replica, 3 and 4 on the second.
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).grains(5).build()?;
    /// let means = strategy.run(|replica| {
    ///     let mut mean = replica.accumulator("mean")?;
    ///     let mut grains = replica.grains();
    ///     let last = grains.next_back().expect("each replica has a grain");
    ///     for grain in grains {
    ///         mean.add([grain as f64 + 0.5])?;
    ///     }
    ///     mean.all_reduce([last as f64 + 0.5])
    /// })?;
    /// assert_eq!(means.values(), [[2.5], [2.5]]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn accumulator<N: Nest>(&self, op: impl IntoReduceOp) -> Result<NestAccumulator<'_, N>> {
        self.require("ReplicaContext::accumulator")?;
        let op = self.or_refuse(Kind::AllReduce, self.reduced_op("ReplicaContext::accumulator", op))?;
        let sum = GrainSum::new(op, Contributions::new(Counted::Grains, self, self.grains(), self.strategy().grains()));
        Ok(NestAccumulator { replica: self, sum, nest: PhantomData })
    }
}

impl ReplicaContext<'_> {
    /// Combines the values of all grains, of which this replica has those of its own: a
    /// [metric](crate::training::Mean) of each, for example. Every replica makes the call and gets
    /// the result, which has the bits of an [`all_reduce`](ReplicaContext::all_reduce) of as many
    /// replicas with one grain each. An [accumulator](ReplicaContext::accumulator) does not need
    /// all values at once.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) for other grains than
    /// [those of this replica](ReplicaContext::grains); otherwise as
    /// [`NestAccumulator::all_reduce`].
    ///
    /// ```
    /// use consonance::{Grains, MirroredStrategy, training::Mean};
    /// let mean = |replicas: usize| {
    ///     let devices = (0..replicas).map(|replica| format!("cpu:{replica}"));
    ///     let strategy = MirroredStrategy::builder(devices).grains(5).build()?;
    ///     let means = strategy.run(|replica| {
    ///         let metric = |grain| {
    ///             let mut loss = Mean::new();
    ///             (0..=grain).for_each(|sample| loss.add(0.1 * sample as f64));
    ///             loss
    ///         };
    ///         let losses = Grains::new(replica.grains().start, replica.grains().map(metric).collect());
    ///         Ok(replica.all_reduce_grains("sum", losses)?.value())
    ///     })?;
    ///     Ok::<_, consonance::Error>(means[0])
    /// };
    /// assert_eq!(mean(1)?, mean(3)?);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_grains<N: Nest>(&self, op: impl IntoReduceOp, values: Grains<N>) -> Result<N> {
        let mut sum = self.accumulator(op)?;
        if values.numbers() != self.grains() {
            let (own, found) = (format!("{:?}", self.grains()), format!("{:?}", values.numbers()));
            return self.or_refuse(Kind::AllReduce, Err(Error::invalid(ALL_REDUCE_GRAINS, "grains", own, found)));
        }
        let mut values = values.into_values();
        let last = values.pop().expect("each replica has a grain");
        let added = values.into_iter().try_for_each(|value| sum.add(value));
        self.or_refuse(Kind::AllReduce, added.map_err(|error| error.of_call_named(ALL_REDUCE_GRAINS)))?;
        sum.all_reduce(last)
    }
}

impl<N: Nest> NestAccumulator<'_, N> {
    /// Adds the nest of the next grain: each one but the replica's last.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) after the last grain but one, for a nest
    /// with another structure, dtype or shape than those before, or on which the operation is not
    /// defined. The accumulator is as before. The other replicas are not told.
    /// [`Error::System`](crate::Error::System) if the system has no memory, or a device cannot be
    /// read.
    ///
    /// ```
    /// use consonance::{Error, OneDeviceStrategy};
    /// let strategy = OneDeviceStrategy::builder("cpu:0").grains(2).build()?;
    /// strategy.run(|replica| {
    ///     let mut sum = replica.accumulator("sum")?;
    ///     sum.add(vec![1.0f32, 2.0])?;
    ///     // The second grain is the last one.
    ///     assert!(matches!(sum.add(vec![1.0, 2.0]), Err(Error::InvalidCall { .. })));
    ///     assert_eq!(sum.all_reduce(vec![3.0, 4.0])?, [4.0, 6.0]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn add(&mut self, mut value: N) -> Result<()> {
        self.replica.require(ADD)?;
        let id = self.replica.replica_id_in_sync_group();
        self.sum.add(ADD, self.replica, &mut nest::take(&mut value)).map_err(|error| error.of_replica(id))
    }

    /// Combines the nests of all grains: those that were added on each replica, and `last`, that of
    /// its last grain. Every replica makes the call and gets the result. Small tensors are fused
    /// ([`CommunicationOptions::bytes_per_pack`](crate::CommunicationOptions::bytes_per_pack)).
    /// Afterwards the accumulator has no grains.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) if a grain is missing, or as in
    /// [`add`](NestAccumulator::add); the accumulator is then as before. Otherwise as
    /// [`ReplicaContext::all_reduce`].
    ///
    /// ```
    /// use consonance::OneDeviceStrategy;
    /// let strategy = OneDeviceStrategy::builder("cpu:0").grains(3).build()?;
    /// let error = strategy.run(|replica| replica.accumulator("sum")?.all_reduce(1.0f32)).unwrap_err();
    /// assert!(error.to_string().contains("expected 2 grains before the last, found 0 grains"), "{error}");
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce(&mut self, mut last: N) -> Result<N> {
        self.replica.require(ALL_REDUCE)?;
        let mut leaves = nest::take(&mut last);
        self.sum.all_reduce(ALL_REDUCE, self.replica, &mut leaves)?;
        self.replica.put(ALL_REDUCE, last, leaves)
    }

    /// Returns the grains of this replica.
    pub fn grains(&self) -> Range<usize> {
        self.sum.run()
    }

    /// Returns the number of grains that were added since the last call.
    pub fn added(&self) -> usize {
        self.sum.added()
    }

    /// Drops the grains that were added: the next one is the first.
    pub fn clear(&mut self) {
        self.sum.clear();
    }
}

impl<N> fmt::Debug for NestAccumulator<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NestAccumulator({} of grains {:?})", self.sum.added(), self.sum.run())
    }
}
