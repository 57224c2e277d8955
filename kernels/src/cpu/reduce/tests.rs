//! Compares every operation, type and instruction set with the spec, bit for bit.

use super::Reducer;
use crate::{
    cpu::{
        cache_hints::{CacheHints, Locality},
        isa::Isa,
    },
    memory::HostBuf,
    tuning::Tuning,
};
use consonance_spec::{
    ReduceOp, bf16, collective, for_each_dtype,
    sample::{Sample, samples},
};

/// Counts on each side of the tile sizes (4 to 256 elements), with and without a partial tile.
const COUNTS: [usize; 14] = [0, 1, 3, 4, 5, 31, 32, 33, 63, 64, 127, 255, 257, 600];

/// Seed of the elements that targets have before the reduction. No sum, and no tile written too
/// far, is likely to leave the same elements.
const UNTOUCHED: u8 = 0xa5;

/// Returns the keys of `op` over `inputs`, computed by the spec.
pub(super) fn expected<T: Sample<Mean: Sample>>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<u64> {
    match op {
        ReduceOp::Mean => collective::mean(inputs).unwrap().into_iter().map(Sample::key).collect(),
        ReduceOp::Sum
        | ReduceOp::Product
        | ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => collective::reduce(op, inputs).unwrap().into_iter().map(Sample::key).collect(),
    }
}

/// Calls `check` for each operation defined on `T`, each number of sources, and each instruction
/// set.
fn each<T: Sample<Mean: Sample>>(counts: &[usize], check: impl Fn(Reducer, &[Vec<T>], &[u64])) {
    for op in ReduceOp::ALL.into_iter().filter(|op| op.result(T::DTYPE).is_some()) {
        for &sources in counts {
            let inputs: Vec<Vec<T>> = (0..sources).map(|k| samples(k as u64 + 1, 600)).collect();
            let expected = expected(op, &inputs);
            for isa in Isa::available() {
                check(Reducer::with_isa(op, T::DTYPE, isa).unwrap(), &inputs, &expected);
            }
        }
    }
}

/// Runs `fold` on copies of the inputs that begin `shift` elements after an aligned address; target
/// `i` is source `places[i]`, or separate memory for `None`. Checks the results, and that nothing
/// beside them has changed.
fn check_fold<T: Sample, O: Sample>(reducer: Reducer, inputs: &[Vec<T>], places: &[Option<usize>], expected: &[u64]) {
    for (count, shift) in COUNTS.into_iter().zip([0, 1, 0, 2, 3].into_iter().cycle()) {
        let padding = [T::default(); 4];
        let mut sources: Vec<Vec<T>> =
            inputs.iter().map(|input| [&padding[..shift], &input[..count], &padding].concat()).collect();
        let mut apart: Vec<Vec<O>> = places.iter().map(|_| samples(UNTOUCHED as u64, shift + count + 4)).collect();
        let before = apart.clone();
        let pointers: Vec<*mut u8> = sources.iter_mut().map(|s| s[shift..].as_mut_ptr().cast()).collect();
        let targets: Vec<*mut u8> = places
            .iter()
            .zip(&mut apart)
            .map(|(place, apart)| place.map_or(apart[shift..].as_mut_ptr().cast(), |k| pointers[k]))
            .collect();
        let pointers: Vec<*const u8> = pointers.into_iter().map(<*mut u8>::cast_const).collect();
        let from = if shift > 0 { Locality::Taken(shift % inputs.len()) } else { Locality::Far };
        let flow = CacheHints { from, past: count % (targets.len() + 2) };
        // SAFETY: every vector has `count` elements from `shift` on; targets in place have the
        // sources' type.
        unsafe { reducer.fold(&pointers, &targets, count, flow) }
        for (i, place) in places.iter().enumerate() {
            let context = || format!("{reducer:?}, {} sources, count {count}, shift {shift}, {place:?}", inputs.len());
            let keys = |elements: &[O]| elements.iter().map(|e| e.key()).collect::<Vec<_>>();
            match place {
                Some(k) => {
                    let result: Vec<u64> = sources[*k].iter().map(|e| e.key()).collect();
                    assert_eq!(result[shift..][..count], expected[..count], "{}", context());
                    let beside = [&result[..shift], &result[shift + count..]].concat();
                    assert!(beside.iter().all(|key| *key == T::default().key()), "beside {}", context());
                }
                None => {
                    let (result, before) = (keys(&apart[i]), keys(&before[i]));
                    assert_eq!(result[shift..][..count], expected[..count], "{}", context());
                    assert_eq!(result[..shift], before[..shift], "before {}", context());
                    assert_eq!(result[shift + count..], before[shift + count..], "after {}", context());
                }
            }
        }
    }
}

