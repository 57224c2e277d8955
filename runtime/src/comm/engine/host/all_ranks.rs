//! Reductions and concatenations by one thread that has the values of all ranks, for calls outside
//! of a run. The values are read in place, and the bits are those of the ranks' own calls.

use crate::{
    Axes, Axis, Error, IndexedSlices, ReduceOp, Result, Tensor, device,
    error::operation_on,
    value::{
        axis::{self, Flat},
        exact, indexed_slices,
        nest::{Leaf, NestSignature, Path, Value},
        tensor,
    },
};
use consonance_kernels::{
    cpu::{
        axis::{Along, Part},
        copy::copy_own,
        exact::{self as kernels, View},
        reduce::Reducer,
    },
    memory::{HostBuf, HostBufMut, HostMemory},
};
use consonance_spec::partition;
use std::{ops::Range, sync::Mutex};

/// Reductions of fewer bytes run on one thread: the data is in the caches, and waking other threads
/// takes longer than the reduction (measured: PERF.md).
const PARALLEL_BYTES: usize = 1 << 20;

/// Alignment in elements of the blocks of a result that threads write at once, so that they share
/// no cache line.
const BORDER_COUNT: usize = 128;

/// The values of all ranks, whose threads share the memory of this process.
pub(crate) struct AllRanks<'r> {
    /// The name of the call in errors.
    pub(crate) call: &'static str,
    /// The leaves of each rank's value.
    pub(crate) values: &'r [Vec<Leaf>],
    /// Calls a function with each number below this one, each on its own thread.
    pub(crate) on_threads: &'r dyn Fn(usize, &Work<'_>) -> Result<()>,
}

/// The work of a thread, by its number.
type Work<'w> = dyn Fn(usize) + Sync + 'w;

