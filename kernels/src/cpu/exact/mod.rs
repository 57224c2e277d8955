//! Exact sums and means of floats, each result rounded once. So they do not depend on the order of
//! the elements or on their division among replicas, batches or files.
//!
//! A result of many elements is computed block by block (`block.rs`). What the blocks leave is
//! added to a superaccumulator (`sum.rs`), whose words also are the form in which replicas exchange
//! their parts. Of few elements the results are computed side by side (`short_sums.rs`).
//!
//! The values are views `[outer, axis, inner]`, and result `i` of `outer × inner` is that of the
//! elements along the axis. Without an axis its size is 1, and the results are those of several
//! replicas' elements.

mod block;
mod short_sums;
mod float;
mod sum;
#[cfg(test)]
mod tests;

use crate::{
    cpu::copy::copy_own,
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, ReduceOp};
use float::Float;
use short_sums::RESULTS;
use std::ops::Range;
use sum::ExactSum;

/// A replica's elements, and the sizes `[outer, axis, inner]` of its view of them.
pub type View<'a> = (HostBuf<'a>, [usize; 3]);

/// Up to so many elements of a result are few.
const FEW: usize = 32;

/// Results whose elements are gathered together: those of a cache line.
const COLUMNS: usize = 16;

/// Elements of a result that are gathered at a time.
const GATHERED: usize = 256;

/// Calls a generic function for the element type.
macro_rules! typed {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        if $dtype == DType::F32 {
            $function::<f32>($($argument),*)
        } else {
            assert_eq!($dtype, DType::F64, "the element type of an exact sum");
            $function::<f64>($($argument),*)
        }
    };
}

/// Returns whether exact results are defined: the sum and the mean of f32 and f64.
pub fn is_defined(op: ReduceOp, dtype: DType) -> bool {
    matches!(op, ReduceOp::Sum | ReduceOp::Mean) && matches!(dtype, DType::F32 | DType::F64)
}

/// Returns the number of words of a partial result.
///
/// # Panics
/// If no exact result of the type is defined.
pub fn words(dtype: DType) -> usize {
    fn words_of<T: Float>() -> usize {
        T::WORDS.len() + 1
    }
    typed!(dtype, words_of())
}

