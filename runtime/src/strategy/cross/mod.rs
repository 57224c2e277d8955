//! Cross-replica calls: reduce, gather, and their relatives with destinations.

mod combine;

use self::combine::{Dealt, Reduction};
use crate::{
    Axes, Axis, Device, Error, Grains, Mirrored, Nest, PerReplica, Result, Strategy, device,
    error::{IntoReduceOp, op_of},
    execution::context,
    kind,
    value::{
        contract, exact,
        nest::{self, Leaf, NestSignature},
    },
};
use consonance_spec::{Kind, partition, static_shapes::REDUCED_SHAPE};
use std::ops::Range;

/// Advice for values that differ in shape.
const HINT: &str = "; give an axis to reduce along it";

/// The devices that a result goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destinations {
    /// On one device.
    Device(Device),
    /// On every replica's device, like the value itself: an all-reduce.
    Replicas,
}

impl From<Device> for Destinations {
    fn from(device: Device) -> Self {
        Destinations::Device(device)
    }
}

impl TryFrom<&str> for Destinations {
    type Error = Error;

    fn try_from(device: &str) -> Result<Self> {
        device.parse().map(Destinations::Device)
    }
}

impl Strategy {
    /// Combines a value over the replicas, and over `axis` of each replica's tensor if given.
    ///
    /// With several workers it combines over the replicas of all workers: every worker makes the
    /// call with the values of its own replicas and gets the result. It is a call of the replicas'
    /// engines, each on a thread of its own; the engine of the host's memory takes all values of a
    /// process at once.
    ///
    /// Without an axis all shapes are equal. With one (or several), the replicas' sizes along it
    /// may differ, as for a last partial batch, and the mean divides by the true number of
    /// elements. The mean of integers is a float, computed from a sum that does not wrap; for u32
    /// and i32 this holds for up to 2^31 elements per element of the result.
    /// [`IndexedSlices`](crate::IndexedSlices) keep all rows. With an axis the result is a tensor,
    /// and an `IndexedSlices` cannot hold one: pass the tensor of
    /// [`to_dense`](crate::IndexedSlices::to_dense) instead.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] for an operation that is not defined on
    /// the dtype, an axis out of range, or another number of values than replicas;
    /// [`Error::Mismatch`] for shapes, dtypes or structures that differ; both also by the rules of
    /// [`StaticShapes`](crate::StaticShapes); [`Error::WrongContext`]
    /// inside a replica: use [`ReplicaContext::all_reduce`](crate::ReplicaContext::all_reduce)
    /// there.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batch = PerReplica::new(vec![Tensor::from([0.0f32, 1.0, 2.0, 3.0]), Tensor::from([4.0f32, 5.0])]);
    /// assert_eq!(strategy.reduce(ReduceOp::Sum, &batch, 0)?, Tensor::from(15.0f32));
    /// assert_eq!(strategy.reduce("MEAN", &batch, 0)?, Tensor::from(2.5f32));
    /// let error = strategy.reduce("SUM", &batch, None).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "Strategy::reduce: mismatch in value of replica 1: expected f32[4], found f32[2]; give an axis to reduce along it"
    /// );
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce<N: Nest + Clone>(
        &self,
        op: impl IntoReduceOp,
        value: &PerReplica<N>,
        axis: impl Into<Axes>,
    ) -> Result<N> {
        let axes = axis.into();
        let hint = if axes == Axes::default() { HINT } else { "" };
        let kind = kind::STRATEGY_REDUCE;
        self.reduce_along(kind.name(), kind, op, value, &axes, hint)
    }

    /// Does [`reduce`](Strategy::reduce). `call` names it in errors, and the workers agree on
    /// `kind`.
    pub(crate) fn reduce_along<N: Nest + Clone>(
        &self,
        call: &'static str,
        kind: Kind,
        op: impl IntoReduceOp,
        value: &PerReplica<N>,
        axes: &Axes,
        hint: &str,
    ) -> Result<N> {
        let checked = context::require_cross_replica(call, self).and_then(|()| op_of(call, op));
        let checked = checked.and_then(|op| self.contract().map_or(Ok(op), |_| contract::check_op(call, op)));
        let checked = checked.and_then(|op| self.check_count(call, "value", value.values().len()).map(|()| op));
        let op = self.or_refuse(kind, checked)?;
        let reduction = Reduction { call, kind, op, axes, grains: None, hint };
        let (rest, values) = taken(value.iter());
        let reduced = self.reduce_leaves(&reduction, &values)?;
        self.put(call, rest, reduced)
    }

