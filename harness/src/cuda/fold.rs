//! Reductions of several sources, element by element.

use super::{
    Machine,
    buffer::{Buffer, bytes, same},
};
use crate::{
    compare::{Verdict, with_type},
    sample::{Sample, sample},
};
use consonance_kernels::{
    cpu::reduce::Reducer,
    cuda::kernels::{Accumulator, MOST, Stage, fold},
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, ReduceOp, collective, for_each_dtype};

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

impl FoldCase {
    /// Judges the case.
    ///
    /// # Errors
    /// The difference from the spec or from the host.
    pub fn judge(&self, machine: &mut impl Machine) -> Verdict {
        for_each_dtype!(with_type self.dtype, judge(self, machine);).map_err(|wrong| format!("{wrong}\nin {self:?}"))
    }
}

fn judge<T: Sample>(case: &FoldCase, machine: &mut impl Machine) -> Verdict {
    let &FoldCase { op, dtype, sources, count, .. } = case;
    let result = op.result(dtype).ok_or("the operation is not defined")?;
    let inputs: Vec<Vec<T>> =
        (0..sources).map(|index| sample(case.seed.wrapping_add(index as u64 * 3), count)).collect();
    let expected = match result == dtype {
        true => bytes(&collective::reduce(op, &inputs).map_err(|error| error.to_string())?),
        false => bytes(&collective::mean(&inputs).map_err(|error| error.to_string())?),
    };
    let mut host = HostMemory::zeroed(result, count);
    let views: Vec<HostBuf<'_>> = inputs.iter().map(|input| input.as_slice().into()).collect();
    Reducer::new(op, dtype).ok_or("the host has no reducer")?.reduce(&views, &mut host.as_buf_mut());
    same("the host's result", result, host.as_buf().as_bytes(), &expected)?;

    let offset = |index: usize| case.offsets[index % case.offsets.len()];
    let mut buffers = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        buffers.push(Buffer::of(machine, &bytes(input), dtype.size(), offset(index))?);
    }
    let in_place = case.in_place && result.size() == dtype.size();
    let targets = if in_place {
        buffers.clone()
    } else {
        let target = |index| Buffer::new(machine, result.size(), count, offset(sources + index));
        (0..case.targets).map(target).collect::<Result<Vec<_>, _>>()?
    };
    let mut stages = Stages { case, machine, nodes: buffers.clone() };
    match case.route {
        Route::Whole => {}
        Route::Kept(run) => stages.combine(Stage::Keep, run)?,
        Route::Paired(run) => {
            stages.combine(Stage::Keep, run)?;
            stages.combine(Stage::Partial, 2)?;
        }
    }
    let last = if case.route == Route::Whole { Stage::Whole } else { Stage::Finish };
    stages.run(last, &stages.nodes.clone(), &targets)?;
    for target in &targets {
        same("the result", result, &target.read(machine)?, &expected)?;
    }
    if !in_place {
        for (buffer, input) in buffers.iter().zip(&inputs) {
            same("a source afterwards", dtype, &buffer.read(machine)?, &bytes(input))?;
        }
    }
    Ok(())
}

struct Stages<'a, M> {
    case: &'a FoldCase,
    machine: &'a mut M,
    nodes: Vec<Buffer>,
}

impl<M: Machine> Stages<'_, M> {
    /// Combines each run of neighbouring nodes into a node.
    fn combine(&mut self, stage: Stage, run: usize) -> Verdict {
        let FoldCase { op, dtype, count, .. } = *self.case;
        let size = Accumulator::new(op, dtype).ok_or("the operation is not defined")?.bytes(dtype);
        let mut nodes = Vec::new();
        for (index, sources) in self.nodes.clone().chunks(run.min(MOST)).enumerate() {
            let offset = self.case.offsets[index % self.case.offsets.len()];
            let node = Buffer::new(self.machine, size, count, offset)?;
            self.run(stage, sources, &[node])?;
            nodes.push(node);
        }
        self.nodes = nodes;
        Ok(())
    }

    fn run(&mut self, stage: Stage, sources: &[Buffer], targets: &[Buffer]) -> Verdict {
        let FoldCase { op, dtype, count, .. } = *self.case;
        let addresses = |buffers: &[Buffer]| buffers.iter().map(|buffer| buffer.address).collect::<Vec<_>>();
        let (sources, targets) = (addresses(sources), addresses(targets));
        let launch = fold(stage, op, dtype, &sources, &targets, count as u64, self.case.sources as u64);
        self.machine.run(&launch.map_err(|error| error.to_string())?.at_most(self.case.blocks))
    }
}
