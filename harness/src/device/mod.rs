//! Work on a CUDA device, compared bit for bit with the host's kernels and, where it is short, with
//! the spec. `fold.rs` has reductions element by element, `along.rs` reductions along an axis,
//! `elements.rs` work on single elements.
//!
//! A case lays out sources and targets in one block of device memory, with bytes between them that
//! nothing may change. The whole block is compared afterwards.

mod fold;
mod along;
mod elements;

pub use along::AlongCase;
pub use elements::{ElementsCase, Work};
pub use fold::{FoldCase, Form};

use crate::sample::Sample;
use consonance_kernels::{
    cuda::{Context, DeviceMemory, Failure, Kernels, PinnedMemory, Stream},
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, for_each_dtype};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// The bytes of a vector, the threads of a warp and of a block, as the kernels use them.
const VECTOR: usize = 16;
const WARP: usize = 32;
const BLOCK: usize = 256;

/// The byte that lies where nothing may write, and its number between two buffers.
const GUARD: u8 = 0xa5;
const GUARDS: usize = 64;

/// The spec computes results of at most this many elements: it is slow.
const SPEC: usize = 600;

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

impl Alignment {
    const ALL: [Alignment; 3] = [Alignment::Vectors, Alignment::Alike, Alignment::Unlike];
}

/// Work on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A reduction element by element.
    Fold(FoldCase),
    /// A reduction along an axis.
    Along(AlongCase),
    /// Work on single elements.
    Elements(ElementsCase),
}

impl Case {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Case::Fold(case) => case.dtype,
            Case::Along(case) => case.dtype,
            Case::Elements(case) => case.dtype,
        }
    }

    /// Returns what the case does to elements: the name of an operation, or of other work.
    pub fn name(&self) -> &'static str {
        match self {
            Case::Fold(case) => case.op.name(),
            Case::Along(case) => case.op.name(),
            Case::Elements(case) => case.work.name(),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Fold(case) => case.fmt(f),
            Case::Along(case) => case.fmt(f),
            Case::Elements(case) => case.fmt(f),
        }
    }
}

/// Returns every case whose buffers have at most `most` elements: each element type, operation that
/// is defined on it, number of sources up to 9, place of the results and alignment, with counts at
/// each edge of a vector, a warp, a block and a grid.
pub fn cases(most: usize) -> Vec<Case> {
    let folds = fold::cases(most).into_iter().map(Case::Fold);
    let alongs = along::cases(most).into_iter().map(Case::Along);
    folds.chain(alongs).chain(elements::cases(most).into_iter().map(Case::Elements)).collect()
}

/// Returns the counts of elements at the edges of a vector, a warp and a block.
fn edges(dtype: DType) -> Vec<usize> {
    let vector = VECTOR / dtype.size();
    [1, vector, vector * WARP, vector * BLOCK].into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]).collect()
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
                match $dtype {
                    $(DType::$variant => match case {
                        Case::Fold(case) => case.check::<$type>(self, seed),
                        Case::Along(case) => case.check::<$type>(self, seed),
                        Case::Elements(case) => case.check::<$type>(self, seed),
                    },)*
                }
            };
        }
        for_each_dtype!(check[case.dtype()])
    }

    /// Copies a block to the device, does the work, and returns the block. The work returns memory
    /// that it uses until it has ended.
    ///
    /// # Errors
    /// The device's.
    fn run(
        &mut self,
        block: &[u8],
        work: impl FnOnce(&Kernels, &Stream, &DeviceMemory) -> Result<Vec<DeviceMemory>, String>,
    ) -> Result<Vec<u8>, String> {
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
        let _used = work(&self.kernels, &self.stream, &self.memory)?;
        let copy = self.stream.read(self.memory.slice(0), pinned, bytes).map_err(told)?;
        let pinned = copy.wait(deadline).map_err(told)?;
        let result = pinned.as_slice()[..bytes].to_vec();
        self.pinned = Some(pinned);
        Ok(result)
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

/// Returns what is wrong after the work, if anything is: results that begin at `targets` and are
/// not as expected, or another byte of the block that changed.
fn judge<R: Sample>(before: &[u8], after: &[u8], targets: &[usize], expected: &[R]) -> Option<String> {
    let bytes = size_of_val(expected);
    for (index, &start) in targets.iter().enumerate() {
        if let Some(why) = difference::<R>(expected, &after[start..start + bytes]) {
            return Some(format!("target {index}: {why}"));
        }
    }
    let is_result = |at: usize| targets.iter().any(|&start| (start..start + bytes).contains(&at));
    let changed = (0..before.len()).find(|&at| before[at] != after[at] && !is_result(at));
    changed.map(|at| format!("byte {at} of the memory changed, which is in no target"))
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