    /// Combines a value over the grains of all replicas, and over `axis` of each grain's tensor if
    /// given. Each replica has the values of its [grains](crate::ReplicaContext::grains), as those
    /// of a [data set's step](Strategy::distribute_grains) or as a run returns them. The result has
    /// the bits of a [`reduce`](Strategy::reduce) of as many replicas as there are grains, for any
    /// number of replicas. With an axis, a mean divides by the true number of elements of all
    /// grains; a grain without elements contributes, too.
    ///
    /// With several workers every worker makes the call and gets the result.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for other grains than those of the replica, and for values of a
    /// replica's grains with different structures, dtypes or shapes; otherwise as
    /// [`reduce`](Strategy::reduce).
    ///
    /// ```
    /// use consonance::{Grains, MirroredStrategy, Tensor};
    /// // Grain i has i rows: replica 0 has the grains 0, 1 and 2, replica 1 the grains 3 and 4.
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).grains(5).build()?;
    /// let losses = strategy.run(|replica| {
    ///     let rows = |grain| Tensor::from(vec![grain as f32; grain]);
    ///     Ok(Grains::new(replica.grains().start, replica.grains().map(rows).collect()))
    /// })?;
    /// assert_eq!(strategy.reduce_grains("sum", &losses, 0)?, Tensor::from(30.0f32));
    /// assert_eq!(strategy.reduce_grains("mean", &losses, 0)?, Tensor::from(3.0f32));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_grains<N: Nest + Clone>(
        &self,
        op: impl IntoReduceOp,
        value: &PerReplica<Grains<N>>,
        axis: impl Into<Axes>,
    ) -> Result<N> {
        let (axes, kind) = (axis.into(), kind::STRATEGY_REDUCE_GRAINS);
        let call = kind.name();
        let checked = context::require_cross_replica(call, self).and_then(|()| op_of(call, op));
        let checked = checked.and_then(|op| self.contract().map_or(Ok(op), |_| contract::check_op(call, op)));
        let of = self.grains();
        let checked = checked.and_then(|op| self.check_grains(call, of, value).map(|()| op));
        let op = self.or_refuse(kind, checked)?;
        let (rest, values) = taken(value.iter().flat_map(Grains::values));
        let alike = self.local_replicas().zip(value.iter()).scan(values.as_slice(), |rest, (replica, grains)| {
            let own = rest.split_off(..grains.values().len())?;
            let alike = match self.contract() {
                None => check_alike(call, own, grains.numbers(), &axes),
                Some(_) => contract::check_equal(call, REDUCED_SHAPE, 0, own),
            };
            Some(alike.map_err(|error| error.of_replica(replica).of_contribution(|_| replica)))
        });
        self.or_refuse(kind, alike.collect::<Result<()>>())?;
        let runs: Vec<Range<usize>> = value.iter().map(Grains::numbers).collect();
        let grains = Some(Dealt { of, runs: &runs });
        let reduction = Reduction { call, kind, op, axes: &axes, grains, hint: "" };
        let reduced = self.reduce_leaves(&reduction, &values)?;
        self.put(call, rest, reduced)
    }

    /// Checks that each replica of this process has its grains, of so many.
    fn check_grains<N>(&self, call: &'static str, of: usize, value: &PerReplica<Grains<N>>) -> Result<()> {
        self.check_count(call, "value", value.values().len())?;
        for (replica, grains) in self.local_replicas().zip(value.iter()) {
            // There may be fewer replicas since the numbers of these were read: after a reform.
            let own = partition::block(of, self.num_replicas_in_sync().max(replica + 1), replica);
            if grains.numbers() != own {
                let (expected, found) = (format!("grains {own:?}"), format!("grains {:?}", grains.numbers()));
                return Err(Error::invalid(call, "value", expected, found).of_replica(replica));
            }
        }
        Ok(())
    }

    fn put<N: Nest>(&self, call: &'static str, rest: N, leaves: Vec<Leaf>) -> Result<N> {
        nest::put(rest, leaves).map_err(|error| error.of_call(call))
    }

    /// Returns the exact sum or mean of a value over the replicas, and over `axis` of each
    /// replica's tensor if given, rounded once. So it has the same bits for any number of replicas
    /// and any division of the elements among them, also into batches or files.
    ///
    /// The elements are f32 or f64, and the result is the float nearest to the exact sum, or to the
    /// exact sum divided by the number of elements; of two the one whose last bit is even. What
    /// lies beyond the largest float is an infinity. A NaN, or infinities of both signs, give NaN.
    /// A sum is −0 if all elements are −0, and +0 if it is zero otherwise or has no elements; the
    /// mean of no elements is NaN. Otherwise values, axes and workers are as in
    /// [`reduce`](Strategy::reduce).
    ///
    /// # Errors
    /// As [`reduce`](Strategy::reduce), and [`Error::InvalidCall`] for operations other than sum
    /// and mean, elements other than f32 and f64, and [`IndexedSlices`](crate::IndexedSlices). Pass
    /// the tensor of [`to_dense`](crate::IndexedSlices::to_dense) instead of rows.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica, Tensor};
    /// let losses: Vec<f32> = (0..1000).map(|sample| 1.0 / (1 + sample) as f32).collect();
    /// let mean = |replicas: usize, batch: usize| {
    ///     let strategy = MirroredStrategy::new((0..replicas).map(|replica| format!("cpu:{replica}")))?;
    ///     let parts = (0..replicas).map(|replica| {
    ///         let own = losses.chunks(batch).skip(replica).step_by(replicas);
    ///         Tensor::from(own.flatten().copied().collect::<Vec<f32>>())
    ///     });
    ///     let mean: Tensor = strategy.reduce_exact("mean", &PerReplica::new(parts.collect()), 0)?;
    ///     Ok::<u32, consonance::Error>(mean.item::<f32>()?.to_bits())
    /// };
    /// assert_eq!(mean(3, 10)?, mean(1, 1000)?);
    /// assert_eq!(mean(8, 7)?, mean(1, 1000)?);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_exact<N: Nest + Clone>(
        &self,
        op: impl IntoReduceOp,
        value: &PerReplica<N>,
        axis: impl Into<Axes>,
    ) -> Result<N> {
        let (kind, axes) = (kind::STRATEGY_REDUCE_EXACT, axis.into());
        let hint = if axes == Axes::default() { HINT } else { "" };
        let call = kind.name();
        let checked = context::require_cross_replica(call, self).and_then(|()| op_of(call, op));
        let checked = checked.and_then(|op| exact::check_op(call, op));
        let checked = checked.and_then(|op| self.check_count(call, "value", value.values().len()).map(|()| op));
        let op = self.or_refuse(kind, checked)?;
        let (rest, values) = taken(value.iter());
        let reduced = self.reduce_leaves_exactly(kind, op, &values, &axes, hint)?;
        self.put(call, rest, reduced)
    }

    /// Concatenates a value over the replicas along `axis`, in replica order. With several workers
    /// it concatenates over the replicas of all workers.
    ///
    /// Sizes along `axis` may differ and may be zero; all other dimensions are equal. A negative
    /// axis counts from the last. [`IndexedSlices`](crate::IndexedSlices) stay sparse: the result
    /// stands for the dense tensors concatenated along axis 0.
    ///
    /// # Errors
    /// As [`reduce`](Strategy::reduce), and [`Error::InvalidCall`] for a scalar, or for
    /// [`IndexedSlices`](crate::IndexedSlices) without a dense shape.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let columns = strategy.distribute_values_from_function(|_| Tensor::from([[1], [2]]))?;
    /// assert_eq!(strategy.gather(&columns, 0)?, Tensor::from([[1], [2], [1], [2]]));
    /// assert_eq!(strategy.gather(&columns, 1)?, Tensor::from([[1, 1], [2, 2]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn gather<N: Nest + Clone>(&self, value: &PerReplica<N>, axis: impl Into<Axis>) -> Result<N> {
        let kind = kind::STRATEGY_GATHER;
        let checked = context::require_cross_replica(kind.name(), self);
        let checked = checked.and_then(|()| self.check_count(kind.name(), "value", value.values().len()));
        self.or_refuse(kind, checked)?;
        let (rest, values) = taken(value.iter());
        let gathered = self.gather_leaves(kind, &values, axis.into())?;
        self.put(kind.name(), rest, gathered)
    }

    /// Combines a value over the replicas and places the result at `destinations`: on one device,
    /// or on the devices of all replicas. TensorFlow accepts a variable there;
    /// [assign](crate::Variable::assign) the result to it instead.
    ///
    /// # Errors
    /// As [`reduce`](Strategy::reduce), and [`Error::InvalidCall`] for a device that does not
    /// exist.
    ///
    /// ```
    /// use consonance::{Destinations, MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run(|replica| Ok(Tensor::from(replica.replica_id_in_sync_group() as f32)))?;
    /// assert_eq!(strategy.reduce_to("sum", &ids, "cpu:0")?.into_value(), Tensor::from(1.0f32));
    /// assert_eq!(strategy.reduce_to("sum", &ids, Destinations::Replicas)?.devices().len(), 2);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_to<N, D>(&self, op: impl IntoReduceOp, value: &PerReplica<N>, destinations: D) -> Result<Mirrored<N>>
    where
        N: Nest + Clone,
        D: TryInto<Destinations>,
        Error: From<D::Error>,
    {
        let kind = kind::STRATEGY_REDUCE_TO;
        let destinations = self.or_refuse(kind, destinations.try_into().map_err(Error::from))?;
        self.reduce_to_as(kind.name(), op, value, destinations)
    }

    fn reduce_to_as<N: Nest + Clone>(
        &self,
        call: &'static str,
        op: impl IntoReduceOp,
        value: &PerReplica<N>,
        destinations: Destinations,
    ) -> Result<Mirrored<N>> {
        let devices = match destinations {
            Destinations::Device(device) => {
                vec![self.or_refuse(kind::STRATEGY_REDUCE_TO, device::resolve(call, device))?]
            }
            Destinations::Replicas => self.worker_devices().to_vec(),
        };
        let reduced = self.reduce_along(call, kind::STRATEGY_REDUCE_TO, op, value, &Axes::default(), "")?;
        Ok(Mirrored::new(reduced, devices))
    }

    /// Does [`reduce_to`](Strategy::reduce_to) for several values, each with its destinations.
    /// Dtypes may differ.
    ///
    /// Each pair is a call of its own, so [`bytes_per_pack`] never packs values of several pairs
    /// together. If the replicas share the host's memory, nothing is packed: values are read in
    /// place.
    ///
    /// [`bytes_per_pack`]: crate::CommunicationOptions::bytes_per_pack
    ///
    /// # Errors
    /// As [`reduce_to`](Strategy::reduce_to).
    ///
    /// ```
    /// use consonance::{Destinations, Device, MirroredStrategy, PerReplica, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let loss = PerReplica::new(vec![Tensor::from(1.0f32), Tensor::from(2.0f32)]);
    /// let count = PerReplica::new(vec![Tensor::from(3i64), Tensor::from(4i64)]);
    /// let pairs = [(loss, Device::Cpu(0).into()), (count, Destinations::Replicas)];
    /// let totals = strategy.batch_reduce_to("sum", &pairs)?;
    /// assert_eq!(totals[0].value(), &Tensor::from(3.0f32));
    /// assert_eq!(totals[1].value(), &Tensor::from(7i64));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn batch_reduce_to<N: Nest + Clone>(
        &self,
        op: impl IntoReduceOp,
        value_destination_pairs: &[(PerReplica<N>, Destinations)],
    ) -> Result<Vec<Mirrored<N>>> {
        let call = "Strategy::batch_reduce_to";
        let op = op_of(call, op);
        // Without pairs the others make no call either.
        let op = if value_destination_pairs.is_empty() { op } else { self.or_refuse(kind::STRATEGY_REDUCE_TO, op) }?;
        value_destination_pairs
            .iter()
            .map(|(value, destinations)| self.reduce_to_as(call, op, value, *destinations))
            .collect()
    }
}

