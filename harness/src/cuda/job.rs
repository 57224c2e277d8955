//! Launches with the memory that they use, as a value.

use crate::compare::Verdict;
use consonance_kernels::{
    cuda::kernels::{
        Launch, Rows, Stage, Unsupported, along, cast, compare, concat, fill, fold, scale, sum_rows, tree,
    },
    memory::HostBuf,
};
use consonance_spec::{DType, Element, ReduceOp, for_each_dtype};

/// The byte that lies where nothing may write.
pub(super) const GUARD: u8 = 0xa5;

/// Launches, one after the other, with the memory that they use.
#[derive(Default)]
pub(super) struct Job {
    pub(super) buffers: Vec<Buffer>,
    pub(super) steps: Vec<Step>,
    /// Limit on the blocks of a launch.
    pub(super) blocks: u32,
}

/// Elements in the memory of a device.
pub(super) struct Buffer {
    name: String,
    /// Bytes between a multiple of 256 and the first element.
    pub(super) shift: usize,
    /// The number of bytes.
    pub(super) bytes: usize,
    /// The bytes before the launches; `None` if nothing was written there.
    pub(super) before: Option<Vec<u8>>,
    pub(super) after: After,
}

/// The content that a buffer must have after the launches.
pub(super) enum After {
    /// Elements of this type with these bytes.
    Elements(DType, Vec<u8>),
    /// Words, of which this is the least.
    Least(u64),
    /// Anything.
    Any,
}

/// One or several launches of a kernel. Sources, targets and arrays are indices of buffers.
pub(super) enum Step {
    Fold {
        stage: Stage,
        op: ReduceOp,
        dtype: DType,
        sources: Vec<usize>,
        targets: Vec<usize>,
        count: usize,
        divisor: u64,
    },
    Along {
        op: ReduceOp,
        dtype: DType,
        source: usize,
        target: usize,
        shape: [usize; 3],
    },
    Tree {
        op: ReduceOp,
        dtype: DType,
        source: usize,
        target: usize,
        shape: [usize; 3],
    },
    Rows {
        dtype: DType,
        source: usize,
        target: usize,
        order: usize,
        starts: usize,
        places: Option<usize>,
        groups: usize,
        width: usize,
    },
    /// The sources have these numbers of elements in a row.
    Concat {
        dtype: DType,
        outer: usize,
        sources: Vec<(usize, usize)>,
        target: usize,
    },
    Fill {
        dtype: DType,
        target: usize,
        count: usize,
        bits: u64,
    },
    Cast {
        from: DType,
        to: DType,
        source: usize,
        target: usize,
        count: usize,
    },
    Scale {
        dtype: DType,
        source: usize,
        target: usize,
        count: usize,
        factor: f64,
    },
    Compare {
        dtype: DType,
        arrays: [usize; 2],
        count: usize,
        results: usize,
    },
}

impl Job {
    /// Adds a buffer with these elements, which stay as they are. Returns its index, as the
    /// functions below.
    pub(super) fn source<T: Element>(&mut self, elements: &[T], offset: usize) -> usize {
        self.bytes(T::DTYPE, bytes(elements), offset)
    }

    /// Adds a buffer with elements of these bytes, which stay as they are.
    pub(super) fn bytes(&mut self, dtype: DType, bytes: Vec<u8>, offset: usize) -> usize {
        let after = After::Elements(dtype, bytes.clone());
        self.push("source", offset * dtype.size(), bytes.len(), Some(bytes), after)
    }

    /// Adds a buffer that gets these elements.
    pub(super) fn target(&mut self, dtype: DType, expected: &[u8], offset: usize) -> usize {
        let after = After::Elements(dtype, expected.to_vec());
        self.push("target", offset * dtype.size(), expected.len(), None, after)
    }

    /// Adds a buffer for `count` elements of `size` bytes that are not compared.
    pub(super) fn node(&mut self, size: usize, count: usize, offset: usize) -> usize {
        self.push("node", offset * size, size * count, None, After::Any)
    }

    fn push(&mut self, kind: &str, shift: usize, bytes: usize, before: Option<Vec<u8>>, after: After) -> usize {
        let number = self.buffers.len();
        self.buffers.push(Buffer { name: format!("{kind} {number}"), shift, bytes, before, after });
        number
    }
}

