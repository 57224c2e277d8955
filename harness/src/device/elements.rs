//! Work on single elements: fills, scaling, conversions, comparisons, concatenations.

use super::{Alignment, Bench, GUARD, Layout, edges, judge};
use crate::{
    cuda::convert::{converted, exact},
    sample::{Sample, sample},
};
use consonance_kernels::{
    cuda::DeviceSlice,
    digest::mix,
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{Class, DType, array, array::Array, for_each_dtype};
use std::fmt;

/// Work on single elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Writes one element everywhere.
    Fill,
    /// Multiplies floats by a quarter.
    Scale,
    /// Multiplies floats by a quarter, in place.
    ScaleInPlace,
    /// Finds the first difference of two arrays, which is in the middle.
    CompareUnlike,
    /// Finds no difference of two arrays.
    CompareAlike,
    /// Concatenates tensors of ragged sizes along their last axis.
    Concat,
    /// Converts the elements to this type.
    Cast(DType),
}

impl Work {
    /// Returns all work.
    pub fn all() -> Vec<Work> {
        let casts = DType::ALL.iter().map(|&dtype| Work::Cast(dtype));
        [Work::Fill, Work::Scale, Work::ScaleInPlace, Work::CompareUnlike, Work::CompareAlike, Work::Concat]
            .into_iter()
            .chain(casts)
            .collect()
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Work::Fill => "fill",
            Work::Scale | Work::ScaleInPlace => "scale",
            Work::CompareUnlike | Work::CompareAlike => "compare",
            Work::Concat => "concat",
            Work::Cast(_) => "cast",
        }
    }
}

/// Work on single elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementsCase {
    /// The element type.
    pub dtype: DType,
    /// What is done.
    pub work: Work,
    /// The number of elements.
    pub count: usize,
    /// How the buffers lie.
    pub alignment: Alignment,
}

impl fmt::Display for ElementsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ElementsCase { dtype, work, count, alignment } = self;
        write!(f, "{work:?} of {dtype}, {count} elements, {alignment:?}")
    }
}

/// Returns the cases of at most `most` elements.
pub(super) fn cases(most: usize) -> Vec<ElementsCase> {
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        let counts: Vec<usize> = edges(dtype).into_iter().filter(|count| *count <= most).collect();
        let is_defined = |work: &Work| work.name() != "scale" || dtype.class() == Class::Float;
        for work in Work::all().into_iter().filter(is_defined) {
            for &count in &counts {
                cases.extend(Alignment::ALL.map(|alignment| ElementsCase { dtype, work, count, alignment }));
            }
        }
    }
    cases
}

