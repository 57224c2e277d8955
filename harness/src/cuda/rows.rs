//! Sums of the rows of sparse tensors.

use super::{
    Machine,
    buffer::{Buffer, bytes, same},
};
use crate::{
    compare::{Verdict, with_type},
    sample::{Sample, sample},
};
use consonance_kernels::cuda::kernels::{Rows, fill, sum_rows};
use consonance_spec::{
    DType,
    array::Array,
    for_each_dtype,
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

impl RowsCase {
    /// Judges the case.
    ///
    /// # Errors
    /// The difference from the spec.
    pub fn judge(&self, machine: &mut impl Machine) -> Verdict {
        for_each_dtype!(with_type self.dtype, judge(self, machine);).map_err(|wrong| format!("{wrong}\nin {self:?}"))
    }
}

fn judge<T: Sample>(case: &RowsCase, machine: &mut impl Machine) -> Verdict {
    let &RowsCase { dtype, width, dense_rows, .. } = case;
    let data = sample::<T>(case.seed, case.indices.len() * width);
    let slices = IndexedSlices {
        values: Array::new(&[case.indices.len(), width], data),
        indices: case.indices.clone(),
        dense_shape: vec![dense_rows, width],
    };
    let expected = sparse::dedupe(&slices).map_err(|error| error.to_string())?;
    let dense = sparse::densify(&slices).map_err(|error| error.to_string())?;

    let mut groups: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for (row, &index) in case.indices.iter().enumerate() {
        groups.entry(index).or_default().push(row as u64);
    }
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let order: Vec<u64> = groups.values().flatten().copied().collect();
    let mut starts = vec![0];
    groups.values().for_each(|rows| starts.push(starts[starts.len() - 1] + rows.len() as u64));
    let places: Vec<u64> = groups.keys().map(|&index| index as u64).collect();

    let source = Buffer::of(machine, &bytes(&slices.values.data), dtype.size(), case.offset)?;
    let order = Buffer::of(machine, &words(&order), 8, 0)?;
    let starts = Buffer::of(machine, &words(&starts), 8, 0)?;
    let places = Buffer::of(machine, &words(&places), 8, 0)?;
    let target = Buffer::new(machine, dtype.size(), groups.len() * width, case.offset)?;
    let rows = Rows {
        order: order.address,
        starts: starts.address,
        places: None,
        groups: groups.len() as u64,
        width: width as u64,
    };
    let launch = sum_rows(dtype, source.address, target.address, rows).map_err(|error| error.to_string())?;
    machine.run(&launch.at_most(case.blocks))?;
    same("the rows without duplicates", dtype, &target.read(machine)?, &bytes(&expected.values.data))?;

    let target = Buffer::new(machine, dtype.size(), dense_rows * width, case.offset)?;
    let zeros = fill(dtype, target.address, (dense_rows * width) as u64, 0).map_err(|error| error.to_string())?;
    machine.run(&zeros.at_most(case.blocks))?;
    let rows = Rows { places: Some(places.address), ..rows };
    let launch = sum_rows(dtype, source.address, target.address, rows).map_err(|error| error.to_string())?;
    machine.run(&launch.at_most(case.blocks))?;
    same("the dense tensor", dtype, &target.read(machine)?, &bytes(&dense.data))
}
