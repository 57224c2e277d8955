//! Room for the nests of a replica that contributes several to a reduction.
//!
//! Small tensors are fused, and each pack has an accumulation of its own
//! ([`Communicator::accumulator`](crate::Communicator::accumulator)). Sparse rows are kept, since
//! the result has all of them.

use super::nest_call::{NestCall, fused, reduce_fused};
use crate::{
    Communicator, IndexedSlices, ReduceOp, Result, Tensor,
    comm::accumulator::LeafSum,
    value::nest::{Leaf, Value},
};
use consonance_kernels::{
    cpu::reduce::Reducer,
    memory::{HostBuf, HostMemory},
};
use consonance_spec::packing;
use std::{
    iter,
    ops::{DerefMut, Range},
};

/// The contributions of a replica but the last, combined as far as the canonical order allows.
pub(crate) struct PackedSums {
    op: ReduceOp,
    /// The number of contributions of all replicas.
    of: usize,
    packs: Vec<Pack>,
    /// The rows of earlier contributions, for each sparse leaf.
    rows: Vec<Vec<IndexedSlices>>,
}

/// Tensors that are reduced together.
struct Pack {
    /// The places of the tensors among the dense leaves.
    places: Vec<usize>,
    sum: LeafSum,
}

impl PackedSums {
    /// Makes room for the contributions `run` of `0..of`, each like `leaves`. The operation is
    /// defined on these, and they lie in host memory.
    pub(crate) fn new(
        call: &'static str,
        communicator: &Communicator,
        (op, run, of): (ReduceOp, Range<usize>, usize),
        leaves: &[Leaf],
        pack_limit: usize,
    ) -> Result<PackedSums> {
        let tensors: Vec<&Tensor> = leaves.iter().filter_map(Leaf::as_dense).collect();
        let sizes: Vec<_> = tensors.iter().map(|tensor| (tensor.dtype(), tensor.buf().bytes())).collect();
        // Packing saves steps, and a single replica has none to save.
        let limit = if communicator.size() == 1 { 1 } else { pack_limit };
        let pack = |places: Vec<usize>| {
            let reducer = Reducer::new(op, sizes[places[0]].0).expect("the operation was checked");
            let count = places.iter().map(|&place| tensors[place].count()).sum();
            let sum = communicator.leaf_sum(call, reducer, count, run.clone(), of)?;
            Ok(Pack { places, sum })
        };
        let packs = packing::packs(&sizes, limit).into_iter().map(pack).collect::<Result<_>>()?;
        Ok(PackedSums { op, of, packs, rows: vec![Vec::new(); leaves.len() - tensors.len()] })
    }

    /// Drops the contributions that were added.
    pub(crate) fn clear(&mut self) {
        self.packs.iter_mut().for_each(|pack| pack.sum.sum.clear());
        self.rows.iter_mut().for_each(Vec::clear);
    }

    /// Adds the next contribution: each one but the last.
    pub(crate) fn add(&mut self, leaves: &[Leaf]) -> Result<()> {
        let tensors: Vec<&Tensor> = leaves.iter().filter_map(Leaf::as_dense).collect();
        for Pack { places, sum } in &mut self.packs {
            match places[..] {
                [place] => sum.sum.add(tensors[place].host()?),
                _ => {
                    let parts = places.iter().map(|&place| tensors[place].host());
                    sum.sum.add(fused(&parts.collect::<Result<Vec<_>>>()?).as_buf());
                }
            }
        }
        let slices = leaves.iter().filter_map(Leaf::as_sparse);
        self.rows.iter_mut().zip(slices).for_each(|(rows, slices)| rows.push(slices.clone()));
        Ok(())
    }

    /// Combines the contributions of all replicas, of which `leaves` is the last one of this
    /// replica, and becomes the result.
    pub(crate) fn all_reduce<C>(&mut self, session: &mut NestCall<C>, leaves: &mut [Leaf]) -> Result<()>
    where
        C: DerefMut<Target = Communicator>,
    {
        if leaves.is_empty() {
            return session.all_reduce_leaves(self.op, leaves, 0);
        }
        let (mut tensors, mut sparse) = (Vec::new(), Vec::new());
        for leaf in leaves {
            match &mut leaf.value {
                Value::Dense(tensor) => tensors.push(tensor),
                Value::Sparse(slices) => sparse.push(slices),
            }
        }
        for Pack { places, sum } in &mut self.packs {
            reduce_fused(&mut tensors, places, |tensor| session.all_reduce_accumulated(sum, tensor))?;
        }
        for (slices, before) in sparse.into_iter().zip(&mut self.rows) {
            join_rows(slices, before)?;
            session.all_reduce_rows_of(self.of, self.op, slices)?;
        }
        Ok(())
    }
}

/// Puts the rows of earlier slices before those of `slices`.
pub(super) fn join_rows(slices: &mut IndexedSlices, earlier: &[IndexedSlices]) -> Result<()> {
    let (indices, values): (Vec<&Tensor>, Vec<&Tensor>) =
        earlier.iter().chain(iter::once(&*slices)).map(|slices| (&slices.indices, &slices.values)).unzip();
    (slices.indices, slices.values) = (joined(&indices)?, joined(&values)?);
    Ok(())
}

/// Returns the rows of all tensors, at least one.
fn joined(tensors: &[&Tensor]) -> Result<Tensor> {
    let mut shape = tensors[0].shape().to_vec();
    shape[0] = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
    let parts: Vec<HostBuf<'_>> = tensors.iter().map(|tensor| tensor.host()).collect::<Result<_>>()?;
    Tensor::from_memory(shape, HostMemory::concat(tensors[0].dtype(), &parts))
}
