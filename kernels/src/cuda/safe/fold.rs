//! Reductions element by element, from memory to memory of a device.

use super::{failure::LoadError, kernels::Kernels, launch::Access, memory::DeviceSlice, stream::Stream};
use crate::cuda::kernels::{Accumulator, Stage, fold};
use consonance_spec::{DType, ReduceOp};

/// A reduction of several sources, element by element, whose result is written to all targets: see
/// [`reduce`](crate::cuda::kernels::reduce).
#[derive(Clone, Copy, Debug)]
pub struct Fold<'m> {
    /// What the sources have and the targets get.
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
        let plain = |failure| LoadError { failure, log: String::new() };
        let refuse = |why| plain(stream.context().refuse(why));
        let Fold { stage, op, dtype, sources, targets, count, divisor, most_blocks } = *self;
        let addresses = |slices: &[DeviceSlice<'_>]| slices.iter().map(DeviceSlice::address).collect::<Vec<u64>>();
        let (from, to) = (addresses(sources), addresses(targets));
        let launch =
            fold(stage, op, dtype, &from, &to, count as u64, divisor).map_err(|why| refuse(why.to_string()))?;
        let launch = launch.at_most(most_blocks);
        let accesses = self.accesses(&from, &to).map_err(refuse)?;
        for slice in sources.iter().chain(targets) {
            stream.expect_own("memory", slice.memory().context()).map_err(plain)?;
        }
        let function = kernels.function(launch.kernel)?;
        // SAFETY: the table made the launch for this kernel and these addresses. A fold of so many
        // elements accesses these bytes of the sources and targets, and none else.
        unsafe { stream.launch(&function, &launch, &accesses) }.map_err(plain)
    }

    /// Returns the bytes of the sources and targets.
    ///
    /// # Errors
    /// If they overlap each other otherwise than they may.
    fn accesses(&self, sources: &[u64], targets: &[u64]) -> Result<Vec<Access>, String> {
        let Fold { stage, op, dtype, count, .. } = *self;
        let defined = Accumulator::new(op, dtype).zip(op.result(dtype));
        let (kept, result) = defined.ok_or_else(|| format!("{op} is not defined on {dtype}"))?;
        let (element, kept, result) = (dtype.size() as u64, kept.bytes(dtype) as u64, result.size() as u64);
        let (of_source, of_target) = match stage {
            Stage::Whole => (element, result),
            Stage::Keep => (element, kept),
            Stage::Partial => (kept, kept),
            Stage::Finish => (kept, result),
        };
        let too_large = || format!("{count} elements do not fit the address space");
        let bytes = |of: u64| of.checked_mul(count as u64).ok_or_else(too_large);
        let access = |name, size: u64, bytes| {
            move |(index, &address): (usize, &u64)| Access { name, index, address, bytes, alignment: size.min(8) }
        };
        let sources: Vec<Access> =
            sources.iter().enumerate().map(access("source", of_source, bytes(of_source)?)).collect();
        let targets: Vec<Access> =
            targets.iter().enumerate().map(access("target", of_target, bytes(of_target)?)).collect();
        for (index, target) in targets.iter().enumerate() {
            for other in sources.iter().chain(&targets[..index]) {
                let end = |access: &Access| access.address.saturating_add(access.bytes);
                let overlaps = target.address < end(other) && other.address < end(target);
                if overlaps && (target.address, target.bytes) != (other.address, other.bytes) {
                    let (name, number) = (other.name, other.index);
                    return Err(format!("target {index} overlaps {name} {number}; expected the same bytes or others"));
                }
            }
        }
        Ok(sources.into_iter().chain(targets).collect())
    }
}
