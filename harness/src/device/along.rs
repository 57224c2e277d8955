//! Reductions along an axis, of the tensors of several replicas.

use super::{Alignment, Bench, GUARD, Layout, SPEC, VECTOR, judge};
use crate::sample::{Sample, keys, sample};
use consonance_kernels::{
    cpu::axis::Along,
    cuda::{
        DeviceMemory, DeviceSlice, Fold, Kernels, Stream,
        kernels::{Accumulator, BLOCK, Stage, tree_groups},
    },
    digest::mix,
    memory::HostBuf,
};
use consonance_spec::{DType, ReduceOp, array, array::Array, collective};
use std::fmt;

/// The sizes before, along and after the axis, and the numbers of replicas.
const OUTER: [usize; 2] = [1, 2];
const AXIS: [usize; 12] = [1, 2, 31, 32, 33, 65, 4095, 4096, 4097, 8193, 65_536, 65_537];
const INNER: [usize; 3] = [1, 3, 33];
const REPLICAS: [usize; 2] = [1, 3];

/// Limit on the elements of a tensor: more are at no other edge.
const LONGEST: usize = 140_000;

/// A reduction along the middle axis of the tensors of several replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlongCase {
    /// The element type.
    pub dtype: DType,
    /// The operation.
    pub op: ReduceOp,
    /// The shape of each tensor but the last, which has one element less along the axis, if any is
    /// left.
    pub shape: [usize; 3],
    /// The number of replicas.
    pub replicas: usize,
    /// How the tensors lie.
    pub alignment: Alignment,
}

impl fmt::Display for AlongCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AlongCase { dtype, op, shape, replicas, alignment } = self;
        write!(f, "{op} of {dtype} along the middle axis of {shape:?}, {replicas} replicas, {alignment:?}")
    }
}

/// Returns the cases whose tensors have at most `most` elements.
pub(super) fn cases(most: usize) -> Vec<AlongCase> {
    let pairs = DType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    let mut cases = Vec::new();
    for (dtype, op) in pairs.filter(|(dtype, op)| op.result(*dtype).is_some()) {
        for (index, axis) in AXIS.into_iter().enumerate() {
            for shape in OUTER.into_iter().flat_map(|outer| INNER.map(|inner| [outer, axis, inner])) {
                if shape.iter().product::<usize>() <= most.min(LONGEST) {
                    let alignment = Alignment::ALL[(index + shape[2]) % 3];
                    cases.extend(REPLICAS.map(|replicas| AlongCase { dtype, op, shape, replicas, alignment }));
                }
            }
        }
    }
    cases
}