/// Returns the leaves of each value, and the rest of the first one, which takes the result.
fn taken<'v, N: Nest + Clone + 'v>(values: impl Iterator<Item = &'v N>) -> (N, Vec<Vec<Leaf>>) {
    let mut values = values.cloned();
    let mut rest = values.next().expect("a process has replicas");
    let first = nest::take(&mut rest);
    let others = values.map(|mut value| nest::take(&mut value));
    (rest, std::iter::once(first).chain(others).collect())
}

/// Checks that the values of a replica's grains agree beyond `axes`.
fn check_alike(call: &'static str, values: &[Vec<Leaf>], numbers: Range<usize>, axes: &Axes) -> Result<()> {
    let signature = |leaves: &Vec<Leaf>| NestSignature::new(leaves, axes);
    let Some(first) = values.first().map(signature) else { return Ok(()) };
    for (leaves, number) in values.iter().zip(numbers) {
        if let Some((path, expected, found)) = first.difference(&signature(leaves)) {
            return Err(Error::invalid(call, format!("{path} of grain {number}"), expected, found));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{DType, Error, MirroredStrategy, PerReplica, Result, Tensor};

    /// Found by reading: a team was kept for every number of parts that any result was split into.
    #[test]
    fn reductions_of_any_width_share_a_team() -> Result<()> {
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])?;
        for columns in [256, 384, 512, 1024] {
            let value = Tensor::new([1024, columns], &vec![1f32; 1024 * columns])?;
            let sum = strategy.reduce("sum", &PerReplica::new(vec![value; 4]), 0)?;
            assert_eq!(sum, Tensor::new([columns], &vec![4096f32; columns])?);
        }
        assert_eq!(strategy.kept_teams(), 1);
        Ok(())
    }

    /// Found by a trial: the process ended, though it had passed no more than a shape.
    #[test]
    fn a_result_of_an_empty_axis_too_large_for_memory_is_an_error() -> Result<()> {
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
        for shape in [vec![1 << 58, 0], vec![5, 0, 1 << 58]] {
            let value = PerReplica::new(vec![Tensor::zeros(DType::F64, shape); 2]);
            let error = strategy.reduce("sum", &value, 1).unwrap_err();
            assert!(matches!(error, Error::System { .. }), "{error}");
        }
        Ok(())
    }
}