fn check_type<T: Sample<Mean: Sample>>() {
    each::<T>(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 28, 77], |reducer, inputs, expected| {
        if reducer.output() != reducer.input() {
            check_fold::<T, T::Mean>(reducer, inputs, &[None], expected);
            check_fold::<T, T::Mean>(reducer, inputs, &[None, None], expected);
            return;
        }
        let last = inputs.len() - 1;
        for places in [&[None][..], &[Some(last / 2)], &[None, Some(0), None, Some(last)]] {
            check_fold::<T, T>(reducer, inputs, places, expected);
        }
    });
}

macro_rules! check_types {
    ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => { $(check_type::<$type>();)* };
}

#[test]
fn every_reduction_has_the_bits_of_the_spec() {
    for_each_dtype!(check_types);
}

fn check_accumulation<T: Sample<Mean: Sample>>() {
    each::<T>(&[1, 2, 5], |reducer, inputs, expected| {
        if reducer.output() != reducer.input() {
            return;
        }
        let mut target = inputs[0].clone();
        let others: Vec<HostBuf<'_>> = inputs[1..].iter().map(|input| input.as_slice().into()).collect();
        reducer.accumulate(&mut target.as_mut_slice().into(), &others);
        let result: Vec<u64> = target.iter().map(|element| element.key()).collect();
        assert_eq!(result, expected, "{reducer:?}, {} sources", inputs.len());
    });
}

macro_rules! check_accumulations {
    ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => { $(check_accumulation::<$type>();)* };
}

#[test]
fn an_accumulation_has_the_bits_of_the_spec() {
    for_each_dtype!(check_accumulations);
}

/// Checks sources and a result of more than `bytes` bytes together, at addresses that are not the
/// start of a line. The elements repeat, so the spec has to compute few of them.
fn check_long<T: Sample<Mean: Sample>>(op: ReduceOp, sources: usize, bytes: usize) {
    let period = 600;
    let inputs: Vec<Vec<T>> = (0..sources).map(|k| samples(k as u64 + 1, period)).collect();
    let expected = expected(op, &inputs);
    let count = bytes / ((sources + 1) * size_of::<T>()) + period + 1;
    let long: Vec<Vec<T>> = inputs.iter().map(|input| input.iter().copied().cycle().take(count).collect()).collect();
    let pointers: Vec<*const u8> = long.iter().map(|input| input.as_ptr().cast()).collect();
    for isa in Isa::available() {
        let reducer = Reducer::with_isa(op, T::DTYPE, isa).unwrap();
        let mut result = vec![T::default(); count + 2];
        // SAFETY: every vector has `count` elements, the result from its second element on; the
        // result is apart from the inputs.
        unsafe { reducer.fold(&pointers, &[result[1..].as_mut_ptr().cast()], count, CacheHints::from(Locality::Far)) }
        let beside = [result[0].key(), result[count + 1].key()];
        assert_eq!(beside, [T::default().key(); 2], "beside {reducer:?}");
        for (at, element) in result[1..=count].iter().enumerate() {
            assert_eq!(element.key(), expected[at % period], "{reducer:?}, {sources} sources, element {at}");
        }
    }
}

#[test]
fn results_written_past_the_caches_have_the_bits_of_the_spec() {
    check_long::<f32>(ReduceOp::Sum, 2, Tuning::DEFAULT.stream_bytes);
    check_long::<f64>(ReduceOp::Mean, 3, Tuning::DEFAULT.stream_bytes);
    check_long::<bf16>(ReduceOp::Sum, 9, Tuning::DEFAULT.stream_bytes);
    check_long::<u8>(ReduceOp::Max, 2, Tuning::DEFAULT.stream_bytes);
}

#[test]
fn results_of_lines_asked_for_ahead_have_the_bits_of_the_spec() {
    let bytes = Locality::Far.ahead_bytes();
    check_long::<f32>(ReduceOp::Sum, 2, bytes);
    check_long::<f64>(ReduceOp::Mean, 3, bytes);
    check_long::<bf16>(ReduceOp::Sum, 9, bytes);
    check_long::<u8>(ReduceOp::Max, 1, bytes);
}