impl ElementsCase {
    /// Runs the case. Returns what is wrong with its results, if anything is.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn check<T: Sample>(&self, bench: &mut Bench, seed: u64) -> Result<Option<String>, String> {
        let seed = mix(seed, self.count as u64);
        match self.work {
            Work::Fill => self.fill::<T>(bench, seed),
            Work::Scale | Work::ScaleInPlace => self.scale::<T>(bench, seed),
            Work::CompareUnlike | Work::CompareAlike => self.find::<T>(bench, seed),
            Work::Concat => self.concat::<T>(bench, seed),
            Work::Cast(to) => {
                macro_rules! cast {
                    ([$dtype:expr] $({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                        match $dtype { $(DType::$variant => self.cast::<T, $type>(bench, seed),)* }
                    };
                }
                for_each_dtype!(cast[to])
            }
        }
    }

    fn fill<T: Sample>(&self, bench: &mut Bench, seed: u64) -> Result<Option<String>, String> {
        let element = sample::<T>(seed, 1)[0];
        let expected = vec![element; self.count];
        let mut layout = Layout::new(self.alignment);
        let to = layout.push(&vec![!GUARD; size_of_val(expected.as_slice())], size_of::<T>());
        let before = layout.end();
        let after = bench.run(&before, |kernels, stream, memory| {
            let fill = kernels.fill(stream, self.dtype, memory.slice(to), self.count, element.key());
            fill.map(|()| Vec::new()).map_err(|error| error.to_string())
        })?;
        Ok(judge(&before, &after, &[to], &expected))
    }

    fn scale<T: Sample>(&self, bench: &mut Bench, seed: u64) -> Result<Option<String>, String> {
        let elements = sample::<T>(seed, self.count);
        // A quarter is exact, so that the spec's division has the product's bits.
        let expected: Vec<T> = elements.iter().map(|element| element.share(4, 0)).collect();
        let bytes = HostBuf::from(elements.as_slice()).as_bytes();
        let mut layout = Layout::new(self.alignment);
        let from = layout.push(bytes, size_of::<T>());
        let is_in_place = self.work == Work::ScaleInPlace;
        let to = if is_in_place { from } else { layout.push(&vec![!GUARD; bytes.len()], size_of::<T>()) };
        let before = layout.end();
        let after = bench.run(&before, |kernels, stream, memory| {
            let (from, to) = (memory.slice(from), memory.slice(to));
            let scale = kernels.scale(stream, self.dtype, from, to, self.count, 0.25);
            scale.map(|()| Vec::new()).map_err(|error| error.to_string())
        })?;
        Ok(judge(&before, &after, &[to], &expected))
    }

    fn find<T: Sample>(&self, bench: &mut Bench, seed: u64) -> Result<Option<String>, String> {
        /// The limit on the blocks, each of which has a result.
        const BLOCKS: u32 = 3;
        let left = sample::<T>(seed, self.count);
        let mut right = left.clone();
        let place = self.count / 2;
        if self.work == Work::CompareUnlike && place < self.count {
            let others = sample::<T>(mix(seed, 1), 64);
            let other = others.into_iter().find(|other| other.key() != left[place].key());
            right[place] = other.ok_or("all samples are equal")?;
            // A later difference is not the first.
            let last = self.count - 1;
            right[last] = if last == place { right[last] } else { right[place] };
        }
        let first = (0..self.count).find(|&at| left[at].key() != right[at].key());
        let mut layout = Layout::new(self.alignment);
        let [left, right] =
            [&left, &right].map(|array| layout.push(HostBuf::from(array.as_slice()).as_bytes(), size_of::<T>()));
        let results = layout.push(&[!GUARD; BLOCKS as usize * 8], 8);
        let (before, mut blocks) = (layout.end(), 0);
        let after = bench.run(&before, |kernels, stream, memory| {
            let arrays: [DeviceSlice<'_>; 2] = [left, right].map(|at| memory.slice(at));
            let compare = kernels.compare(stream, self.dtype, arrays, self.count, memory.slice(results), BLOCKS);
            blocks = compare.map_err(|error| error.to_string())? as usize;
            Ok(Vec::new())
        })?;
        let written = &after[results..results + blocks * 8];
        let words: Vec<u64> =
            written.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect();
        let (found, expected) = (words.iter().copied().min(), first.map_or(u64::MAX, |first| first as u64));
        if found != Some(expected) {
            return Ok(Some(format!("the first difference is at {found:?}, expected {expected}")));
        }
        Ok(judge(&before, &after, &[results], &words))
    }

    fn concat<T: Sample>(&self, bench: &mut Bench, seed: u64) -> Result<Option<String>, String> {
        const OUTER: usize = 2;
        let counts = [self.count, 0, 3, self.count / 2 + 1];
        let tensors: Vec<Array<T>> = (counts.iter().zip(0..))
            .map(|(&count, at)| Array::new(&[OUTER, count], sample(mix(seed, at), OUTER * count)))
            .collect();
        let expected = array::gather(&tensors, 1).map_err(|error| error.to_string())?.data;
        let mut layout = Layout::new(self.alignment);
        let from = tensors.iter().zip(counts).map(|(tensor, count)| {
            (layout.push(HostBuf::from(tensor.data.as_slice()).as_bytes(), size_of::<T>()), count)
        });
        let from: Vec<(usize, usize)> = from.collect();
        let to = layout.push(&vec![!GUARD; size_of_val(expected.as_slice())], size_of::<T>());
        let before = layout.end();
        let after = bench.run(&before, |kernels, stream, memory| {
            let sources: Vec<_> = from.iter().map(|&(at, count)| (memory.slice(at), count)).collect();
            let concat = kernels.concat(stream, self.dtype, OUTER, &sources, memory.slice(to));
            concat.map(|()| Vec::new()).map_err(|error| error.to_string())
        })?;
        Ok(judge(&before, &after, &[to], &expected))
    }

    fn cast<T: Sample, R: Sample>(&self, bench: &mut Bench, seed: u64) -> Result<Option<String>, String> {
        let elements = sample::<T>(seed, self.count);
        let bytes: Vec<u8> = elements.iter().flat_map(|&element| converted(exact(element), R::DTYPE)).collect();
        let mut results = HostMemory::zeroed(R::DTYPE, self.count);
        results.as_buf_mut().copy_from_bytes(&bytes);
        let expected = results.as_buf().as_slice::<R>().ok_or("results of another type")?;
        let mut layout = Layout::new(self.alignment);
        let from = layout.push(HostBuf::from(elements.as_slice()).as_bytes(), size_of::<T>());
        let to = layout.push(&vec![!GUARD; bytes.len()], size_of::<R>());
        let before = layout.end();
        let after = bench.run(&before, |kernels, stream, memory| {
            let (from, to) = ((T::DTYPE, memory.slice(from)), (R::DTYPE, memory.slice(to)));
            let cast = kernels.cast(stream, from, to, self.count);
            cast.map(|()| Vec::new()).map_err(|error| error.to_string())
        })?;
        Ok(judge(&before, &after, &[to], expected))
    }
}
