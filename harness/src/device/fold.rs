//! Reductions element by element.

use super::{Alignment, BLOCK, Bench, GUARD, Layout, SPEC, VECTOR, edges, judge};
use crate::sample::{Sample, keys, sample};
use consonance_kernels::{
    cpu::reduce::Reducer,
    cuda::{
        DeviceMemory, DeviceSlice, Fold, Kernels, Stream,
        kernels::{Accumulator, Stage},
    },
    digest::mix,
    memory::HostBuf,
};
use consonance_spec::{DType, ReduceOp, collective};
use std::{fmt, ops::Range};

/// The numbers of sources.
const SOURCES: Range<usize> = 1..10;

/// Where the results of a case go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// To one target that is no source.
    Apart,
    /// To two targets that are no sources.
    Two,
    /// To all sources, in place.
    InPlace,
    /// Pairs of sources are kept as accumulators; the accumulators are finished to one target.
    Kept,
}

/// A reduction element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldCase {
    /// The element type.
    pub dtype: DType,
    /// The operation.
    pub op: ReduceOp,
    /// The number of sources.
    pub sources: usize,
    /// The number of elements of each.
    pub count: usize,
    /// Where the results go.
    pub form: Form,
    /// How the buffers lie.
    pub alignment: Alignment,
    /// Limit on the blocks that run.
    pub most_blocks: u32,
}

impl fmt::Display for FoldCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FoldCase { dtype, op, sources, count, form, alignment, most_blocks } = self;
        write!(f, "{op} of {dtype}, {sources} sources of {count} elements, {form:?}, {alignment:?}")?;
        if *most_blocks != u32::MAX { write!(f, ", at most {most_blocks} blocks") } else { Ok(()) }
    }
}

pub(super) fn cases(most: usize) -> Vec<FoldCase> {
    let pairs = DType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    let mut cases = Vec::new();
    for (dtype, op) in pairs.filter(|(dtype, op)| op.result(*dtype).is_some()) {
        let keeps_size = op.result(dtype).is_some_and(|result| result.size() == dtype.size());
        let vector = VECTOR / dtype.size();
        let grid = 2 * BLOCK * vector;
        let counts = (edges(dtype).into_iter().map(|count| (count, u32::MAX))).chain([
            (grid - 1, 2),
            (grid + 1, 2),
            (3 * grid + 1, 2),
        ]);
        for (count, most_blocks) in counts.filter(|(count, _)| *count <= most) {
            for sources in SOURCES {
                for form in [Form::Apart, Form::Two, Form::InPlace, Form::Kept] {
                    for alignment in Alignment::ALL {
                        if keeps_size || form != Form::InPlace {
                            cases.push(FoldCase { dtype, op, sources, count, form, alignment, most_blocks });
                        }
                    }
                }
            }
        }
    }
    cases
}

impl FoldCase {
    /// Runs the self. Returns what is wrong with its results, if anything is.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn check<T: Sample<Mean: Sample>>(
        &self,
        bench: &mut Bench,
        seed: u64,
    ) -> Result<Option<String>, String> {
        let seed = mix(seed, (self.count * SOURCES.end + self.sources) as u64);
        let inputs: Vec<Vec<T>> =
            (0..self.sources).map(|source| sample(mix(seed, source as u64), self.count)).collect();
        if self.op == ReduceOp::Mean && T::DTYPE.mean() != Some(T::DTYPE) {
            let expected = (self.count <= SPEC).then(|| collective::mean(&inputs));
            self.compare::<T, T::Mean>(bench, &inputs, expected)
        } else {
            let expected = (self.count <= SPEC).then(|| collective::reduce(self.op, &inputs));
            self.compare::<T, T>(bench, &inputs, expected)
        }
    }

    fn compare<T: Sample, R: Sample>(
        &self,
        bench: &mut Bench,
        inputs: &[Vec<T>],
        spec: Option<Result<Vec<R>, collective::Error>>,
    ) -> Result<Option<String>, String> {
        let undefined = || format!("{} is not defined on {}", self.op, self.dtype);
        let reducer = Reducer::new(self.op, self.dtype).ok_or_else(undefined)?;
        let mut expected = vec![R::default(); self.count];
        let sources: Vec<HostBuf<'_>> = inputs.iter().map(|input| input.as_slice().into()).collect();
        reducer.reduce(&sources, &mut expected.as_mut_slice().into());
        let spec = spec.transpose().map_err(|error| error.to_string())?;
        if spec.is_some_and(|spec| keys(&spec) != keys(&expected)) {
            return Ok(Some("the host's reducer differs from the spec".to_owned()));
        }

        let mut layout = Layout::new(self.alignment);
        let from: Vec<usize> = sources.iter().map(|source| layout.push(source.as_bytes(), size_of::<T>())).collect();
        let results = HostBuf::from(expected.as_slice()).as_bytes();
        let blank = vec![!GUARD; results.len()];
        let to = match self.form {
            Form::InPlace => from.clone(),
            Form::Two => vec![layout.push(&blank, size_of::<R>()), layout.push(&blank, size_of::<R>())],
            Form::Apart | Form::Kept => vec![layout.push(&blank, size_of::<R>())],
        };
        let before = layout.end();
        let after = bench.run(&before, |kernels, stream, memory| self.enqueue(kernels, stream, memory, &from, &to))?;
        Ok(judge(&before, &after, &to, &expected))
    }

    /// Enqueues the reductions of the case. Returns the memory of accumulators.
    fn enqueue(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        memory: &DeviceMemory,
        from: &[usize],
        to: &[usize],
    ) -> Result<Vec<DeviceMemory>, String> {
        let FoldCase { dtype, op, sources, count, form, most_blocks, .. } = *self;
        let slices = |places: &[usize]| places.iter().map(|&at| memory.slice(at)).collect::<Vec<_>>();
        let (from, to) = (slices(from), slices(to));
        let divisor = sources as u64;
        let fold = |stage, sources: &[DeviceSlice<'_>], targets: &[DeviceSlice<'_>]| {
            let fold = Fold { stage, op, dtype, sources, targets, count, divisor, most_blocks };
            fold.enqueue(kernels, stream).map_err(|error| error.to_string())
        };
        if form != Form::Kept {
            return fold(Stage::Whole, &from, &to).map(|()| Vec::new());
        }
        let accumulator = Accumulator::new(op, dtype).ok_or("the operation is not defined")?;
        // Accumulators begin at vectors.
        let bytes = (accumulator.bytes(dtype) * count).next_multiple_of(VECTOR);
        let pairs = from.chunks(2);
        let kept = DeviceMemory::new(kernels.context(), bytes * pairs.len()).map_err(|error| error.to_string())?;
        let nodes: Vec<DeviceSlice<'_>> = (0..pairs.len()).map(|index| kept.slice(index * bytes)).collect();
        for (pair, node) in pairs.zip(&nodes) {
            fold(Stage::Keep, pair, &[*node])?;
        }
        fold(Stage::Finish, &nodes, &to)?;
        Ok(vec![kept])
    }
}
