//! Reductions on a CUDA device, compared bit for bit with the host's reducers and, where they are
//! short, with the spec.
//!
//! A case lays out sources and targets in one block of device memory, with bytes between them that
//! nothing may change. The whole block is compared afterwards.

use crate::sample::{Sample, keys, sample};
use consonance_kernels::{
    cpu::reduce::Reducer,
    cuda::{
        Context, DeviceMemory, DeviceSlice, Failure, Fold, Kernels, PinnedMemory, Stream,
        kernels::{Accumulator, Stage},
    },
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, ReduceOp, call::mix, collective, for_each_dtype};
use std::{
    fmt,
    ops::Range,
    time::{Duration, Instant},
};

/// The numbers of sources.
const SOURCES: Range<usize> = 1..10;

/// The bytes of a vector, the threads of a warp and of a block, as the kernels use them.
const VECTOR: usize = 16;
const WARP: usize = 32;
const BLOCK: usize = 256;

/// The byte that lies where nothing may write, and its number between two buffers.
const GUARD: u8 = 0xa5;
const GUARDS: usize = 64;

/// The spec computes results of at most this many elements: it is slow.
const SPEC: usize = 600;

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

/// How the buffers of a case lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Each begins at a vector.
    Vectors,
    /// Each begins one element after a vector.
    Alike,
    /// Buffer `i` begins `i` elements after a vector.
    Unlike,
}

/// A reduction on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
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

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { dtype, op, sources, count, form, alignment, most_blocks } = self;
        write!(f, "{op} of {dtype}, {sources} sources of {count} elements, {form:?}, {alignment:?}")?;
        if *most_blocks != u32::MAX { write!(f, ", at most {most_blocks} blocks") } else { Ok(()) }
    }
}

/// Returns every case of at most `most` elements: each element type, operation that is defined on
/// it, number of sources up to 9, place of the results and alignment, with counts at each edge of a
/// vector, a warp, a block and a grid.
pub fn cases(most: usize) -> Vec<Case> {
    let pairs = DType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    let mut cases = Vec::new();
    for (dtype, op) in pairs.filter(|(dtype, op)| op.result(*dtype).is_some()) {
        let keeps_size = op.result(dtype).is_some_and(|result| result.size() == dtype.size());
        let vector = VECTOR / dtype.size();
        let around = |count: usize| [count - 1, count, count + 1].map(|count| (count, u32::MAX));
        let grid = 2 * BLOCK * vector;
        let counts = (around(1).into_iter().chain(around(vector)))
            .chain(around(vector * WARP))
            .chain(around(vector * BLOCK))
            .chain([(grid - 1, 2), (grid + 1, 2), (3 * grid + 1, 2)]);
        for (count, most_blocks) in counts.filter(|(count, _)| *count <= most) {
            for sources in SOURCES {
                for form in [Form::Apart, Form::Two, Form::InPlace, Form::Kept] {
                    for alignment in [Alignment::Vectors, Alignment::Alike, Alignment::Unlike] {
                        if keeps_size || form != Form::InPlace {
                            cases.push(Case { dtype, op, sources, count, form, alignment, most_blocks });
                        }
                    }
                }
            }
        }
    }
    cases
}

/// A device that runs cases, one after the other.
#[derive(Debug)]
pub struct Bench {
    kernels: Kernels,
    stream: Stream,
    memory: DeviceMemory,
    pinned: Option<PinnedMemory>,
    patience: Duration,
}

/// The buffers of a case, as bytes.
struct Layout {
    bytes: Vec<u8>,
    /// The size of the next buffer's shift, and the number of buffers.
    alignment: Alignment,
    buffers: usize,
}

impl Bench {
    /// Makes a bench for cases on a device. Each wait for the device ends after `patience`.
    ///
    /// # Errors
    /// The device's.
    pub fn new(context: &Context, patience: Duration) -> Result<Bench, Failure> {
        Ok(Bench {
            kernels: Kernels::new(context),
            stream: Stream::new(context)?,
            memory: DeviceMemory::new(context, 0)?,
            pinned: None,
            patience,
        })
    }

