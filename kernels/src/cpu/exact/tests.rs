use super::{finish, float::Float, partial, reduce, rows, short_sums, sum::ExactSum, words};
use crate::memory::HostBuf;
use consonance_spec::{
    ReduceOp::{self, Mean, Sum},
    exact::{self, Exact},
    sample::Sample,
};

/// Words that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// An element type whose sums are exact.
trait Summand: Float + Exact + Sample {
    /// Returns a value that is near one.
    fn near(random: &mut Random) -> Self;
    fn negated(self) -> Self;
    /// Returns pairs of a value and its negative: zero, the least ones, and so on to the greatest.
    fn pairs() -> Vec<Self>;
}

macro_rules! summand {
    ($type:ty) => {
        impl Summand for $type {
            fn near(random: &mut Random) -> $type {
                (random.next() as i64 as $type) / 1e18
            }

            fn negated(self) -> $type {
                -self
            }

            fn pairs() -> Vec<$type> {
                let least = <$type>::from_bits(1);
                let positive = [0.0, least, <$type>::MIN_POSITIVE, 1.0, <$type>::EPSILON / 2.0, <$type>::MAX];
                positive.into_iter().flat_map(|x| [x, -x]).collect()
            }
        }
    };
}

summand!(f32);
summand!(f64);

/// Elements of each kind: far apart, near each other, cancelling, subnormal, edges, huge, zeros.
fn sample<T: Summand>(seed: u64, count: usize) -> Vec<T> {
    let mut random = Random(seed);
    let edges = T::pairs();
    let finite = |random: &mut Random| {
        let value = T::any(random.next());
        if Float::widen(value).is_finite() { value } else { T::default() }
    };
    let mut elements: Vec<T> = Vec::new();
    for place in 0..count {
        let edge = edges[random.next() as usize % edges.len()];
        elements.push(match seed % 9 {
            0 => finite(&mut random),
            1 => T::near(&mut random),
            2 if place % 2 == 1 => elements[place - 1].negated(),
            2 | 3 => T::near(&mut random),
            4 => edge,
            5 if place == count / 2 => edge,
            6 if place % 2 == 1 => elements[place / 2].negated(),
            6 => finite(&mut random),
            7 => edges[random.next() as usize % 4],
            8 => edges[10 + random.next() as usize % 2],
            _ => T::near(&mut random),
        });
    }
    if seed % 5 == 4 && count > 2 {
        let infinity = T::infinity(seed.is_multiple_of(2));
        elements[count / 3] = infinity;
        match seed % 3 {
            0 => elements[count / 2] = T::infinity(!seed.is_multiple_of(2)),
            1 => elements[count / 2] = <T as Float>::NAN,
            _ => {}
        }
    }
    elements
}

fn expected<T: Summand>(op: ReduceOp, elements: &[T]) -> u64 {
    if op == Mean { exact::mean(elements) } else { exact::sum(elements) }.key()
}

/// Counts about those of lanes, of blocks, and of additions between carries.
const COUNTS: [usize; 12] = [0, 1, 2, 3, 31, 32, 33, 100, 1025, 2048, 2049, 7001];

fn sums_are_those_of_the_spec<T: Summand>() {
    for count in COUNTS {
        for seed in 0..45 {
            let elements: Vec<T> = sample(seed, count);
            for op in [Sum, Mean] {
                let (expected, context) = (expected(op, &elements), format!("{op}, count {count}, seed {seed}"));
                let mut result = [T::default()];
                reduce(op, &[(elements[..].into(), [1, count, 1])], 0..1, result[..].as_mut().into());
                assert_eq!(result[0].key(), expected, "{context}");
                let (a, b) = elements.split_at(count * (seed as usize % 4) / 3);
                let part = |part: &[T]| {
                    let mut own = vec![0; words(T::DTYPE)];
                    partial((part.into(), [1, part.len(), 1]), 0..1, &mut own);
                    own
                };
                let parts = [part(b), part(a)];
                finish(op, &parts.each_ref().map(|part| &part[..]), count as u64, result[..].as_mut().into());
                assert_eq!(result[0].key(), expected, "{context}, in parts");
            }
        }
    }
}

#[test]
fn sums_of_any_elements_are_those_of_the_spec() {
    sums_are_those_of_the_spec::<f32>();
    sums_are_those_of_the_spec::<f64>();
}

fn words_do_not_depend_on_order<T: Summand>() {
    for seed in 0..45 {
        let elements: Vec<T> = sample(seed, 3001);
        let mut reversed = elements.clone();
        reversed.reverse();
        let of = |parts: &[&[T]]| {
            let (mut sum, mut words) = (ExactSum::new(), vec![0; words(T::DTYPE)]);
            parts.iter().for_each(|part| sum.add(part));
            sum.write::<T>(&mut words);
            words
        };
        let whole = of(&[&elements]);
        assert_eq!(whole, of(&[&reversed[..1000], &[], &reversed[1000..]]), "seed {seed}");
        let [mut a, mut b] = [&elements[..7], &elements[7..]].map(|part| of(&[part]));
        for _swapped in 0..2 {
            let mut sum = ExactSum::new();
            sum.merge::<T>(&a);
            sum.merge::<T>(&b);
            let mut merged = vec![0; words(T::DTYPE)];
            sum.write::<T>(&mut merged);
            assert_eq!(merged, whole, "seed {seed}");
            std::mem::swap(&mut a, &mut b);
        }
    }
}

