use crate::sample::{Ranks, keys};
use consonance_spec::{
    ReduceOp::Sum,
    array::{self, Array},
    bf16, f16,
    training::{Real, clip, difference, global_norm},
};
use quickcheck::{TestResult, quickcheck};

fn finite<T: Real>(leaves: &[Vec<T>]) -> bool {
    leaves.iter().flatten().all(|x| x.exact().is_finite())
}

fn exact<T: Real>(leaves: &[Vec<T>]) -> Vec<Vec<f64>> {
    leaves.iter().map(|leaf| leaf.iter().map(|x| x.exact()).collect()).collect()
}

/// The norm of a tensor is made of its reduction along its only axis.
fn the_squares_of_a_leaf_are_reduced_along_it<T: Real>(leaf: Vec<T>) -> bool {
    let squares: Vec<f64> = leaf.iter().map(|x| x.exact() * x.exact()).collect();
    let sum = array::reduce(Sum, &[Array::new(&[squares.len()], squares)], &[0]).unwrap().data[0];
    global_norm(&exact(&[leaf])).to_bits() == sum.sqrt().to_bits()
}

#[test]
fn the_norm_of_one_leaf_is_a_reduction() {
    for count in [0, 1, 2, 31, 33, 4095, 4096, 4097, 9000] {
        assert!(the_squares_of_a_leaf_are_reduced_along_it((0..count).map(|i| i as f32 / 7.0).collect()), "{count}");
    }
}

quickcheck! {
    /// Squares of integers add up without rounding, so no order matters.
    fn the_norm_of_integers_is_exact(leaves: Vec<Vec<i16>>) -> bool {
        let sum: i64 = leaves.iter().flatten().map(|&x| i64::from(x) * i64::from(x)).sum();
        let leaves: Vec<Vec<f64>> = leaves.iter().map(|leaf| leaf.iter().map(|&x| x.into()).collect()).collect();
        global_norm(&leaves) == (sum as f64).sqrt()
    }

    fn zeros_at_the_end_of_a_nest_change_no_norm(leaves: Vec<Vec<f32>>, count: u8) -> TestResult {
        if !finite(&leaves) {
            return TestResult::discard();
        }
        let before = global_norm(&exact(&leaves));
        let mut more = exact(&leaves);
        more.push(vec![0.0; count.into()]);
        TestResult::from_bool(global_norm(&more).to_bits() == before.to_bits())
    }

    fn a_nest_within_the_norm_stays(leaf: Ranks<f16>, most: f32) -> bool {
        let norm = global_norm(&exact(&leaf.0));
        let most = f64::from(most).abs();
        norm > most && norm.is_finite() || leaf.0.iter().all(|leaf| keys(&clip(leaf, norm, most)) == keys(leaf))
    }

    fn a_non_finite_norm_clips_nothing(leaf: Ranks<f32>) -> bool {
        let norms = [f64::NAN, f64::INFINITY];
        leaf.0.iter().all(|leaf| norms.iter().all(|&norm| keys(&clip(leaf, norm, 1.0)) == keys(leaf)))
    }

    fn no_element_grows_or_changes_its_sign(leaf: Ranks<bf16>, most: u8) -> TestResult {
        let most = f64::from(most) / 8.0;
        let norm = global_norm(&exact(&leaf.0));
        if !finite(&leaf.0) || !norm.is_finite() {
            return TestResult::discard();
        }
        let shrinks = |x: &bf16, clipped: &bf16| {
            clipped.exact().abs() <= x.exact().abs() && clipped.is_sign_negative() == x.is_sign_negative()
        };
        let clipped = leaf.0.iter().map(|leaf| clip(leaf, norm, most));
        TestResult::from_bool(leaf.0.iter().zip(clipped).all(|(leaf, clipped)| {
            leaf.len() == clipped.len() && leaf.iter().zip(&clipped).all(|(x, clipped)| shrinks(x, clipped))
        }))
    }

    /// Powers of two scale without rounding.
    fn a_clipped_nest_has_the_norm(leaf: Vec<i8>, power: u8) -> TestResult {
        let leaf: Vec<f64> = leaf.into_iter().map(f64::from).collect();
        let norm = global_norm(std::slice::from_ref(&leaf));
        if norm == 0.0 {
            return TestResult::discard();
        }
        let most = norm / f64::from(1u32 << (power % 8));
        TestResult::from_bool(global_norm(&[clip(&leaf, norm, most)]) == most)
    }

    fn one_odd_leaf_is_named(replicas: u8, leaves: u8, odd: u8, leaf: u8) -> bool {
        let (replicas, leaves) = (3 + replicas as usize % 5, 1 + leaves as usize % 6);
        let (odd, leaf) = (odd as usize % replicas, leaf as usize % leaves);
        let mut all = vec![vec![0u8; leaves]; replicas];
        all[odd][leaf] = 1;
        difference(&all) == Some((odd, leaf))
    }

    fn the_same_parameters_have_no_difference(leaves: Vec<u8>, replicas: u8) -> bool {
        difference(&vec![leaves; replicas as usize % 6]).is_none()
    }
}

#[test]
fn the_factor_and_the_product_are_rounded_to_the_accumulation_type() {
    let factor = 1.0 / 3.0;
    assert_eq!(f16::from_f32(5.0).scaled(factor), f16::from_f32(5.0 * (factor as f32)));
    assert_eq!(5.0f32.scaled(factor), 5.0 * (factor as f32));
    assert_eq!(5.0f64.scaled(factor), 5.0 * factor);
}
