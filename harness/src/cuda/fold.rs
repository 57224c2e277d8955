//! Reductions of several sources, element by element.

use super::job::{After, Job, Step, bytes, same};
use crate::sample::{Sample, sample};
use consonance_kernels::{
    cpu::reduce::Reducer,
    cuda::kernels::{Accumulator, MOST, Stage},
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, ReduceOp, collective};

/// The launches that make a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One.
    Whole,
    /// Runs of this many sources, a power of two, are kept and then finished.
    Kept(usize),
    /// The same, with pairs of neighbouring nodes combined in between.
    Paired(usize),
}

/// A reduction of sources that a seed chooses.
#[derive(Clone, Debug)]
pub struct FoldCase {
    /// The operation, which is defined on the type.
    pub op: ReduceOp,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of sources.
    pub sources: usize,
    /// The number of targets, where the reduction is not in place.
    pub targets: usize,
    /// The number of elements of each source.
    pub count: usize,
    /// Elements between a multiple of 256 bytes and the first element, of each buffer in turn.
    pub offsets: Vec<usize>,
    /// Whether the targets are the sources, where elements and results have the same size.
    pub in_place: bool,
    /// Limit on the blocks of a launch.
    pub blocks: u32,
    /// The launches.
    pub route: Route,
    /// Chooses the elements.
    pub seed: u64,
}

/// Returns the job of a case.
pub(super) fn of_fold<T: Sample>(case: &FoldCase, most: usize) -> Result<Job, String> {
    let &FoldCase { op, dtype, sources, count, blocks, .. } = case;
    let result = op.result(dtype).ok_or("the operation is not defined")?;
    let inputs: Vec<Vec<T>> =
        (0..sources).map(|index| sample(case.seed.wrapping_add(index as u64 * 3), count)).collect();
    let mut host = HostMemory::zeroed(result, count);
    let views: Vec<HostBuf<'_>> = inputs.iter().map(|input| input.as_slice().into()).collect();
    Reducer::new(op, dtype).ok_or("the host has no reducer")?.reduce(&views, &mut host.as_buf_mut());
    let host = host.as_buf();
    if count <= most {
        let expected = match result == dtype {
            true => bytes(&collective::reduce(op, &inputs).map_err(|error| error.to_string())?),
            false => bytes(&collective::mean(&inputs).map_err(|error| error.to_string())?),
        };
        same("the host's result", result, host.as_bytes(), &expected)?;
    }

    let offset = |index: usize| case.offsets[index % case.offsets.len()];
    let mut job = Job { blocks, ..Job::default() };
    let from: Vec<usize> = (0..sources).map(|index| job.source(&inputs[index], offset(index))).collect();
    let targets = if case.in_place && result.size() == dtype.size() {
        from.iter().for_each(|&index| job.buffers[index].after = After::Elements(result, host.as_bytes().to_vec()));
        from.clone()
    } else {
        (0..case.targets).map(|index| job.target(result, host.as_bytes(), offset(sources + index))).collect()
    };
    let kept = Accumulator::new(op, dtype).ok_or("the operation is not defined")?.bytes(dtype);
    let stages = match case.route {
        Route::Whole => vec![],
        Route::Kept(run) => vec![(Stage::Keep, run)],
        Route::Paired(run) => vec![(Stage::Keep, run), (Stage::Partial, 2)],
    };
    let last = if stages.is_empty() { Stage::Whole } else { Stage::Finish };
    let divisor = sources as u64;
    let mut nodes = from;
    for (stage, run) in stages {
        let combine = |(index, sources): (usize, &[usize])| {
            let node = job.node(kept, count, offset(index));
            let (sources, targets) = (sources.to_vec(), vec![node]);
            job.steps.push(Step::Fold { stage, op, dtype, sources, targets, count, divisor });
            node
        };
        nodes = nodes.chunks(run.min(MOST)).enumerate().map(combine).collect();
    }
    job.steps.push(Step::Fold { stage: last, op, dtype, sources: nodes, targets, count, divisor });
    Ok(job)
}