    /// Returns the kernels that the cases use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Runs a case, with data from a seed. Returns what is wrong with its results, if anything is.
    ///
    /// # Errors
    /// The device's, if the case did not run.
    pub fn check(&mut self, case: &Case, seed: u64) -> Result<Option<String>, String> {
        macro_rules! check {
            ([$dtype:expr] $({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match $dtype { $(DType::$variant => self.check_type::<$type>(case, seed),)* }
            };
        }
        for_each_dtype!(check[case.dtype])
    }

    fn check_type<T: Sample<Mean: Sample>>(&mut self, case: &Case, seed: u64) -> Result<Option<String>, String> {
        let seed = mix(seed, (case.count * SOURCES.end + case.sources) as u64);
        let inputs: Vec<Vec<T>> =
            (0..case.sources).map(|source| sample(mix(seed, source as u64), case.count)).collect();
        if case.op == ReduceOp::Mean && T::DTYPE.mean() != Some(T::DTYPE) {
            let expected = (case.count <= SPEC).then(|| collective::mean(&inputs));
            self.compare::<T, T::Mean>(case, &inputs, expected)
        } else {
            let expected = (case.count <= SPEC).then(|| collective::reduce(case.op, &inputs));
            self.compare::<T, T>(case, &inputs, expected)
        }
    }

    fn compare<T: Sample, R: Sample>(
        &mut self,
        case: &Case,
        inputs: &[Vec<T>],
        spec: Option<Result<Vec<R>, collective::Error>>,
    ) -> Result<Option<String>, String> {
        let undefined = || format!("{} is not defined on {}", case.op, case.dtype);
        let reducer = Reducer::new(case.op, case.dtype).ok_or_else(undefined)?;
        let mut expected = vec![R::default(); case.count];
        let sources: Vec<HostBuf<'_>> = inputs.iter().map(|input| input.as_slice().into()).collect();
        reducer.reduce(&sources, &mut expected.as_mut_slice().into());
        if let Some(spec) = spec {
            let spec = spec.map_err(|error| error.to_string())?;
            if keys(&spec) != keys(&expected) {
                return Ok(Some("the host's reducer differs from the spec".to_owned()));
            }
        }

        let mut layout = Layout::new(case.alignment);
        let from: Vec<usize> = sources.iter().map(|source| layout.push(source.as_bytes(), size_of::<T>())).collect();
        let results = HostBuf::from(expected.as_slice()).as_bytes();
        let blank = vec![!GUARD; results.len()];
        let to = match case.form {
            Form::InPlace => from.clone(),
            Form::Two => vec![layout.push(&blank, size_of::<R>()), layout.push(&blank, size_of::<R>())],
            Form::Apart | Form::Kept => vec![layout.push(&blank, size_of::<R>())],
        };
        let before = layout.end();
        let after = self.run(case, &before, &from, &to)?;
        for (index, &start) in to.iter().enumerate() {
            let range = start..start + results.len();
            if let Some(why) = difference::<R>(&expected, &after[range]) {
                return Ok(Some(format!("target {index}: {why}")));
            }
        }
        let is_result = |at: usize| to.iter().any(|&start| (start..start + results.len()).contains(&at));
        let changed = (0..before.len()).find(|&at| before[at] != after[at] && !is_result(at));
        Ok(changed.map(|at| format!("byte {at} of the memory changed, which is in no target")))
    }

    /// Copies the block to the device, runs the case, and returns the block.
    fn run(&mut self, case: &Case, block: &[u8], from: &[usize], to: &[usize]) -> Result<Vec<u8>, String> {
        let told = |failure: Failure| failure.to_string();
        let deadline = Instant::now() + self.patience;
        let (context, bytes) = (self.kernels.context().clone(), block.len());
        if self.memory.bytes() < bytes {
            self.memory = DeviceMemory::new(&context, bytes.next_power_of_two()).map_err(told)?;
        }
        let kept = self.pinned.take().filter(|pinned| pinned.bytes() >= bytes);
        let mut pinned = match kept {
            Some(pinned) => pinned,
            None => PinnedMemory::new(&context, bytes.next_power_of_two()).map_err(told)?,
        };
        pinned.as_mut_slice()[..bytes].copy_from_slice(block);
        let copy = self.stream.write(pinned, self.memory.slice(0), bytes).map_err(told)?;
        let pinned = copy.wait(deadline).map_err(told)?;
        // The device may still use it until the last wait below.
        let _kept = self.enqueue(case, from, to)?;
        let copy = self.stream.read(self.memory.slice(0), pinned, bytes).map_err(told)?;
        let pinned = copy.wait(deadline).map_err(told)?;
        let result = pinned.as_slice()[..bytes].to_vec();
        self.pinned = Some(pinned);
        Ok(result)
    }

    /// Enqueues the reductions of the case. Returns the memory of accumulators.
    fn enqueue(&self, case: &Case, from: &[usize], to: &[usize]) -> Result<Option<DeviceMemory>, String> {
        let Case { dtype, op, sources, count, form, most_blocks, .. } = *case;
        let slices = |places: &[usize]| places.iter().map(|&at| self.memory.slice(at)).collect::<Vec<_>>();
        let (from, to) = (slices(from), slices(to));
        let divisor = sources as u64;
        let fold = |stage, sources: &[DeviceSlice<'_>], targets: &[DeviceSlice<'_>]| {
            let fold = Fold { stage, op, dtype, sources, targets, count, divisor, most_blocks };
            fold.enqueue(&self.kernels, &self.stream).map_err(|error| error.to_string())
        };
        if form != Form::Kept {
            return fold(Stage::Whole, &from, &to).map(|()| None);
        }
        let accumulator = Accumulator::new(op, dtype).ok_or("the operation is not defined")?;
        // Accumulators begin at vectors.
        let bytes = (accumulator.bytes(dtype) * count).next_multiple_of(VECTOR);
        let pairs = from.chunks(2);
        let kept = DeviceMemory::new(self.kernels.context(), bytes * pairs.len()).map_err(|error| error.to_string())?;
        let nodes: Vec<DeviceSlice<'_>> = (0..pairs.len()).map(|index| kept.slice(index * bytes)).collect();
        for (pair, node) in pairs.zip(&nodes) {
            fold(Stage::Keep, pair, &[*node])?;
        }
        fold(Stage::Finish, &nodes, &to)?;
        Ok(Some(kept))
    }
}

impl Layout {
    fn new(alignment: Alignment) -> Layout {
        Layout { bytes: Vec::new(), alignment, buffers: 0 }
    }

    /// Appends a buffer with elements of `size` bytes. Returns where it begins.
    fn push(&mut self, buffer: &[u8], size: usize) -> usize {
        let shift = match self.alignment {
            Alignment::Vectors => 0,
            Alignment::Alike => 1,
            Alignment::Unlike => self.buffers,
        };
        let start = (self.bytes.len() + GUARDS).next_multiple_of(VECTOR) + shift * size;
        self.bytes.resize(start, GUARD);
        self.bytes.extend_from_slice(buffer);
        self.buffers += 1;
        start
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + GUARDS, GUARD);
        self.bytes
    }
}

/// Returns the first difference between results and their bytes from the device, if there is one.
fn difference<R: Sample>(expected: &[R], bytes: &[u8]) -> Option<String> {
    // Most results are equal in all bytes. Others may have other NaNs.
    if HostBuf::from(expected).as_bytes() == bytes {
        return None;
    }
    let mut memory = HostMemory::zeroed(R::DTYPE, expected.len());
    memory.as_buf_mut().copy_from_bytes(bytes);
    let found = memory.as_buf().as_slice::<R>().unwrap_or_default();
    let at = (0..expected.len()).find(|&at| expected[at].key() != found[at].key());
    match at {
        Some(at) => Some(format!("element {at} is {:?}, expected {:?}", found[at], expected[at])),
        // Bytes that are no element were changed to one.
        None if R::DTYPE == DType::Bool => Some("an element is neither 0 nor 1".to_owned()),
        None => None,
    }
}
