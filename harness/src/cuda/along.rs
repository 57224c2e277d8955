//! Reductions of the tensors of replicas along an axis.

use super::job::{Job, Step, bytes, same};
use crate::sample::{Sample, sample};
use consonance_kernels::{
    cpu::axis::Along,
    cuda::kernels::{Accumulator, BLOCK, Stage, tree_groups},
    memory::HostBuf,
};
use consonance_spec::{DType, ReduceOp, array, array::Array};

/// The tensors of replicas, of the shapes `[outer, axis, inner]`, that are reduced along the middle
/// axis. A seed chooses the elements.
#[derive(Clone, Debug)]
pub struct AlongCase {
    /// The operation, which is defined on the type.
    pub op: ReduceOp,
    /// The type of the elements.
    pub dtype: DType,
    /// The size before the axis.
    pub outer: usize,
    /// The size of the axis on each replica, at least 1.
    pub axes: Vec<usize>,
    /// The size after the axis.
    pub inner: usize,
    /// Elements between a multiple of 256 bytes and the first element, of each buffer in turn.
    pub offsets: Vec<usize>,
    /// Limit on the blocks of a launch.
    pub blocks: u32,
    /// Chooses the elements.
    pub seed: u64,
}

/// Returns the job of a case.
pub(super) fn of_along<T: Sample>(case: &AlongCase, most: usize) -> Result<Job, String> {
    let &AlongCase { op, dtype, outer, inner, blocks, .. } = case;
    let result = op.result(dtype).ok_or("the operation is not defined")?;
    let tensor = |(index, &axis): (usize, &usize)| {
        Array::new(&[outer, axis, inner], sample::<T>(case.seed.wrapping_add(index as u64 * 3), outer * axis * inner))
    };
    let tensors: Vec<Array<T>> = case.axes.iter().enumerate().map(tensor).collect();
    let views: Vec<(HostBuf<'_>, [usize; 3])> =
        tensors.iter().zip(&case.axes).map(|(tensor, &axis)| (tensor.data[..].into(), [outer, axis, inner])).collect();
    let host = Along::new(op, &views).map_err(|error| error.to_string())?;
    let mut host = host.ok_or("the host has no reduction")?;
    host.parts(2).into_iter().for_each(|part| part.run());
    let host = host.finish().map_err(|error| error.to_string())?;
    let host = host.as_buf();
    let elements: usize = case.axes.iter().sum();
    if outer * elements * inner <= most {
        let expected = match result == dtype {
            true => bytes(&array::reduce(op, &tensors, &[1]).map_err(|error| error.to_string())?.data),
            false => bytes(&array::mean(&tensors, &[1]).map_err(|error| error.to_string())?.data),
        };
        same("the host's result", result, host.as_bytes(), &expected)?;
    }

    let offset = |index: usize| case.offsets[index % case.offsets.len()];
    let kept = Accumulator::new(op, dtype).ok_or("the operation is not defined")?.bytes(dtype);
    let mut job = Job { blocks, ..Job::default() };
    let mut nodes = Vec::new();
    for (index, (tensor, &axis)) in tensors.iter().zip(&case.axes).enumerate() {
        let source = job.source(&tensor.data, offset(index));
        let mut rows = axis.div_ceil(BLOCK as usize);
        let mut node = job.node(kept, outer * rows * inner, offset(index));
        job.steps.push(Step::Along { op, dtype, source, target: node, shape: [outer, axis, inner] });
        while rows > 1 {
            let groups = tree_groups(rows as u64) as usize;
            let target = job.node(kept, outer * groups * inner, offset(index));
            job.steps.push(Step::Tree { op, dtype, source: node, target, shape: [outer, rows, inner] });
            (node, rows) = (target, groups);
        }
        nodes.push(node);
    }
    let targets = vec![job.target(result, host.as_bytes(), offset(tensors.len()))];
    let (stage, count, divisor) = (Stage::Finish, outer * inner, elements as u64);
    job.steps.push(Step::Fold { stage, op, dtype, sources: nodes, targets, count, divisor });
    Ok(job)
}
