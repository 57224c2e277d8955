//! Exact reductions of nests over replicas, and along axes.

use super::{host_copies::on_host, nest_call::NestCall};
use crate::{
    Axes, Communicator, Nest, ReduceOp, ReplicaContext, Result, Tensor,
    comm::exact::Ends,
    error::IntoReduceOp,
    kind,
    value::{
        axis::{Flat, no_memory},
        exact,
        nest::{self, Leaf},
    },
};
use consonance_kernels::{cpu::exact as kernels, memory::HostMemory};
use consonance_spec::static_shapes::REDUCED_SHAPE;
use std::{ops::DerefMut, slice};

impl ReplicaContext<'_> {
    /// Returns the exact sum or mean of `value` over all replicas, and over `axis` of each
    /// replica's tensor if given, rounded once. Every replica gets the result.
    /// [`Strategy::reduce_exact`](crate::Strategy::reduce_exact) says what it is.
    ///
    /// # Errors
    /// As [`all_reduce`](ReplicaContext::all_reduce), and [`Error::InvalidCall`] for operations
    /// other than sum and mean, elements other than f32 and f64, axes out of range, and
    /// [`IndexedSlices`](crate::IndexedSlices).
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
        let checked = self.reduced_op(call, op).and_then(|op| {
            let origin = on_host(&mut leaves)?;
            check_leaves(call, op, &leaves, &axes).map(|op| (op, origin))
        });
        let (op, origin) = self.or_refuse(kind, checked)?;
        let options = self.strategy().options();
        self.refuse_nan(call, kind, &leaves, &options)?;
        let mut session = self.session(kind, &leaves, axes.clone(), &options);
        let reduced = session.all_reduce_exact(call, op, &mut leaves, &axes);
        self.by_rule(REDUCED_SHAPE, reduced)?;
        drop(session);
        origin.take_back(&self.held(), &mut leaves)?;
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
        let ends = Ends { send: Some(view.0), recv: memory.as_buf_mut(), sizes: view.1 };
        self.agreed(|communicator, agreement| communicator.reduce_exact(op, ends, &sizes, agreement))?;
        Tensor::from_memory(kept, memory)
    }
}
