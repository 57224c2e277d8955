//! Cross-replica calls: reduce, gather, and their relatives with destinations.

use crate::{
    Axes, Axis, Device, Error, IndexedSlices, Mirrored, Nest, PerReplica, ReduceOp, Result, Strategy, Tensor, device,
    error::{IntoReduceOp, op_of, operation_on},
    handle::context,
    kind,
    value::{
        axis::{self, Flat},
        indexed_slices,
        nest::{self, Leaf, NestSignature, Path, Value},
        tensor,
    },
};
use consonance_kernels::{
    cpu::{
        axis::{Along, Part},
        copy::copy_own,
        reduce::Reducer,
    },
    memory::{HostBuf, HostBufMut, HostMemory},
};
use consonance_spec::{Kind, partition};
use std::{iter, sync::Mutex};

/// Reductions of fewer bytes run on one thread: the data is in the caches, and waking other threads
/// takes longer than the reduction (measured: PERF.md).
const PARALLEL_BYTES: usize = 1 << 20;

/// Alignment in elements of the blocks of a result that threads write at once, so that they share
/// no cache line.
const BORDER_COUNT: usize = 128;

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
    /// call with the values of its own replicas and gets the result. With one worker it takes no
    /// engine, also if the strategy was [built](crate::Builder::engines) with engines: threads of
    /// this process combine the values in the host's memory.
    ///
    /// Without an axis all shapes are equal. With one (or several), the replicas' sizes along it
    /// may differ, as for a last partial batch, and the mean divides by the true number of
    /// elements. The mean of integers is a float, computed from a sum that does not wrap; for u32
    /// and i32 this holds for up to 2^31 elements per element of the result. [`IndexedSlices`] keep
    /// all rows. With an axis the result is a tensor, and an `IndexedSlices` cannot hold one: pass
    /// the tensor of [`IndexedSlices::to_dense`] instead.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`]; [`Error::InvalidCall`] for an operation that is not defined on
    /// the dtype, an axis out of range, or another number of values than replicas;
    /// [`Error::Mismatch`] for shapes, dtypes or structures that differ; [`Error::WrongContext`]
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
        let hint = if axes == Axes::default() { "; give an axis to reduce along it" } else { "" };
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
        let op = self.or_refuse(kind, checked)?;
        if let Some(reduced) = self.reduce_across(call, kind, op, value, axes, hint) {
            return reduced;
        }
        self.combine(call, value, axes, hint, |path, leaves| match leaves {
            Leaves::Dense(tensors) => Ok(Value::Dense(self.reduce_tensors(call, path, op, &tensors, axes)?)),
            Leaves::Sparse(slices) if *axes == Axes::default() => reduce_rows(call, op, &slices).map(Value::Sparse),
            Leaves::Sparse(slices) => {
                let dense = each(&slices, |slices| slices.to_dense())?;
                let dense: Vec<&Tensor> = dense.iter().collect();
                Ok(Value::Dense(self.reduce_tensors(call, path, op, &dense, axes)?))
            }
        })
    }

    /// Concatenates a value over the replicas along `axis`, in replica order. With several workers
    /// it concatenates over the replicas of all workers.
    ///
    /// Sizes along `axis` may differ and may be zero; all other dimensions are equal. A negative
    /// axis counts from the last. [`IndexedSlices`] stay sparse: the result stands for the dense
    /// tensors concatenated along axis 0.
    ///
    /// # Errors
    /// As [`reduce`](Strategy::reduce), and [`Error::InvalidCall`] for a scalar, or for
    /// [`IndexedSlices`] without a dense shape.
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
        let (kind, axis) = (kind::STRATEGY_GATHER, axis.into());
        let call = kind.name();
        self.or_refuse(kind, context::require_cross_replica(call, self))?;
        if let Some(gathered) = self.gather_across(kind, value, axis) {
            return gathered;
        }
        self.combine(call, value, &Axes::from(axis), "", |path, leaves| match leaves {
            Leaves::Dense(tensors) => {
                let axis = axis.resolve(call, path, tensors[0].rank())?;
                concat(call, &tensors, axis).map(Value::Dense)
            }
            Leaves::Sparse(slices) => {
                let sizes = each(&slices, |slices| indexed_slices::check_gather(call, path, slices, axis))?;
                let (values, indices, counts) = concat_rows(call, &slices)?;
                indexed_slices::gathered(call, values, indices, &counts, &sizes).map(Value::Sparse)
            }
        })
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
    /// together. Within one process nothing is packed: values are read in place.
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

    /// Compares the structure of the replicas' nests and combines them leaf by leaf. Sizes along
    /// the axes `ragged` may differ.
    fn combine<N: Nest + Clone>(
        &self,
        call: &'static str,
        value: &PerReplica<N>,
        ragged: &Axes,
        hint: &str,
        combine: impl Fn(&Path, Leaves<'_>) -> Result<Value>,
    ) -> Result<N> {
        self.check_count(call, "value", value.values().len())?;
        // The rest of the first replica's clone takes the result.
        let mut rest = value[0].clone();
        let others = value.iter().skip(1).map(|value| nest::take(&mut value.clone()));
        let replicas: Vec<Vec<Leaf>> = iter::once(nest::take(&mut rest)).chain(others).collect();
        let first = &replicas[0];
        for (replica, leaves) in replicas.iter().enumerate().skip(1) {
            // Most values agree in all sizes: then nothing is described.
            if leaves.len() == first.len() && leaves.iter().zip(first).all(|(leaf, first)| leaf.is_like(first)) {
                continue;
            }
            let expected = NestSignature::new(first, ragged);
            if let Some((argument, expected, found)) = expected.difference(&NestSignature::new(leaves, ragged)) {
                let (call, found) = (call.to_owned(), found + hint);
                return Err(Error::Mismatch { call, replica, argument, expected, found });
            }
        }
        let combined = (0..first.len()).map(|place| {
            let path = first[place].path.clone();
            let leaves = Leaves::of(replicas.iter().map(|leaves| &leaves[place]));
            Ok(Leaf { value: combine(&path, leaves)?, path })
        });
        nest::put(rest, combined.collect::<Result<_>>()?).map_err(|error| error.of_call(call))
    }

    fn reduce_tensors(
        &self,
        call: &'static str,
        path: &Path,
        op: ReduceOp,
        tensors: &[&Tensor],
        axes: &Axes,
    ) -> Result<Tensor> {
        let dtype = tensors[0].dtype();
        let undefined = || Error::invalid(call, "op", operation_on(dtype, &path.to_string()), op.name());
        let removed = axes.resolve(call, path, tensors[0].rank())?;
        let Some(removed) = removed.filter(|removed| removed.contains(&true)) else {
            let reducer = Reducer::new(op, dtype).ok_or_else(undefined)?;
            let (output, count) = (reducer.output(), tensors[0].count());
            let mut memory = HostMemory::try_unspecified(output, count).map_err(Error::no_memory(output, count))?;
            let inputs: Vec<HostBuf<'_>> = tensors.iter().map(|tensor| tensor.host()).collect::<Result<_>>()?;
            self.reduce_blocks(&reducer, &inputs, memory.as_buf_mut())?;
            return Tensor::from_memory(tensors[0].shape().to_vec(), memory);
        };
        op.result(dtype).ok_or_else(undefined)?;
        let flats: Vec<Flat> = tensors.iter().map(|tensor| Flat::new(tensor, &removed)).collect::<Result<_>>()?;
        let views = flats.iter().map(Flat::view).collect::<Result<Vec<_>>>()?;
        axis::require_contributions(call, op.name(), op.has_identity(), flats.iter().map(Flat::elements))?;
        let kept = Flat::kept(tensors[0], &removed);
        let no_memory = axis::no_memory(dtype, &kept);
        let mut along = Along::new(op, &views).map_err(&no_memory)?.ok_or_else(undefined)?;
        let threads = self.threads(tensors.iter().map(|tensor| tensor.buf().bytes()).sum());
        let parts: Vec<_> = along.parts(threads).into_iter().map(|part| Mutex::new(Some(part))).collect();
        // Fewer parts use the same team: a team is kept for each size.
        self.for_each(if parts.len() > 1 { threads } else { 1 }, &|thread| {
            let part = parts.get(thread).and_then(|part| part.lock().expect("nobody panics holding a part").take());
            part.into_iter().for_each(Part::run);
        })?;
        drop(parts);
        let result = along.finish().map_err(no_memory)?;
        Tensor::from_memory(kept, result)
    }

    /// Reduces large inputs with several threads, each its block of the result.
    fn reduce_blocks(&self, reducer: &Reducer, inputs: &[HostBuf<'_>], output: HostBufMut<'_>) -> Result<()> {
        let (count, parts) = (output.count(), self.threads(inputs.iter().map(HostBuf::bytes).sum()));
        let mut rest = output;
        if parts == 1 {
            reducer.reduce(inputs, &mut rest);
            return Ok(());
        }
        let blocks: Vec<_> = (0..parts)
            .map(|part| {
                let block = partition::aligned_block(count, BORDER_COUNT, parts, part);
                let (target, after) =
                    std::mem::replace(&mut rest, HostBufMut::from([0u8; 0].as_mut_slice())).split_at(block.len());
                rest = after;
                Mutex::new((block, target))
            })
            .collect();
        self.for_each(parts, &|part| {
            let (block, target) = &mut *blocks[part].lock().expect("nobody panics holding a block");
            let inputs: Vec<HostBuf<'_>> = inputs.iter().map(|input| input.slice(block.clone())).collect();
            reducer.reduce(&inputs, target);
        })
    }

    /// Returns the number of threads that reduce `bytes` bytes: 1, or the larger of the numbers of
    /// cores and of replicas.
    fn threads(&self, bytes: usize) -> usize {
        if bytes < PARALLEL_BYTES { 1 } else { device::cores().max(self.local_replicas().len()) }
    }

    /// Runs `work(i)` for each `i` below `threads`, each on its own thread. A single one runs on
    /// this thread.
    fn for_each(&self, threads: usize, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
        if threads == 1 {
            work(0);
            return Ok(());
        }
        let mut team = self.team_of(threads)?;
        team.run(work);
        self.give_back(team);
        Ok(())
    }
}

/// The same leaf of every replica.
enum Leaves<'a> {
    Dense(Vec<&'a Tensor>),
    Sparse(Vec<&'a IndexedSlices>),
}

impl<'a> Leaves<'a> {
    /// Groups leaves that have equal signatures, so they are all dense or all sparse.
    fn of(leaves: impl Iterator<Item = &'a Leaf> + Clone) -> Leaves<'a> {
        let dense = leaves.clone().filter_map(|leaf| match &leaf.value {
            Value::Dense(tensor) => Some(tensor),
            Value::Sparse(_) => None,
        });
        let dense: Vec<&Tensor> = dense.collect();
        if !dense.is_empty() {
            return Leaves::Dense(dense);
        }
        let sparse = leaves.filter_map(|leaf| match &leaf.value {
            Value::Sparse(slices) => Some(slices),
            Value::Dense(_) => None,
        });
        Leaves::Sparse(sparse.collect())
    }
}

/// Concatenates the tensors along `axis`; all other dimensions are equal.
fn concat(call: &'static str, tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
    let sizes: Vec<usize> = tensors.iter().map(|tensor| tensor.shape()[axis]).collect();
    let shape = tensor::joined(call, tensors[0].shape(), axis, &sizes)?;
    let rows: usize = shape[..axis].iter().product();
    let (dtype, count) = (tensors[0].dtype(), shape.iter().product());
    let mut memory = HostMemory::try_unspecified(dtype, count).map_err(Error::no_memory(dtype, count))?;
    if memory.count() == 0 {
        // An empty result may have too many rows to loop over.
        return Tensor::from_memory(shape, memory);
    }
    let mut start = 0;
    for row in 0..rows {
        for tensor in tensors {
            let count = tensor.count() / rows;
            let part = tensor.host()?.slice(row * count..(row + 1) * count);
            copy_own(part, &mut memory.as_buf_mut().slice(start..start + count));
            start += count;
        }
    }
    Tensor::from_memory(shape, memory)
}

/// Calls `f` for each replica's rows. Returns the results or the first error.
fn each<R>(slices: &[&IndexedSlices], f: impl Fn(&IndexedSlices) -> Result<R>) -> Result<Vec<R>> {
    slices.iter().enumerate().map(|(id, slices)| f(slices).map_err(|error| error.of_replica(id))).collect()
}

/// Concatenates values and indices of all replicas. Also returns each replica's number of rows.
fn concat_rows(call: &'static str, slices: &[&IndexedSlices]) -> Result<(Tensor, Tensor, Vec<usize>)> {
    let values: Vec<&Tensor> = slices.iter().map(|slices| slices.values()).collect();
    let indices: Vec<&Tensor> = slices.iter().map(|slices| slices.indices()).collect();
    let counts = indices.iter().map(|indices| indices.count()).collect();
    Ok((concat(call, &values, 0)?, concat(call, &indices, 0)?, counts))
}

fn reduce_rows(call: &'static str, op: ReduceOp, slices: &[&IndexedSlices]) -> Result<IndexedSlices> {
    indexed_slices::check_op(call, op)?;
    let (mut values, indices, _) = concat_rows(call, slices)?;
    if op.result(values.dtype()).is_none() {
        return Err(Error::invalid(call, "op", operation_on(values.dtype(), ""), op.name()));
    }
    if op == ReduceOp::Mean {
        values = indexed_slices::divide(call, &values, slices.len())?;
    }
    Ok(IndexedSlices { values, indices, dense_shape: slices[0].dense_shape.clone() })
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
