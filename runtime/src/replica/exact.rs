//! Exact reductions between replicas that do not share memory.
//!
//! The results are computed in rounds of [`ROUND_BYTES`]. In each, a replica computes its block of
//! the results from what the others send it, and the blocks are gathered. They send elements, or,
//! if these are more bytes, the words of an exact sum for each result.

use super::nest_call::NestCall;
use crate::{
    Axes, Communicator, Nest, ReduceOp, ReplicaContext, Result, Tensor,
    comm::call::Call,
    error::IntoReduceOp,
    kind,
    value::{
        axis::{Flat, no_memory},
        exact,
        nest::{self, Leaf},
    },
};
use consonance_kernels::{
    cpu::exact::{self as kernels, View},
    memory::{HostBuf, HostBufMut, HostMemory},
};
use consonance_spec::{partition, static_shapes::REDUCED_SHAPE};
use std::{
    ops::{DerefMut, Range},
    slice,
};

/// The bytes that a round sends and receives at most, if that is more than a result's.
const ROUND_BYTES: usize = 4 << 20;

impl ReplicaContext<'_> {
    /// Returns the exact sum or mean of `value` over all replicas, and over `axis` of each
    /// replica's tensor if given, rounded once. Every replica gets the result.
    /// [`Strategy::reduce_exact`](crate::Strategy::reduce_exact) says what it is.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for operations
    /// other than sum and mean, elements other than f32 and f64, axes out of range,
    /// [`IndexedSlices`](crate::IndexedSlices), and elements in the memory of a device.
    ///
    /// [`Error::InvalidCall`]: crate::Error::InvalidCall
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run(|replica| {
    ///     let own = if replica.replica_id_in_sync_group() == 0 { vec![1e30f32, 1.0] } else { vec![-1e30] };
    ///     replica.all_reduce_exact("sum", Tensor::from(own), 0)
    /// })?;
    /// assert_eq!(sums.values(), [Tensor::from(1.0f32), Tensor::from(1.0f32)]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_exact<N: Nest>(&self, op: impl IntoReduceOp, mut value: N, axis: impl Into<Axes>) -> Result<N> {
        let (call, kind, axes) = ("ReplicaContext::all_reduce_exact", kind::ALL_REDUCE_EXACT, axis.into());
        self.require(call)?;
        let mut leaves = nest::take(&mut value);
        let checked = self.reduced_op(call, op).and_then(|op| check_leaves(call, op, &leaves, &axes));
        let op = self.or_refuse(kind, checked)?;
        let options = self.strategy().options();
        self.refuse_nan(call, kind, &leaves, &options)?;
        let mut session = self.session(kind, &leaves, axes.clone(), &options);
        let reduced = session.all_reduce_exact(call, op, &mut leaves, &axes);
        self.by_rule(REDUCED_SHAPE, reduced)?;
        drop(session);
        self.put(call, value, leaves)
    }
}

/// Checks the operation and all leaves of an exact reduction, and returns the operation.
pub(crate) fn check_leaves(call: &'static str, op: ReduceOp, leaves: &[Leaf], axes: &Axes) -> Result<ReduceOp> {
    exact::check_op(call, op)?;
    leaves.iter().try_for_each(|leaf| exact::check(call, op, leaf, axes)).map(|()| op)
}

impl<C: DerefMut<Target = Communicator>> NestCall<C> {
    /// Reduces [checked](check_leaves) leaves exactly over the replicas, and along the axes.
    pub(crate) fn all_reduce_exact(
        &mut self,
        call: &'static str,
        op: ReduceOp,
        leaves: &mut [Leaf],
        axes: &Axes,
    ) -> Result<()> {
        self.set_own_op(op);
        if leaves.is_empty() {
            return self.sizes(0).map(drop);
        }
        for leaf in leaves {
            let path = leaf.path.clone();
            let tensor = leaf.dense(call)?;
            let (flat, kept) = exact::view(call, &path, tensor, axes)?;
            *tensor = self.reduce_view(op, &flat, kept)?;
        }
        Ok(())
    }

