//! Work on single elements: fills, scaling, comparisons, conversions.

use super::{
    exact::{Exact, converted, exact},
    job::{After, Job, Step, bits, bytes},
};
use crate::sample::{Sample, sample};
use consonance_kernels::cuda::kernels::compare;
use consonance_spec::DType;

/// Work on single elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Writes the element with the seed's bits everywhere.
    Fill,
    /// Multiplies floats by a factor.
    Scale {
        /// The factor.
        factor: f64,
        /// Whether the products replace the floats.
        in_place: bool,
    },
    /// Finds the first difference of an array from one with an element changed there, if there is
    /// any, and at the end.
    Compare {
        /// The first element that is changed.
        changed: Option<usize>,
    },
    /// Converts the elements to this type.
    Cast(DType),
}

/// Work on elements that a seed chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementsCase {
    /// The work on the elements.
    pub work: Work,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of elements.
    pub count: usize,
    /// Elements between a multiple of 256 bytes and the first element, of both buffers.
    pub offsets: [usize; 2],
    /// Limit on the blocks of a launch.
    pub blocks: u32,
    /// Chooses the elements.
    pub seed: u64,
}

impl Work {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Work::Fill => "fill",
            Work::Scale { .. } => "scale",
            Work::Compare { .. } => "compare",
            Work::Cast(_) => "cast",
        }
    }
}

/// Returns the job of a case.
pub(super) fn of_elements<T: Sample>(case: &ElementsCase) -> Result<Job, String> {
    let &ElementsCase { work, dtype, count, offsets: [first, second], blocks, seed } = case;
    let elements: Vec<T> = sample(seed, count);
    let mut job = Job { blocks, ..Job::default() };
    match work {
        Work::Fill => {
            let target = job.target(dtype, &seed.to_le_bytes()[..dtype.size()].repeat(count), first);
            job.steps.push(Step::Fill { dtype, target, count, bits: seed });
        }
        Work::Scale { factor, in_place } => {
            let product = |element: &T| match (exact(*element), dtype.size()) {
                (Exact::Real(real), 8) => converted(Exact::Real(real * factor), dtype),
                (Exact::Real(real), _) => converted(Exact::Real((real as f32 * factor as f32).into()), dtype),
                (Exact::Integer(_), _) => Vec::new(),
            };
            let expected: Vec<u8> = elements.iter().flat_map(product).collect();
            let source = job.source(&elements, first);
            let target = if in_place { source } else { job.target(dtype, &expected, second) };
            job.buffers[target].after = After::Elements(dtype, expected);
            job.steps.push(Step::Scale { dtype, source, target, count, factor });
        }
        Work::Compare { changed } => {
            let (left, size) = (bytes(&elements), dtype.size());
            let mut right = left.clone();
            let mut places: Vec<usize> =
                changed.into_iter().flat_map(|place| [place, count.saturating_sub(1)]).collect();
            places.dedup();
            for place in places {
                // Any bit, but that of a bool.
                let is_bool = dtype == DType::Bool;
                let (byte, bit) = if is_bool { (0, 0) } else { (seed as usize / 8 % size, seed % 8) };
                right.get_mut(place * size + byte).into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
            let (left_bits, right_bits) = (bits(dtype, &left), bits(dtype, &right));
            let first_difference = (0..count).find(|&at| left_bits[at] != right_bits[at]);
            let arrays = [job.source(&elements, first), job.bytes(dtype, right, second)];
            // The grid does not depend on the addresses.
            let launch = compare(dtype, 0, 0, count as u64, 0).map_err(|error| error.to_string())?;
            let results = job.node(size_of::<u64>(), launch.at_most(blocks).grid as usize, 0);
            job.buffers[results].after = After::Least(first_difference.map_or(u64::MAX, |at| at as u64));
            job.steps.push(Step::Compare { dtype, arrays, count, results });
        }
        Work::Cast(to) => {
            let expected: Vec<u8> = elements.iter().flat_map(|&element| converted(exact(element), to)).collect();
            let (source, target) = (job.source(&elements, first), job.target(to, &expected, second));
            job.steps.push(Step::Cast { from: dtype, to, source, target, count });
        }
    }
    Ok(job)
}
