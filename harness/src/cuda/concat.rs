//! Concatenation of tensors.

use super::job::{Job, Step, bytes};
use crate::sample::{Sample, sample};
use consonance_spec::{
    DType,
    array::{self, Array},
};

/// Tensors of the shapes `[outer, axis, inner]` that are concatenated along the middle axis.
#[derive(Clone, Debug)]
pub struct ConcatCase {
    /// The type of the elements.
    pub dtype: DType,
    /// The size before the axis.
    pub outer: usize,
    /// The size of the axis of each tensor.
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
pub(super) fn of_concat<T: Sample>(case: &ConcatCase) -> Result<Job, String> {
    let &ConcatCase { dtype, outer, inner, blocks, .. } = case;
    let tensor = |(index, &axis): (usize, &usize)| {
        Array::new(&[outer, axis, inner], sample::<T>(case.seed.wrapping_add(index as u64), outer * axis * inner))
    };
    let tensors: Vec<Array<T>> = case.axes.iter().enumerate().map(tensor).collect();
    let expected = array::gather(&tensors, 1).map_err(|error| error.to_string())?;
    let offset = |index: usize| case.offsets[index % case.offsets.len()];
    let mut job = Job { blocks, ..Job::default() };
    let source =
        |(index, tensor): (usize, &Array<T>)| (job.source(&tensor.data, offset(index)), case.axes[index] * inner);
    let sources = tensors.iter().enumerate().map(source).collect();
    let target = job.target(dtype, &bytes(&expected.data), offset(tensors.len()));
    job.steps.push(Step::Concat { dtype, outer, sources, target });
    Ok(job)
}