/// Writes a range of the results of all views. Each is divided by the number of its elements for a
/// mean.
///
/// ```
/// use consonance_kernels::cpu::exact::reduce;
/// use consonance_spec::ReduceOp;
///
/// let (two, one) = ([1e30f32, 1.0], [-1e30f32]);
/// let mut sum = [0.0f32];
/// let views = [(two[..].into(), [1, 2, 1]), (one[..].into(), [1, 1, 1])];
/// reduce(ReduceOp::Sum, &views, 0..1, sum[..].as_mut().into());
/// assert_eq!(sum, [1.0]);
/// ```
///
/// # Panics
/// If the result is not defined, if a view has other elements than its sizes say, or if the target
/// has not the size of the range.
pub fn reduce(op: ReduceOp, views: &[View<'_>], results: Range<usize>, target: HostBufMut<'_>) {
    assert!(is_defined(op, target.dtype()), "exact {op} of {}", target.dtype());
    typed!(target.dtype(), reduce_as(op, views, results, target))
}

fn reduce_as<T: Float>(op: ReduceOp, views: &[View<'_>], results: Range<usize>, target: HostBufMut<'_>) {
    let views: Vec<Typed<'_, T>> = views.iter().map(Typed::new).collect();
    let count = views.iter().map(|view| view.axis).sum();
    let divisor = divisor(op, count as u64);
    let target = target.into_mut_slice::<T>().expect("elements of one type");
    assert_eq!(target.len(), results.len(), "results of a range");
    if count > FEW {
        for_each_sum(&views, results, |place, sum| target[place] = sum.divided(divisor));
        return;
    }
    let mut rows = vec![[T::default(); RESULTS]; count];
    for (tile, target) in target.chunks_mut(RESULTS).enumerate() {
        let start = results.start + tile * RESULTS;
        let each = views.iter().flat_map(|view| (0..view.axis).map(move |at| (view, at)));
        for ((view, at), row) in each.zip(&mut rows) {
            view.copy_row(at, start, &mut row[..target.len()]);
        }
        target.copy_from_slice(&short_sums::divided(&rows, divisor)[..target.len()]);
    }
}

/// Writes the words of a range of the results of one view, unrounded.
///
/// # Panics
/// As [`reduce`].
pub fn partial(view: View<'_>, results: Range<usize>, words: &mut [u64]) {
    typed!(view.0.dtype(), partial_as(view, results, words))
}

fn partial_as<T: Float>(view: View<'_>, results: Range<usize>, words: &mut [u64]) {
    let each = T::WORDS.len() + 1;
    assert_eq!(words.len(), results.len() * each, "words of a range");
    for_each_sum(&[Typed::<T>::new(&view)], results, |place, sum| {
        sum.write::<T>(&mut words[place * each..(place + 1) * each]);
    });
}

/// Writes the results of the parts of all replicas. Each is divided by `count` for a mean.
///
/// # Panics
/// If the result is not defined, or if a part has not the words of the target's elements.
pub fn finish(op: ReduceOp, parts: &[&[u64]], count: u64, target: HostBufMut<'_>) {
    assert!(is_defined(op, target.dtype()), "exact {op} of {}", target.dtype());
    typed!(target.dtype(), finish_as(divisor(op, count), parts, target))
}

fn finish_as<T: Float>(divisor: u64, parts: &[&[u64]], target: HostBufMut<'_>) {
    let each = T::WORDS.len() + 1;
    let target = target.into_mut_slice::<T>().expect("elements of one type");
    parts.iter().for_each(|part| assert_eq!(part.len(), target.len() * each, "words of the results"));
    for (place, target) in target.iter_mut().enumerate() {
        let mut sum = ExactSum::new();
        parts.iter().for_each(|part| sum.merge::<T>(&part[place * each..(place + 1) * each]));
        *target = sum.divided(divisor);
    }
}

/// Copies the elements of a range of the results of a view, those of one place along the axis after
/// the other.
///
/// # Panics
/// As [`reduce`].
pub fn rows(view: View<'_>, results: Range<usize>, target: HostBufMut<'_>) {
    typed!(view.0.dtype(), rows_as(view, results, target))
}

fn rows_as<T: Float>(view: View<'_>, results: Range<usize>, target: HostBufMut<'_>) {
    let view = Typed::<T>::new(&view);
    let target = target.into_mut_slice::<T>().expect("elements of one type");
    assert_eq!(target.len(), view.axis * results.len(), "elements of a range");
    if results.is_empty() {
        return;
    }
    for (at, row) in target.chunks_mut(results.len()).enumerate() {
        view.copy_row(at, results.start, row);
    }
}

fn divisor(op: ReduceOp, count: u64) -> u64 {
    if op == ReduceOp::Mean { count } else { 1 }
}

/// A view of elements whose type is known.
struct Typed<'a, T> {
    elements: &'a [T],
    axis: usize,
    inner: usize,
}

impl<'a, T: Float> Typed<'a, T> {
    fn new((elements, [outer, axis, inner]): &View<'a>) -> Self {
        assert_eq!(elements.count(), outer * axis * inner, "elements of a view");
        let elements = elements.as_slice().expect("elements of one type");
        Typed { elements, axis: *axis, inner: *inner }
    }

    /// Copies the elements at this place along the axis of the results from `start` on.
    fn copy_row(&self, at: usize, start: usize, row: &mut [T]) {
        let (mut start, mut rest) = (start, row);
        while !rest.is_empty() {
            let (outer, column) = (start / self.inner, start % self.inner);
            let count = (self.inner - column).min(rest.len());
            let from = (outer * self.axis + at) * self.inner + column;
            let part = rest.split_off_mut(..count).expect("no more than the rest");
            copy_own(self.elements[from..from + count].into(), &mut part.into());
            start += count;
        }
    }
}

/// Calls `each` with the place of each result in the range and the sum of its elements.
fn for_each_sum<T: Float>(views: &[Typed<'_, T>], results: Range<usize>, mut each: impl FnMut(usize, &mut ExactSum)) {
    let is_along = views.iter().all(|view| view.inner == 1);
    let width = if is_along { 1 } else { COLUMNS };
    let mut gathered = vec![T::default(); if is_along { 0 } else { COLUMNS * GATHERED }];
    let mut sums = [const { ExactSum::new() }; COLUMNS];
    for start in results.clone().step_by(width) {
        let columns = width.min(results.end - start);
        sums[..columns].iter_mut().for_each(|sum| *sum = ExactSum::new());
        for view in views {
            if is_along {
                sums[0].add(&view.elements[start * view.axis..(start + 1) * view.axis]);
                continue;
            }
            for first in (0..view.axis).step_by(GATHERED) {
                let count = GATHERED.min(view.axis - first);
                let mut row = [T::default(); COLUMNS];
                for at in 0..count {
                    view.copy_row(first + at, start, &mut row[..columns]);
                    (0..COLUMNS).for_each(|column| gathered[column * GATHERED + at] = row[column]);
                }
                for (sum, part) in sums.iter_mut().zip(gathered.chunks(GATHERED)).take(columns) {
                    sum.add(&part[..count]);
                }
            }
        }
        (0..columns).for_each(|column| each(start - results.start + column, &mut sums[column]));
    }
}