impl AllRanks<'_> {
    /// Combines each leaf over the ranks, and over `axes` of each rank's tensor.
    pub(crate) fn reduce(&self, op: ReduceOp, axes: &Axes) -> Result<Vec<Leaf>> {
        self.combine(axes, |path, leaves| match leaves {
            Leaves::Dense(tensors) => self.reduce_tensors(path, op, &tensors, axes).map(Value::Dense),
            Leaves::Sparse(slices) if *axes == Axes::default() => self.reduce_rows(op, &slices).map(Value::Sparse),
            Leaves::Sparse(slices) => {
                let dense = each(&slices, |slices| slices.to_dense())?;
                let dense: Vec<&Tensor> = dense.iter().collect();
                self.reduce_tensors(path, op, &dense, axes).map(Value::Dense)
            }
        })
    }

    /// Combines each leaf over the ranks, and over `axes` of each rank's tensor, rounded once.
    pub(crate) fn reduce_exact(&self, op: ReduceOp, axes: &Axes) -> Result<Vec<Leaf>> {
        for (replica, leaves) in self.values.iter().enumerate() {
            let checked = leaves.iter().try_for_each(|leaf| exact::check(self.call, op, leaf, axes));
            checked.map_err(|error| error.of_replica(replica))?;
        }
        self.combine(axes, |path, leaves| match leaves {
            Leaves::Dense(tensors) => self.reduce_tensors_exactly(path, op, &tensors, axes).map(Value::Dense),
            Leaves::Sparse(_) => Err(Error::invalid(self.call, path.to_string(), "a tensor", "IndexedSlices")),
        })
    }

    /// Concatenates each leaf over the ranks along `axis`.
    pub(crate) fn gather(&self, axis: Axis) -> Result<Vec<Leaf>> {
        self.combine(&Axes::from(axis), |path, leaves| match leaves {
            Leaves::Dense(tensors) => {
                let axis = axis.resolve(self.call, path, tensors[0].rank())?;
                self.concat(&tensors, axis).map(Value::Dense)
            }
            Leaves::Sparse(slices) => {
                let sizes = each(&slices, |slices| indexed_slices::check_gather(self.call, path, slices, axis))?;
                let (values, indices, counts) = self.concat_rows(&slices)?;
                indexed_slices::gathered(self.call, values, indices, &counts, &sizes).map(Value::Sparse)
            }
        })
    }

    /// Compares the structure of the ranks' values and combines them leaf by leaf. Sizes along the
    /// axes `ragged` may differ.
    fn combine(&self, ragged: &Axes, combine: impl Fn(&Path, Leaves<'_>) -> Result<Value>) -> Result<Vec<Leaf>> {
        let first = &self.values[0];
        for (replica, leaves) in self.values.iter().enumerate().skip(1) {
            // Most values agree in all sizes: then nothing is described.
            if leaves.len() == first.len() && leaves.iter().zip(first).all(|(leaf, first)| leaf.is_like(first)) {
                continue;
            }
            let expected = NestSignature::new(first, ragged);
            if let Some((argument, expected, found)) = expected.difference(&NestSignature::new(leaves, ragged)) {
                return Err(Error::Mismatch { call: self.call.to_owned(), replica, argument, expected, found });
            }
        }
        let combined = (0..first.len()).map(|place| {
            let path = first[place].path.clone();
            let leaves = Leaves::of(self.values.iter().map(|leaves| &leaves[place]));
            Ok(Leaf { value: combine(&path, leaves)?, path })
        });
        combined.collect()
    }

    fn reduce_tensors(&self, path: &Path, op: ReduceOp, tensors: &[&Tensor], axes: &Axes) -> Result<Tensor> {
        let dtype = tensors[0].dtype();
        let undefined = || Error::invalid(self.call, "op", operation_on(dtype, &path.to_string()), op.name());
        let removed = axes.resolve(self.call, path, tensors[0].rank())?;
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
        axis::require_contributions(self.call, op.name(), op.has_identity(), flats.iter().map(Flat::elements))?;
        let kept = Flat::kept(tensors[0], &removed);
        let no_memory = axis::no_memory(dtype, &kept);
        let mut along = Along::new(op, &views).map_err(&no_memory)?.ok_or_else(undefined)?;
        let threads = self.threads(tensors.iter().map(|tensor| tensor.buf().bytes()).sum());
        let parts: Vec<_> = along.parts(threads).into_iter().map(|part| Mutex::new(Some(part))).collect();
        // Fewer parts use the same team: a team is kept for each size.
        (self.on_threads)(if parts.len() > 1 { threads } else { 1 }, &|thread| {
            let part = parts.get(thread).and_then(|part| part.lock().expect("nobody panics holding a part").take());
            part.into_iter().for_each(Part::run);
        })?;
        drop(parts);
        let result = along.finish().map_err(no_memory)?;
        Tensor::from_memory(kept, result)
    }

    fn reduce_tensors_exactly(&self, path: &Path, op: ReduceOp, tensors: &[&Tensor], axes: &Axes) -> Result<Tensor> {
        let dtype = tensors[0].dtype();
        let views = tensors.iter().map(|tensor| exact::view(self.call, path, tensor, axes));
        let (flats, shapes): (Vec<Flat>, Vec<Vec<usize>>) = views.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let kept = &shapes[0];
        let views = flats.iter().map(Flat::view).collect::<Result<Vec<View<'_>>>>()?;
        let results = kept.iter().product();
        let mut memory = HostMemory::try_unspecified(dtype, results).map_err(axis::no_memory(dtype, kept))?;
        let threads = self.threads(views.iter().map(|(elements, _)| elements.bytes()).sum());
        if threads > 1 && results < threads * BORDER_COUNT && views.iter().all(|(_, [outer, ..])| *outer == 1) {
            self.split_axis(op, &views, threads, memory.as_buf_mut())?;
        } else {
            let work = |block: Range<usize>, target: &mut HostBufMut<'_>| {
                kernels::reduce(op, &views, block, target.reborrow());
            };
            self.in_blocks(threads, memory.as_buf_mut(), work)?;
        }
        Tensor::from_memory(kept.clone(), memory)
    }

    /// Computes few results with several threads, each the part of a block of each view's axis.
    fn split_axis(&self, op: ReduceOp, views: &[View<'_>], threads: usize, output: HostBufMut<'_>) -> Result<()> {
        let words = output.count() * kernels::words(output.dtype());
        let parts: Vec<Mutex<Vec<u64>>> = (0..threads * views.len()).map(|_| Mutex::new(vec![0; words])).collect();
        (self.on_threads)(threads, &|thread| {
            for ((elements, [_, axis, inner]), part) in views.iter().zip(&parts[thread * views.len()..]) {
                let block = partition::block(*axis, threads, thread);
                let own = elements.slice(block.start * inner..block.end * inner);
                let mut part = part.lock().expect("nobody panics holding a part");
                kernels::partial((own, [1, block.len(), *inner]), 0..*inner, &mut part);
            }
        })?;
        let parts: Vec<Vec<u64>> = parts.into_iter().map(|part| part.into_inner().expect("nobody panics")).collect();
        let parts: Vec<&[u64]> = parts.iter().map(Vec::as_slice).collect();
        let count: usize = views.iter().map(|(_, [_, axis, _])| axis).sum();
        kernels::finish(op, &parts, count as u64, output);
        Ok(())
    }

    /// Reduces large inputs with several threads, each its block of the result.
    fn reduce_blocks(&self, reducer: &Reducer, inputs: &[HostBuf<'_>], output: HostBufMut<'_>) -> Result<()> {
        let (parts, mut output) = (self.threads(inputs.iter().map(HostBuf::bytes).sum()), output);
        if parts == 1 {
            reducer.reduce(inputs, &mut output);
            return Ok(());
        }
        self.in_blocks(parts, output, |block, target| {
            let inputs: Vec<HostBuf<'_>> = inputs.iter().map(|input| input.slice(block.clone())).collect();
            reducer.reduce(&inputs, target);
        })
    }

    /// Calls `work` for so many blocks of the output, each on its own thread.
    fn in_blocks(
        &self,
        parts: usize,
        output: HostBufMut<'_>,
        work: impl Fn(Range<usize>, &mut HostBufMut<'_>) + Sync,
    ) -> Result<()> {
        let (count, mut rest) = (output.count(), output);
        if parts == 1 {
            work(0..count, &mut rest);
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
        (self.on_threads)(parts, &|part| {
            let (block, target) = &mut *blocks[part].lock().expect("nobody panics holding a block");
            work(block.clone(), target);
        })
    }

    /// Returns the number of threads that reduce `bytes` bytes: 1, or the larger of the numbers of
    /// cores and of ranks.
    fn threads(&self, bytes: usize) -> usize {
        if bytes < PARALLEL_BYTES { 1 } else { device::cores().max(self.values.len()) }
    }

    /// Concatenates the tensors along `axis`; all other dimensions are equal.
    fn concat(&self, tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
        let sizes: Vec<usize> = tensors.iter().map(|tensor| tensor.shape()[axis]).collect();
        let shape = tensor::joined(self.call, tensors[0].shape(), axis, &sizes)?;
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

    /// Concatenates values and indices of all ranks. Also returns each rank's number of rows.
    fn concat_rows(&self, slices: &[&IndexedSlices]) -> Result<(Tensor, Tensor, Vec<usize>)> {
        let values: Vec<&Tensor> = slices.iter().map(|slices| slices.values()).collect();
        let indices: Vec<&Tensor> = slices.iter().map(|slices| slices.indices()).collect();
        let counts = indices.iter().map(|indices| indices.count()).collect();
        Ok((self.concat(&values, 0)?, self.concat(&indices, 0)?, counts))
    }

    fn reduce_rows(&self, op: ReduceOp, slices: &[&IndexedSlices]) -> Result<IndexedSlices> {
        indexed_slices::check_op(self.call, op)?;
        let (mut values, indices, _) = self.concat_rows(slices)?;
        if op.result(values.dtype()).is_none() {
            return Err(Error::invalid(self.call, "op", operation_on(values.dtype(), ""), op.name()));
        }
        if op == ReduceOp::Mean {
            values = indexed_slices::divide(self.call, &values, slices.len())?;
        }
        Ok(IndexedSlices { values, indices, dense_shape: slices[0].dense_shape.clone() })
    }
}

/// The same leaf of every rank.
enum Leaves<'a> {
    Dense(Vec<&'a Tensor>),
    Sparse(Vec<&'a IndexedSlices>),
}

impl<'a> Leaves<'a> {
    /// Groups leaves that have equal signatures, so they are all dense or all sparse.
    fn of(leaves: impl Iterator<Item = &'a Leaf>) -> Leaves<'a> {
        let (mut dense, mut sparse) = (Vec::new(), Vec::new());
        for leaf in leaves {
            match &leaf.value {
                Value::Dense(tensor) => dense.push(tensor),
                Value::Sparse(slices) => sparse.push(slices),
            }
        }
        if sparse.is_empty() { Leaves::Dense(dense) } else { Leaves::Sparse(sparse) }
    }
}

/// Calls `f` for each rank's rows. Returns the results or the first error.
fn each<R>(slices: &[&IndexedSlices], f: impl Fn(&IndexedSlices) -> Result<R>) -> Result<Vec<R>> {
    slices.iter().enumerate().map(|(id, slices)| f(slices).map_err(|error| error.of_replica(id))).collect()
}