impl AlongCase {
    /// Runs the case. Returns what is wrong with its results, if anything is.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn check<T: Sample<Mean: Sample>>(
        &self,
        bench: &mut Bench,
        seed: u64,
    ) -> Result<Option<String>, String> {
        let seed = mix(seed, (self.shape.iter().sum::<usize>() * 7 + self.replicas) as u64);
        let [outer, _, inner] = self.shape;
        let tensors: Vec<Array<T>> = (0..self.replicas)
            .map(|replica| {
                let shape = self.shape_of(replica);
                Array::new(&shape, sample(mix(seed, replica as u64), shape.iter().product()))
            })
            .collect();
        let is_short = tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>() <= SPEC;
        if self.op == ReduceOp::Mean && T::DTYPE.mean() != Some(T::DTYPE) {
            let expected = is_short.then(|| array::mean(&tensors, &[1]));
            self.compare::<T, T::Mean>(bench, &tensors, expected, outer * inner)
        } else {
            let expected = is_short.then(|| array::reduce(self.op, &tensors, &[1]));
            self.compare::<T, T>(bench, &tensors, expected, outer * inner)
        }
    }

    /// Returns the shape of a replica's tensor.
    fn shape_of(&self, replica: usize) -> [usize; 3] {
        let [outer, axis, inner] = self.shape;
        let is_shorter = replica > 0 && replica + 1 == self.replicas && axis > 1;
        [outer, axis - usize::from(is_shorter), inner]
    }

    fn compare<T: Sample, R: Sample>(
        &self,
        bench: &mut Bench,
        tensors: &[Array<T>],
        spec: Option<Result<Array<R>, collective::Error>>,
        count: usize,
    ) -> Result<Option<String>, String> {
        let sources: Vec<(HostBuf<'_>, [usize; 3])> = (tensors.iter().enumerate())
            .map(|(at, tensor)| (tensor.data.as_slice().into(), self.shape_of(at)))
            .collect();
        let along = Along::new(self.op, &sources).map_err(|error| error.to_string())?;
        let mut along = along.ok_or("the operation is not defined")?;
        along.parts(1).into_iter().for_each(|part| part.run());
        let results = along.finish().map_err(|error| error.to_string())?;
        let expected = results.as_buf().as_slice::<R>().ok_or("results of another type")?;
        let spec = spec.transpose().map_err(|error| error.to_string())?;
        if spec.is_some_and(|spec| keys(&spec.data) != keys(expected)) {
            return Ok(Some("the host's reduction differs from the spec".to_owned()));
        }

        let mut layout = Layout::new(self.alignment);
        let from: Vec<usize> =
            sources.iter().map(|(source, _)| layout.push(source.as_bytes(), size_of::<T>())).collect();
        let to = layout.push(&vec![!GUARD; size_of_val(expected)], size_of::<R>());
        let before = layout.end();
        let after = bench.run(&before, |kernels, stream, memory| {
            let from: Vec<DeviceSlice<'_>> = from.iter().map(|&at| memory.slice(at)).collect();
            self.enqueue(kernels, stream, &from, memory.slice(to), count)
        })?;
        Ok(judge(&before, &after, &[to], expected))
    }

    /// Enqueues the reduction of each replica's blocks, the trees over the blocks, and the results.
    fn enqueue(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        from: &[DeviceSlice<'_>],
        to: DeviceSlice<'_>,
        count: usize,
    ) -> Result<Vec<DeviceMemory>, String> {
        let AlongCase { dtype, op, shape: [outer, _, inner], .. } = *self;
        let kept = Accumulator::new(op, dtype).ok_or("the operation is not defined")?.bytes(dtype);
        let room = |rows: usize| {
            // Accumulators begin at vectors.
            let bytes = (outer * rows * inner * kept).next_multiple_of(VECTOR);
            DeviceMemory::new(kernels.context(), bytes).map_err(|failure| failure.to_string())
        };
        let (mut used, mut nodes, mut elements) = (Vec::new(), Vec::new(), 0);
        for (replica, source) in from.iter().enumerate() {
            let shape = self.shape_of(replica);
            elements += shape[1] as u64;
            let mut rows = shape[1].div_ceil(BLOCK as usize);
            let mut node = room(rows)?;
            let along = kernels.along(stream, op, dtype, *source, node.slice(0), shape);
            along.map_err(|error| error.to_string())?;
            while rows > 1 {
                let groups = tree_groups(rows as u64) as usize;
                let next = room(groups)?;
                let tree = kernels.tree(stream, op, dtype, node.slice(0), next.slice(0), [outer, rows, inner]);
                tree.map_err(|error| error.to_string())?;
                used.push(node);
                (node, rows) = (next, groups);
            }
            nodes.push(node);
        }
        let sources: Vec<DeviceSlice<'_>> = nodes.iter().map(|node| node.slice(0)).collect();
        let fold = Fold {
            stage: Stage::Finish,
            op,
            dtype,
            sources: &sources,
            targets: &[to],
            count,
            divisor: elements,
            most_blocks: u32::MAX,
        };
        fold.enqueue(kernels, stream).map_err(|error| error.to_string())?;
        used.extend(nodes);
        Ok(used)
    }
}
