//! The laws of exact sums.

use crate::sample::{Sample, any};
use consonance_spec::exact::{Exact, mean, sum};
use quickcheck::{Arbitrary, Gen, quickcheck};

/// Floats of which some cancel, some are halves of the last bit of others, and some are edges.
#[derive(Clone, Debug)]
struct Floats<T>(Vec<T>);

impl<T: Sample> Arbitrary for Floats<T> {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut floats: Vec<T> = Vec::new();
        for _ in 0..usize::arbitrary(g) % 12 {
            floats.push(match u8::arbitrary(g) % 8 {
                0 => T::edge(u64::arbitrary(g)),
                1 => floats.last().map_or_else(|| any(g), |last| T::default().difference(*last)),
                _ => any(g),
            });
        }
        Floats(floats)
    }
}

/// Finite floats near one.
fn small(integers: &[i32]) -> Vec<f64> {
    integers.iter().map(|&integer| f64::from(integer) / 1024.0).collect()
}

fn permuted<T: Exact + Sample>(floats: &[T]) -> bool {
    let mut other = floats.to_vec();
    other.reverse();
    let middle = other.len() / 2;
    other.rotate_left(middle);
    sum(&other).key() == sum(floats).key() && mean(&other).key() == mean(floats).key()
}

/// The sum of two is that of IEEE, which rounds an exact sum once.
fn of_two<T: Exact + Sample>(a: T, b: T, ieee: T) -> bool {
    sum(&[a, b]).key() == ieee.key()
}

quickcheck! {
    fn any_order_has_the_same_sum(wide: Floats<f64>, narrow: Floats<f32>) -> bool {
        permuted(&wide.0) && permuted(&narrow.0)
    }

    fn a_sum_of_two_is_the_sum_of_ieee(wide: Floats<f64>, narrow: Floats<f32>) -> bool {
        let wide = wide.0.windows(2).all(|pair| of_two(pair[0], pair[1], pair[0] + pair[1]));
        wide && narrow.0.windows(2).all(|pair| of_two(pair[0], pair[1], pair[0] + pair[1]))
    }

    fn one_element_is_its_own_sum_and_mean(wide: Floats<f64>, narrow: Floats<f32>) -> bool {
        let wide = wide.0.iter().all(|&x| sum(&[x]).key() == x.key() && mean(&[x]).key() == x.key());
        wide && narrow.0.iter().all(|&x| sum(&[x]).key() == x.key() && mean(&[x]).key() == x.key())
    }

    fn small_values_have_the_sum_of_integers(integers: Vec<i32>) -> bool {
        let total: i128 = integers.iter().map(|&integer| i128::from(integer)).sum();
        // Both roundings of the mean are one: the total is exact, and the count.
        let expected = total as f64 / 1024.0;
        let expected_mean = total as f64 / (1024 * integers.len()) as f64;
        sum(&small(&integers)) == expected && mean(&small(&integers)).key() == expected_mean.key()
    }

    fn cancelling_parts_leave_the_rest(floats: Floats<f64>, rest: f64) -> bool {
        let finite: Vec<f64> = floats.0.into_iter().filter(|x| x.is_finite()).collect();
        let negated = finite.iter().map(|x| -x);
        let all: Vec<f64> = negated.chain([rest]).chain(finite.iter().copied()).collect();
        let expected = if rest == 0.0 && !finite.is_empty() { 0.0 } else { rest };
        sum(&all).key() == expected.key() || finite.iter().all(|x| *x == 0.0)
    }

    fn a_larger_element_has_no_smaller_sum(floats: Floats<f64>, a: f64, b: f64) -> bool {
        let with = |x: f64| [&floats.0[..], &[x]].concat();
        let (less, more) = if a <= b { (a, b) } else { (b, a) };
        let (less, more) = (sum(&with(less)), sum(&with(more)));
        less.is_nan() || more.is_nan() || less <= more
    }

    fn a_sum_of_f32_is_rounded_from_the_exact_one(floats: Floats<f32>) -> bool {
        let wide: Vec<f64> = floats.0.iter().map(|&x| x.into()).collect();
        let (narrow, wide) = (sum(&floats.0), sum(&wide));
        // Rounded twice, it is at most one float away.
        narrow.key() == (wide as f32).key() || narrow.to_bits().abs_diff((wide as f32).to_bits()) == 1
    }
}

#[test]
fn ties_go_to_even_and_a_third_part_decides() {
    let half = f64::EPSILON / 2.0;
    assert_eq!(sum(&[1.0, half]), 1.0);
    assert_eq!(sum(&[1.0, half, f64::from_bits(1)]), 1.0 + f64::EPSILON);
    assert_eq!(sum(&[1.0, f64::EPSILON, half]), 1.0 + 2.0 * f64::EPSILON);
    // By way of f64 it would be the even 1.
    assert_eq!(sum(&[1.0f32, f32::EPSILON / 2.0, f32::from_bits(1)]), 1.0 + f32::EPSILON);
    assert_eq!(mean(&[f64::from_bits(1), 0.0]), 0.0);
    assert_eq!(mean(&[f64::from_bits(1), f64::from_bits(2)]), f64::from_bits(2));
    assert_eq!(mean(&[1.0f32, 1.0, 0.0]), 2.0 / 3.0);
}

#[test]
fn overflow_is_decided_by_the_exact_result() {
    assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX]), f64::MAX);
    assert_eq!(mean(&[f64::MAX; 3]), f64::MAX);
    assert_eq!(sum(&[f32::MAX, f32::MAX]), f32::INFINITY);
    assert_eq!(sum(&[-f64::MAX, -f64::MAX]), f64::NEG_INFINITY);
    let half_of_last = 2f64.powi(970);
    assert_eq!(sum(&[f64::MAX, half_of_last]), f64::INFINITY);
    assert_eq!(sum(&[f64::MAX, half_of_last, -1.0]), f64::MAX);
}

#[test]
fn zeros_infinities_and_nan_are_those_of_the_table() {
    assert_eq!(sum::<f64>(&[]).key(), 0f64.key());
    assert!(mean::<f32>(&[]).is_nan());
    assert_eq!(sum(&[-0.0f32, -0.0]).key(), (-0.0f32).key());
    assert_eq!(sum(&[-0.0f64, 0.0]).key(), 0f64.key());
    assert_eq!(sum(&[1.0f64, -1.0, -0.0]).key(), 0f64.key());
    assert_eq!(mean(&[-f32::from_bits(1), 0.0, 0.0]).key(), (-0.0f32).key());
    assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
    assert!(sum(&[f32::NAN, f32::INFINITY]).is_nan());
    assert_eq!(mean(&[f64::INFINITY, -f64::MAX]), f64::INFINITY);
}
