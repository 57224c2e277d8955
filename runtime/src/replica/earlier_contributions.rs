//! The contributions of a replica to one leaf, before its last one.

use super::{
    nest_call::{NestCall, reduce_fused},
    packed_sums::join_rows,
};
use crate::{
    Communicator, IndexedSlices, ReduceOp, Result, Tensor,
    comm::accumulator::LeafSum,
    replica::verification::has_nan,
    value::nest::{Leaf, Value},
};
use consonance_kernels::cpu::reduce::Reducer;
use std::ops::{DerefMut, Range};

/// The contributions of a replica to one leaf, before its last one. They are combined as they come.
#[derive(Default)]
pub(crate) struct Earlier {
    /// Room for those to a tensor, made by the first one.
    sum: Option<LeafSum>,
    /// Those to sparse rows.
    rows: Vec<IndexedSlices>,
    /// Whether one had a NaN, if anybody looks for them.
    has_nan: bool,
}

/// The contributions of a replica among those of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) op: ReduceOp,
    pub(crate) own: Range<usize>,
    /// The number of contributions of all replicas.
    pub(crate) of: usize,
}

impl Run {
    /// Makes room for this run's contributions, which are like the tensors, one after the other.
    fn room<'t>(
        &self,
        call: &'static str,
        communicator: &Communicator,
        tensors: impl Iterator<Item = &'t Tensor>,
    ) -> Result<LeafSum> {
        let (mut count, mut dtype) = (0, None);
        tensors.for_each(|tensor| (count, dtype) = (count + tensor.count(), Some(tensor.dtype())));
        let reducer = dtype.and_then(|dtype| Reducer::new(self.op, dtype)).expect("the operation was checked");
        communicator.leaf_sum(call, reducer, count, self.own.clone(), self.of)
    }
}

impl Earlier {
    /// Makes room for contributions like this one. Without contributions it may have had another
    /// dtype or count.
    pub(crate) fn prepare(
        &mut self,
        call: &'static str,
        communicator: &Communicator,
        run: &Run,
        leaf: &Leaf,
    ) -> Result<()> {
        let Value::Dense(tensor) = &leaf.value else { return Ok(()) };
        let fits = |sum: &LeafSum| (sum.sum.reducer().input(), sum.sum.count()) == (tensor.dtype(), tensor.count());
        if !self.sum.as_ref().is_some_and(fits) {
            self.sum = Some(run.room(call, communicator, [tensor].into_iter())?);
        }
        Ok(())
    }

    /// Adds a contribution, after it was [prepared](Earlier::prepare).
    pub(crate) fn add(&mut self, leaf: &Leaf, verifies: bool) -> Result<()> {
        match (&leaf.value, &mut self.sum) {
            (Value::Dense(tensor), Some(sum)) => sum.sum.add(tensor.host()?),
            (Value::Dense(_), None) => unreachable!("there is room for the contributions to a tensor"),
            (Value::Sparse(slices), _) => self.rows.push(slices.clone()),
        }
        self.has_nan |= verifies && has_nan(leaf);
        Ok(())
    }

    /// Drops the contributions, and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.sum.iter_mut().for_each(|sum| sum.sum.clear());
        self.rows.clear();
        self.has_nan = false;
    }

    pub(crate) fn has_nan(&self) -> bool {
        self.has_nan
    }
}

/// Combines the contributions of all replicas to `leaves`, which are tensors of one dtype, or
/// sparse rows. The leaves are the last contributions of this replica, each after those before it,
/// and become the results.
pub(super) fn all_reduce_last<C: DerefMut<Target = Communicator>>(
    call: &'static str,
    run: &Run,
    mut session: NestCall<C>,
    leaves: &mut [Leaf],
    earlier: &mut [Earlier],
) -> Result<()> {
    let mut tensors = Vec::with_capacity(leaves.len());
    for (leaf, earlier) in leaves.iter_mut().zip(&mut *earlier) {
        match &mut leaf.value {
            Value::Dense(tensor) => tensors.push(tensor),
            Value::Sparse(slices) => {
                join_rows(slices, &earlier.rows)?;
                session.all_reduce_rows_of(run.of, run.op, slices)?;
            }
        }
    }
    if let [tensor] = tensors.as_mut_slice() {
        let [Earlier { sum, .. }] = earlier else { unreachable!("a leaf has contributions before it") };
        if sum.is_none() {
            *sum = Some(run.room(call, session.communicator(), [&**tensor].into_iter())?);
        }
        return session.all_reduce_accumulated(sum.as_mut().expect("made above"), tensor);
    }
    if tensors.is_empty() {
        return Ok(());
    }
    let mut fused = run.room(call, session.communicator(), tensors.iter().map(|tensor| &**tensor))?;
    if run.own.len() > 1 {
        let parts = earlier.iter().map(|earlier| &earlier.sum.as_ref().expect("contributions before the last").sum);
        fused.sum.join(&parts.collect::<Vec<_>>());
    }
    let all: Vec<usize> = (0..tensors.len()).collect();
    reduce_fused(&mut tensors, &all, |tensor| session.all_reduce_accumulated(&mut fused, tensor))
}
