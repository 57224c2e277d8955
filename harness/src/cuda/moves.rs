//! Concatenation, and filling with an element.

use super::{
    Machine,
    buffer::{Buffer, bytes, same},
};
use crate::{
    compare::{Verdict, with_type},
    sample::{Sample, sample},
};
use consonance_kernels::cuda::kernels::{concat, fill};
use consonance_spec::{
    DType,
    array::{self, Array},
    for_each_dtype,
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

impl ConcatCase {
    /// Judges the case.
    ///
    /// # Errors
    /// The difference from the spec.
    pub fn judge(&self, machine: &mut impl Machine) -> Verdict {
        for_each_dtype!(with_type self.dtype, judge(self, machine);).map_err(|wrong| format!("{wrong}\nin {self:?}"))
    }
}

fn judge<T: Sample>(case: &ConcatCase, machine: &mut impl Machine) -> Verdict {
    let &ConcatCase { dtype, outer, inner, .. } = case;
    let tensor = |(index, &axis): (usize, &usize)| {
        Array::new(&[outer, axis, inner], sample::<T>(case.seed.wrapping_add(index as u64), outer * axis * inner))
    };
    let tensors: Vec<Array<T>> = case.axes.iter().enumerate().map(tensor).collect();
    let expected = array::gather(&tensors, 1).map_err(|error| error.to_string())?;
    let offset = |index: usize| case.offsets[index % case.offsets.len()];
    let mut sources = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let buffer = Buffer::of(machine, &bytes(&tensor.data), dtype.size(), offset(index))?;
        sources.push((buffer.address, (case.axes[index] * inner) as u64));
    }
    let target = Buffer::new(machine, dtype.size(), expected.data.len(), offset(tensors.len()))?;
    let launches = concat(dtype, outer as u64, &sources, target.address).map_err(|error| error.to_string())?;
    for launch in launches {
        machine.run(&launch.at_most(case.blocks))?;
    }
    same("the concatenation", dtype, &target.read(machine)?, &bytes(&expected.data))
}

/// Memory that is filled with an element.
#[derive(Clone, Debug)]
pub struct FillCase {
    /// The type of the element.
    pub dtype: DType,
    /// The number of elements.
    pub count: usize,
    /// Elements between a multiple of 256 bytes and the first element.
    pub offset: usize,
    /// Limit on the blocks of the launch.
    pub blocks: u32,
    /// The bits of the element.
    pub bits: u64,
}

impl FillCase {
    /// Judges the case.
    ///
    /// # Errors
    /// The difference.
    pub fn judge(&self, machine: &mut impl Machine) -> Verdict {
        let &FillCase { dtype, count, offset, blocks, bits } = self;
        let target = Buffer::new(machine, dtype.size(), count, offset)?;
        let launch = fill(dtype, target.address, count as u64, bits).map_err(|error| error.to_string())?;
        machine.run(&launch.at_most(blocks))?;
        let expected = bits.to_le_bytes()[..dtype.size()].repeat(count);
        same("the elements", dtype, &target.read(machine)?, &expected).map_err(|wrong| format!("{wrong}\nin {self:?}"))
    }
}
