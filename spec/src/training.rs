//! Gradients between the backward pass and the step: clipped by their norm; and the parameters,
//! compared at the start.

use crate::{
    blame::blame,
    number::{Number, Reduction},
    op::ReduceOp::Sum,
    order::{fold, fold_along},
};

/// An element type that gradients have.
pub trait Real: Number {
    /// Returns the exact value.
    fn exact(self) -> f64;

    /// Returns the product with `factor`, which is first rounded to the accumulation type. The
    /// product is computed in the accumulation type, and rounded once to this type.
    fn scaled(self, factor: f64) -> Self;
}

macro_rules! real {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(real!($class $type);)*
    };
    (Float $type:ty) => {
        impl Real for $type {
            fn exact(self) -> f64 {
                self.into()
            }

            fn scaled(self, factor: f64) -> Self {
                let Reduction { widen, finish, .. } = sum();
                finish(widen(self) * factor as <Self as Number>::Acc, 1)
            }
        }
    };
    ($other:ident $type:ty) => {};
}

crate::for_each_dtype!(real);

/// # Panics
/// For `bool`, which has no sum.
fn sum<T: Number>() -> Reduction<T, T::Acc, T> {
    T::reduction(Sum).expect("a number has a sum")
}

/// Returns the global norm of the leaves of a nest, given as their exact elements: the square root
/// of the sum of all squares, in f64.
///
/// The squares of a leaf are added by [`fold_along`], and the sums of the leaves by [`fold`].
/// Without elements the norm is 0.
pub fn global_norm(leaves: &[Vec<f64>]) -> f64 {
    let squares = |leaf: &Vec<f64>| leaf.iter().map(|x| x * x).collect::<Vec<f64>>();
    let sums: Vec<f64> = leaves.iter().map(|leaf| fold_along(&squares(leaf), |a, b| a + b).unwrap_or(0.0)).collect();
    fold(&sums, |a, b| a + b).unwrap_or(0.0).sqrt()
}

/// Returns the elements of a leaf of a nest of this norm after the nest is clipped to `most`: if
/// the norm is larger, and finite, the elements scaled by `most / norm`.
pub fn clip<T: Real>(leaf: &[T], norm: f64, most: f64) -> Vec<T> {
    let scales = norm > most && norm.is_finite();
    leaf.iter().map(|&x| if scales { x.scaled(most / norm) } else { x }).collect()
}

/// Returns the first difference between the replicas' parameters, given as the bits of each leaf:
/// the replica to name and its first leaf that differs from the expected one. `None` if all
/// replicas have the same bits.
pub fn difference<B: PartialEq>(replicas: &[Vec<B>]) -> Option<(usize, usize)> {
    let (named, expected) = blame(&replicas.iter().map(Some).collect::<Vec<_>>())?;
    let (own, others) = (&replicas[named], &replicas[expected]);
    let leaf = (0..own.len().max(others.len())).find(|&leaf| own.get(leaf) != others.get(leaf))?;
    Some((named, leaf))
}
