//! Reductions along an axis, from memory to memory of a device.

use super::{
    failure::LoadError,
    kernels::Kernels,
    memory::DeviceSlice,
    operands::{Operands, refused},
    stream::Stream,
};
use crate::cuda::kernels::{Accumulator, BLOCK, Unsupported, along, tree, tree_groups};
use consonance_spec::{DType, ReduceOp};

impl Kernels {
    /// Enqueues the reduction of a row-major tensor of the shape `[outer, axis, inner]` along its
    /// middle axis, in blocks: see [`along`](crate::cuda::kernels::along). The target gets the
    /// accumulators of each block.
    ///
    /// # Errors
    /// If the operation is not defined on the type, the axis is empty, or a part has too few bytes,
    /// is of another context, is not aligned, or overlaps the other; the driver's.
    pub fn along(
        &self,
        stream: &Stream,
        op: ReduceOp,
        dtype: DType,
        source: DeviceSlice<'_>,
        target: DeviceSlice<'_>,
        shape: [usize; 3],
    ) -> Result<(), LoadError> {
        let refused = refused(self.context());
        let shape = shape.map(|size| size as u64);
        let [outer, axis, inner] = shape;
        let launch = along(op, dtype, source.address(), target.address(), shape).map_err(&refused)?;
        let kept = kept_bytes(op, dtype).map_err(&refused)?;
        let operands = Operands::new()
            .read("source", source, product(shape), dtype.size())
            .and_then(|operands| operands.write("target", target, product([outer, axis.div_ceil(BLOCK), inner]), kept))
            .map_err(&refused)?;
        // SAFETY: the table made the launch for these addresses. It reads the tensor, and writes an
        // accumulator for each block of each result.
        unsafe { operands.launch(self, stream, &launch) }
    }

    /// Enqueues a step of the balanced tree over accumulators of the shape `[outer, rows, inner]`:
    /// see [`tree`](crate::cuda::kernels::tree).
    ///
    /// # Errors
    /// If the operation is not defined on the type, or a part has too few bytes, is of another
    /// context, is not aligned, or overlaps the other; the driver's.
    pub fn tree(
        &self,
        stream: &Stream,
        op: ReduceOp,
        dtype: DType,
        source: DeviceSlice<'_>,
        target: DeviceSlice<'_>,
        shape: [usize; 3],
    ) -> Result<(), LoadError> {
        let refused = refused(self.context());
        let shape = shape.map(|size| size as u64);
        let [outer, rows, inner] = shape;
        let launch = tree(op, dtype, source.address(), target.address(), shape).map_err(&refused)?;
        let kept = kept_bytes(op, dtype).map_err(&refused)?;
        let operands = Operands::new()
            .read("source", source, product(shape), kept)
            .and_then(|operands| operands.write("target", target, product([outer, tree_groups(rows), inner]), kept))
            .map_err(&refused)?;
        // SAFETY: the table made the launch for these addresses. It reads the rows, and writes an
        // accumulator for each group of them.
        unsafe { operands.launch(self, stream, &launch) }
    }
}

fn kept_bytes(op: ReduceOp, dtype: DType) -> Result<usize, Unsupported> {
    Accumulator::new(op, dtype).map(|kept| kept.bytes(dtype)).ok_or(Unsupported::Undefined { op, dtype })
}

fn product(sizes: [u64; 3]) -> Option<u64> {
    sizes.into_iter().try_fold(1u64, u64::checked_mul)
}