#[test]
fn words_do_not_depend_on_the_order_of_elements_and_parts() {
    words_do_not_depend_on_order::<f32>();
    words_do_not_depend_on_order::<f64>();
}

fn few_elements<T: Summand>() {
    for count in 0..10 {
        for seed in 0..90 {
            let rows: Vec<short_sums::Row<T>> = (0..count)
                .map(|row| {
                    let row: Vec<T> = sample(seed + 9 * row, short_sums::RESULTS);
                    row.try_into().expect("a row")
                })
                .collect();
            for divisor in [1, count.max(1)] {
                let results = short_sums::divided(&rows, divisor);
                for (place, result) in results.into_iter().enumerate() {
                    let column: Vec<T> = rows.iter().map(|row| row[place]).collect();
                    let op = if divisor == 1 { Sum } else { Mean };
                    assert_eq!(result.key(), expected(op, &column), "{op} of {column:?}");
                }
            }
        }
    }
}

#[test]
fn sums_of_few_elements_are_those_of_the_spec() {
    few_elements::<f32>();
    few_elements::<f64>();
}

/// Quotients that are rounded to f64 halfway between two f32 are not rounded again.
#[test]
fn means_of_f32_are_not_rounded_twice() {
    let mut random = Random(7);
    for divisor in [3u64, 5, 7, 11] {
        for _ in 0..200 {
            // Near divisor × a number that is halfway.
            let halfway = f64::from(1.0 + (random.next() % 1000) as f32 * f32::EPSILON) + f64::from(f32::EPSILON) / 2.0;
            let total = halfway * divisor as f64;
            let high = total as f32;
            let low = (total - f64::from(high)) as f32;
            let tiny =
                f32::from_bits((random.next() % 3) as u32) * if random.next().is_multiple_of(2) { 1.0 } else { -1.0 };
            let mut column = vec![high, low, tiny];
            column.resize(divisor as usize, 0.0);
            let rows: Vec<short_sums::Row<f32>> = column.iter().map(|&x| [x; short_sums::RESULTS]).collect();
            assert_eq!(short_sums::divided(&rows, divisor)[0].key(), expected(Mean, &column), "{column:?}");
        }
    }
}

/// Views of several replicas, with sizes along the axis that differ.
fn views<T: Summand>(op: ReduceOp, [outer, inner]: [usize; 2], sizes: &[usize]) {
    let parts: Vec<Vec<T>> = (0..).zip(sizes).map(|(part, axis)| sample(3 * part, outer * axis * inner)).collect();
    let views: Vec<(HostBuf<'_>, [usize; 3])> =
        parts.iter().zip(sizes).map(|(part, &axis)| (part[..].into(), [outer, axis, inner])).collect();
    let results = outer * inner;
    let expected: Vec<u64> = (0..results)
        .map(|result| {
            let along = parts.iter().zip(sizes).flat_map(|(part, &axis)| {
                (0..axis).map(move |at| part[(result / inner * axis + at) * inner + result % inner])
            });
            expected(op, &along.collect::<Vec<T>>())
        })
        .collect();
    let keys = |elements: &[T]| elements.iter().map(|element| element.key()).collect::<Vec<u64>>();
    let context = format!("{op} of {} [{outer}, {sizes:?}, {inner}]", T::DTYPE);
    for range in [0..results, results / 3..results] {
        let mut target = vec![T::default(); range.len()];
        reduce(op, &views, range.clone(), target[..].as_mut().into());
        assert_eq!(keys(&target), expected[range.clone()], "{context}");

        let part = |view: &(HostBuf<'_>, [usize; 3])| {
            let mut own = vec![0; range.len() * words(T::DTYPE)];
            partial(*view, range.clone(), &mut own);
            own
        };
        let words: Vec<Vec<u64>> = views.iter().map(part).collect();
        let words: Vec<&[u64]> = words.iter().map(|words| &words[..]).collect();
        let count = sizes.iter().sum::<usize>() as u64;
        finish(op, &words, count, target[..].as_mut().into());
        assert_eq!(keys(&target), expected[range.clone()], "{context}, by words");

        let moved = |(view, &axis): (&(HostBuf<'_>, [usize; 3]), &usize)| {
            let mut own = vec![T::default(); axis * range.len()];
            rows(*view, range.clone(), own[..].as_mut().into());
            own
        };
        let moved: Vec<Vec<T>> = views.iter().zip(sizes).map(moved).collect();
        let moved: Vec<_> =
            moved.iter().zip(sizes).map(|(part, &axis)| (part[..].into(), [1, axis, range.len()])).collect();
        reduce(op, &moved, 0..range.len(), target[..].as_mut().into());
        assert_eq!(keys(&target), expected[range.clone()], "{context}, by rows");
    }
}

#[test]
fn axes_of_several_replicas_are_those_of_the_spec() {
    for (op, outer) in [(Sum, 1), (Mean, 3)] {
        for inner in [1, 5, 16, 70] {
            for sizes in [&[1, 1, 1][..], &[0, 4], &[20, 0, 13], &[300, 7], &[0, 0]] {
                views::<f32>(op, [outer, inner], sizes);
                views::<f64>(op, [outer, inner], sizes);
            }
        }
    }
    views::<f32>(Sum, [1, 0], &[3, 2]);
    views::<f64>(Sum, [0, 3], &[40, 2]);
}
