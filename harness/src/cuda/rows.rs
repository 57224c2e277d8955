//! Sums of the rows of sparse tensors.

use super::job::{Job, Step, bytes};
use crate::sample::{Sample, sample};
use consonance_spec::{
    DType,
    array::Array,
    sparse::{self, IndexedSlices},
};
use std::collections::BTreeMap;

/// A sparse tensor whose duplicates are removed, and which is made dense.
#[derive(Clone, Debug)]
pub struct RowsCase {
    /// The type of the elements, which has a sum.
    pub dtype: DType,
    /// The index of each row.
    pub indices: Vec<i64>,
    /// The elements of a row.
    pub width: usize,
    /// The rows of the dense tensor.
    pub dense_rows: usize,
    /// Elements between a multiple of 256 bytes and the first element.
    pub offset: usize,
    /// Limit on the blocks of a launch.
    pub blocks: u32,
    /// Chooses the elements.
    pub seed: u64,
}

/// Returns the job of a case.
pub(super) fn of_rows<T: Sample>(case: &RowsCase) -> Result<Job, String> {
    let &RowsCase { dtype, width, dense_rows, offset, blocks, .. } = case;
    let data = sample::<T>(case.seed, case.indices.len() * width);
    let slices = IndexedSlices {
        values: Array::new(&[case.indices.len(), width], data),
        indices: case.indices.clone(),
        dense_shape: vec![dense_rows, width],
    };
    let unique = sparse::dedupe(&slices).map_err(|error| error.to_string())?;
    let dense = sparse::densify(&slices).map_err(|error| error.to_string())?;

    let mut groups: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for (row, &index) in case.indices.iter().enumerate() {
        groups.entry(index).or_default().push(row as u64);
    }
    let order: Vec<u64> = groups.values().flatten().copied().collect();
    let mut starts = vec![0];
    groups.values().for_each(|rows| starts.push(starts[starts.len() - 1] + rows.len() as u64));
    let places: Vec<u64> = groups.keys().map(|&index| index as u64).collect();

    let mut job = Job { blocks, ..Job::default() };
    let source = job.source(&slices.values.data, offset);
    let [order, starts, places] = [order, starts, places].map(|words| job.source(&words, 0));
    let groups = groups.len();
    let target = job.target(dtype, &bytes(&unique.values.data), offset);
    job.steps.push(Step::Rows { dtype, source, target, order, starts, places: None, groups, width });
    let target = job.target(dtype, &bytes(&dense.data), offset);
    job.steps.push(Step::Fill { dtype, target, count: dense_rows * width, bits: 0 });
    job.steps.push(Step::Rows { dtype, source, target, order, starts, places: Some(places), groups, width });
    Ok(job)
}
