//! Reductions element by element, from memory to memory of a device.

use super::{
    failure::LoadError,
    kernels::Kernels,
    memory::DeviceSlice,
    operands::{Operands, refused},
    stream::Stream,
};
use crate::cuda::kernels::{Accumulator, Stage, Unsupported, fold};
use consonance_spec::{DType, ReduceOp};

/// A reduction of several sources, element by element, whose result is written to all targets: see
/// [`reduce`](crate::cuda::kernels::reduce).
#[derive(Clone, Copy, Debug)]
pub struct Fold<'m> {
    /// The content of the sources and of the targets.
    pub stage: Stage,
    /// The operation.
    pub op: ReduceOp,
    /// The type of the elements.
    pub dtype: DType,
    /// The sources.
    pub sources: &'m [DeviceSlice<'m>],
    /// The targets. Each is equal to a source or disjoint from it, and so are the targets among
    /// each other.
    pub targets: &'m [DeviceSlice<'m>],
    /// The number of elements of each.
    pub count: usize,
    /// The number by which a mean is divided.
    pub divisor: u64,
    /// Limit on the blocks that run, which changes no bit.
    pub most_blocks: u32,
}

impl Fold<'_> {
    /// Enqueues the reduction.
    ///
    /// # Errors
    /// If the operation is not defined on the type, or a source or target has too few bytes, is of
    /// another context, is not aligned, or overlaps another; the driver's.
    pub fn enqueue(&self, kernels: &Kernels, stream: &Stream) -> Result<(), LoadError> {
        let refused = refused(kernels.context());
        let Fold { stage, op, dtype, sources, targets, divisor, most_blocks, .. } = *self;
        let addresses = |slices: &[DeviceSlice<'_>]| slices.iter().map(DeviceSlice::address).collect::<Vec<u64>>();
        let count = self.count as u64;
        let launch = fold(stage, op, dtype, &addresses(sources), &addresses(targets), count, divisor);
        let launch = launch.map_err(&refused)?.at_most(most_blocks);
        let operands = self.operands().map_err(&refused)?;
        // SAFETY: the table made the launch for these addresses. A fold of so many elements reads
        // the sources and writes the targets, and a thread reads its elements before it writes
        // them.
        unsafe { operands.launch(kernels, stream, &launch) }
    }

    fn operands(&self) -> Result<Operands<'_>, Unsupported> {
        let Fold { stage, op, dtype, sources, targets, .. } = *self;
        let count = Some(self.count as u64);
        let defined = Accumulator::new(op, dtype).zip(op.result(dtype));
        let (kept, result) = defined.ok_or(Unsupported::Undefined { op, dtype })?;
        let (element, kept, result) = (dtype.size(), kept.bytes(dtype), result.size());
        let (of_source, of_target) = match stage {
            Stage::Whole => (element, result),
            Stage::Keep => (element, kept),
            Stage::Partial => (kept, kept),
            Stage::Finish => (kept, result),
        };
        let mut operands = Operands::new();
        if of_source == of_target {
            operands = operands.in_place();
        }
        for source in sources {
            operands = operands.read("source", *source, count, of_source)?;
        }
        for target in targets {
            operands = operands.write("target", *target, count, of_target)?;
        }
        Ok(operands)
    }
}