impl Buffer {
    /// Compares the bytes after the launches with what they must be.
    pub(super) fn judge(&self, found: &[u8]) -> Verdict {
        match &self.after {
            After::Elements(dtype, expected) => same(&self.name, *dtype, found, expected),
            After::Least(expected) => match bits(DType::U64, found).into_iter().min() {
                Some(least) if least == *expected => Ok(()),
                least => Err(format!("{}: the least word is {least:?}, expected {expected}", self.name)),
            },
            After::Any => Ok(()),
        }
    }
}

impl Step {
    /// Returns the launches, where buffers begin at these addresses.
    pub(super) fn launches(&self, address: &[u64]) -> Result<Vec<Launch>, Unsupported> {
        let all = |indices: &[usize]| indices.iter().map(|&index| address[index]).collect::<Vec<u64>>();
        let one = match *self {
            Step::Fold { stage, op, dtype, ref sources, ref targets, count, divisor } => {
                fold(stage, op, dtype, &all(sources), &all(targets), count as u64, divisor)
            }
            Step::Along { op, dtype, source, target, shape } => {
                along(op, dtype, address[source], address[target], shape.map(|size| size as u64))
            }
            Step::Tree { op, dtype, source, target, shape } => {
                tree(op, dtype, address[source], address[target], shape.map(|size| size as u64))
            }
            Step::Rows { dtype, source, target, order, starts, places, groups, width } => {
                let [order, starts] = [order, starts].map(|index| address[index]);
                let places = places.map(|index| address[index]);
                let rows = Rows { order, starts, places, groups: groups as u64, width: width as u64 };
                sum_rows(dtype, address[source], address[target], rows)
            }
            Step::Concat { dtype, outer, ref sources, target } => {
                let sources: Vec<(u64, u64)> =
                    sources.iter().map(|&(index, count)| (address[index], count as u64)).collect();
                return concat(dtype, outer as u64, &sources, address[target]);
            }
            Step::Fill { dtype, target, count, bits } => fill(dtype, address[target], count as u64, bits),
            Step::Cast { from, to, source, target, count } => {
                cast(from, to, address[source], address[target], count as u64)
            }
            Step::Scale { dtype, source, target, count, factor } => {
                scale(dtype, address[source], address[target], count as u64, factor)
            }
            Step::Compare { dtype, arrays: [left, right], count, results } => {
                compare(dtype, address[left], address[right], count as u64, address[results])
            }
        };
        one.map(|launch| vec![launch])
    }
}

/// Returns the bytes of elements.
pub(super) fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    HostBuf::from(elements).as_bytes().to_vec()
}

/// Returns the bits of elements. All NaNs have the same.
pub(super) fn bits(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    macro_rules! is_nan {
        ($bits:ident, $dtype:ident; $({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match $dtype { $(DType::$variant => is_nan!($class $type, $bits),)* }
        };
        (Float $type:ty, $bits:ident) => { <$type>::from_bits($bits as _).is_nan() };
        ($class:ident $type:ty, $bits:ident) => { false };
    }
    let one = |element: &[u8]| {
        let mut word = [0; 8];
        word[..element.len()].copy_from_slice(element);
        let bits = u64::from_le_bytes(word);
        if for_each_dtype!(is_nan bits, dtype;) { u64::MAX } else { bits }
    };
    bytes.chunks_exact(dtype.size()).map(one).collect()
}

/// Compares the bytes of elements.
pub(super) fn same(what: &str, dtype: DType, found: &[u8], expected: &[u8]) -> Verdict {
    // Most results are equal in all bytes. Others may have other NaNs.
    if found == expected {
        return Ok(());
    }
    if found.len() != expected.len() {
        return Err(format!("{what}: {} bytes, expected {}", found.len(), expected.len()));
    }
    let (found, expected) = (bits(dtype, found), bits(dtype, expected));
    match (0..found.len()).find(|&at| found[at] != expected[at]) {
        Some(at) => Err(format!("{what}: {dtype} element {at} is {:#x}, expected {:#x}", found[at], expected[at])),
        None => Ok(()),
    }
}