    /// Reduces a tensor along its axis. The result has the shape `kept`.
    fn reduce_view(&mut self, op: ReduceOp, flat: &Flat, kept: Vec<usize>) -> Result<Tensor> {
        let (view, results) = (flat.view()?, kept.iter().product());
        let dtype = view.0.dtype();
        let mut memory = HostMemory::try_unspecified(dtype, results).map_err(no_memory(dtype, &kept))?;
        let sizes = self.sizes(flat.elements())?;
        let (_, replicas) = self.place();
        if replicas == 1 {
            kernels::reduce(op, slice::from_ref(&view), 0..results, memory.as_buf_mut());
            return Tensor::from_memory(kept, memory);
        }
        let elements = sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)).saturating_mul(dtype.size());
        let words = kernels::words(dtype) * replicas * size_of::<u64>();
        let each = elements.min(words).max(1);
        let most = (ROUND_BYTES / each).max(replicas);
        for start in (0..results).step_by(most) {
            let round = start..results.min(start + most);
            let target = memory.as_buf_mut().slice(round.clone());
            if elements <= words {
                self.exchange_elements(op, view, &sizes, round, target)?;
            } else {
                self.exchange_words(op, view, &sizes, round, target)?;
            }
        }
        Tensor::from_memory(kept, memory)
    }

    /// Computes a round of results of which few elements are on each replica.
    fn exchange_elements(
        &mut self,
        op: ReduceOp,
        view: View<'_>,
        sizes: &[usize],
        round: Range<usize>,
        mut target: HostBufMut<'_>,
    ) -> Result<()> {
        let ((rank, _), dtype) = (self.place(), target.dtype());
        let blocks = self.blocks(&round);
        let (own, axis) = (blocks[rank].clone(), sizes[rank]);
        let mut sent = HostMemory::unspecified(dtype, axis * round.len());
        let mut rest = sent.as_buf_mut();
        for block in &blocks {
            let (part, after) = rest.split_at(axis * block.len());
            kernels::rows(view, round.start + block.start..round.start + block.end, part);
            rest = after;
        }
        let counts: Vec<usize> = blocks.iter().map(|block| axis * block.len()).collect();
        let wanted: Vec<usize> = sizes.iter().map(|size| size * own.len()).collect();
        let mut received = HostMemory::unspecified(dtype, wanted.iter().sum());
        let (send, recv) = (Some(sent.as_buf().into()), received.as_buf_mut().into());
        self.call(Call::AllToAll { send, recv, counts: Some((&counts, &wanted)) })?;
        let mut from = 0;
        let views = wanted.iter().zip(sizes).map(|(count, size)| {
            from += count;
            (received.as_buf().slice(from - count..from), [1, *size, own.len()])
        });
        let views: Vec<(HostBuf<'_>, [usize; 3])> = views.collect();
        kernels::reduce(op, &views, 0..own.len(), target.reborrow().slice(own));
        self.gather_blocks(&blocks, target)
    }

    /// Computes a round of results of which each replica has many elements.
    fn exchange_words(
        &mut self,
        op: ReduceOp,
        view: View<'_>,
        sizes: &[usize],
        round: Range<usize>,
        mut target: HostBufMut<'_>,
    ) -> Result<()> {
        let ((rank, replicas), each) = (self.place(), kernels::words(target.dtype()));
        let blocks = self.blocks(&round);
        let own = blocks[rank].clone();
        let mut sent = vec![0; round.len() * each];
        kernels::partial(view, round, &mut sent);
        let counts: Vec<usize> = blocks.iter().map(|block| block.len() * each).collect();
        let wanted = vec![counts[rank]; replicas];
        let mut received = vec![0u64; counts[rank] * replicas];
        let (send, recv) = (Some(sent.as_slice().into()), received.as_mut_slice().into());
        self.call(Call::AllToAll { send, recv, counts: Some((&counts, &wanted)) })?;
        let part = |replica: usize| &received[replica * counts[rank]..(replica + 1) * counts[rank]];
        let parts: Vec<&[u64]> = (0..replicas).map(part).collect();
        let count = sizes.iter().fold(0, |sum: u64, size| sum.wrapping_add(*size as u64));
        kernels::finish(op, &parts, count, target.reborrow().slice(own));
        self.gather_blocks(&blocks, target)
    }

    /// Returns the block of each replica in a round, counted from its start.
    fn blocks(&self, round: &Range<usize>) -> Vec<Range<usize>> {
        let (_, replicas) = self.place();
        (0..replicas).map(|replica| partition::block(round.len(), replicas, replica)).collect()
    }

    /// Gives the block of each replica to all.
    fn gather_blocks(&mut self, blocks: &[Range<usize>], target: HostBufMut<'_>) -> Result<()> {
        let counts: Vec<usize> = blocks.iter().map(Range::len).collect();
        self.call(Call::AllGather { send: None, recv: target.into(), counts: Some(&counts) })
    }
}
