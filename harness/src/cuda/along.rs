//! Reductions of the tensors of replicas along an axis.

use super::{
    Machine,
    buffer::{Buffer, bytes, same},
};
use crate::{
    compare::{Verdict, with_type},
    sample::{Sample, sample},
};
use consonance_kernels::{
    cpu::axis::Along,
    cuda::kernels::{self, Accumulator, Stage, along, fold, tree, tree_groups},
    memory::HostBuf,
};
use consonance_spec::{DType, ReduceOp, array, array::Array, for_each_dtype};

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
    /// Elements between a multiple of 256 bytes and the first element.
    pub offset: usize,
    /// Limit on the blocks of a launch.
    pub blocks: u32,
    /// Chooses the elements.
    pub seed: u64,
}

impl AlongCase {
    /// Judges the case.
    ///
    /// # Errors
    /// The difference from the spec or from the host.
    pub fn judge(&self, machine: &mut impl Machine) -> Verdict {
        for_each_dtype!(with_type self.dtype, judge(self, machine);).map_err(|wrong| format!("{wrong}\nin {self:?}"))
    }
}

fn judge<T: Sample>(case: &AlongCase, machine: &mut impl Machine) -> Verdict {
    let &AlongCase { op, dtype, outer, inner, .. } = case;
    let result = op.result(dtype).ok_or("the operation is not defined")?;
    let tensor = |(index, &axis): (usize, &usize)| {
        Array::new(&[outer, axis, inner], sample::<T>(case.seed.wrapping_add(index as u64 * 3), outer * axis * inner))
    };
    let tensors: Vec<Array<T>> = case.axes.iter().enumerate().map(tensor).collect();
    let expected = match result == dtype {
        true => bytes(&array::reduce(op, &tensors, &[1]).map_err(|error| error.to_string())?.data),
        false => bytes(&array::mean(&tensors, &[1]).map_err(|error| error.to_string())?.data),
    };
    let views: Vec<(HostBuf<'_>, [usize; 3])> =
        tensors.iter().zip(&case.axes).map(|(tensor, &axis)| (tensor.data[..].into(), [outer, axis, inner])).collect();
    let host = Along::new(op, &views).map_err(|error| error.to_string())?;
    let mut host = host.ok_or("the host has no reduction")?;
    host.parts(2).into_iter().for_each(|part| part.run());
    let host = host.finish().map_err(|error| error.to_string())?;
    same("the host's result", result, host.as_buf().as_bytes(), &expected)?;

    let size = Accumulator::new(op, dtype).ok_or("the operation is not defined")?.bytes(dtype);
    let mut nodes = Vec::new();
    for (tensor, &axis) in tensors.iter().zip(&case.axes) {
        let source = Buffer::of(machine, &bytes(&tensor.data), dtype.size(), case.offset)?;
        let mut rows = (axis as u64).div_ceil(kernels::BLOCK);
        let mut node = Buffer::new(machine, size, outer * rows as usize * inner, case.offset)?;
        let shape = [outer, axis, inner].map(|size| size as u64);
        let launch = along(op, dtype, source.address, node.address, shape).map_err(|error| error.to_string())?;
        machine.run(&launch.at_most(case.blocks))?;
        while rows > 1 {
            let groups = tree_groups(rows);
            let next = Buffer::new(machine, size, outer * groups as usize * inner, case.offset)?;
            let shape = [outer as u64, rows, inner as u64];
            let launch = tree(op, dtype, node.address, next.address, shape).map_err(|error| error.to_string())?;
            machine.run(&launch.at_most(case.blocks))?;
            (node, rows) = (next, groups);
        }
        nodes.push(node.address);
    }
    let target = Buffer::new(machine, result.size(), outer * inner, case.offset)?;
    let elements: usize = case.axes.iter().sum();
    let launch = fold(Stage::Finish, op, dtype, &nodes, &[target.address], (outer * inner) as u64, elements as u64);
    machine.run(&launch.map_err(|error| error.to_string())?.at_most(case.blocks))?;
    same("the result", result, &target.read(machine)?, &expected)
}
