//! The arithmetic of each element type.

use crate::{
    dtype::Element,
    op::ReduceOp::{self, And, Max, Mean, Min, Or, Product, Sum, Xor},
    order,
};
use half::{bf16, f16};
use std::{cmp::Ordering, convert::identity, fmt::Debug};

/// The steps of a reduction of elements `T`: they are widened to accumulators `A`, combined, and
/// finished, which rounds once.
#[derive(Clone, Copy, Debug)]
pub struct Reduction<T, A, R> {
    /// Converts an element to an accumulator.
    pub widen: fn(T) -> A,
    /// Combines two partial results.
    pub combine: fn(A, A) -> A,
    /// The result of no elements; `None` if the operation has none.
    pub identity: Option<A>,
    /// Converts the result of this many elements. A mean is divided first. The result is rounded
    /// once.
    pub finish: fn(A, usize) -> R,
}

impl<T: Copy, A: Copy, R> Reduction<T, A, R> {
    /// Combines one element of each rank, by [`order::fold`]. Returns `None` if there are none.
    pub fn fold(&self, elements: &[T]) -> Option<R> {
        let parts: Vec<A> = elements.iter().map(|&element| (self.widen)(element)).collect();
        order::fold(&parts, self.combine).map(|acc| (self.finish)(acc, elements.len()))
    }
}

/// An element type with its arithmetic.
pub trait Number: Element {
    /// The accumulation type, in which contributions are combined: `f32` for `f16` and `bf16`, the
    /// type itself for the others.
    type Acc: Copy + Debug + PartialEq;
    /// The type in which a mean is summed: the accumulation type for floats, an integer that does
    /// not overflow for integers.
    type Total: Copy + Debug + PartialEq;
    /// The type of a mean, as in [`DType::mean`](crate::DType::mean). `bool` has no mean; here it
    /// is `bool`.
    type Mean: Number;

    /// Returns the steps of a reduction whose result has the type of the elements; `None` if
    /// [`ReduceOp::result`] says that there is none. So the mean is here only of floats.
    fn reduction(op: ReduceOp) -> Option<Reduction<Self, Self::Acc, Self>>;

    /// Returns the steps of a mean, also of integers; `None` for `bool`.
    fn mean() -> Option<Reduction<Self, Self::Total, Self::Mean>>;

    /// Returns the `index`-th of `parts` equal parts. The parts of an integer are nearly equal and
    /// add up to the integer, the larger ones first.
    ///
    /// # Panics
    /// For `bool`, which has no parts.
    fn share(self, parts: usize, index: usize) -> Self;

    /// Returns `self - other`, rounded once. Integers wrap.
    ///
    /// # Panics
    /// For `bool`, which has no difference.
    fn difference(self, other: Self) -> Self;
}

macro_rules! float {
    ($type:ty, $acc:ident, $widen:expr, $narrow:expr) => {
        impl Number for $type {
            type Acc = $acc;
            type Total = $acc;
            type Mean = $type;

            fn reduction(op: ReduceOp) -> Option<Reduction<$type, $acc, $type>> {
                type Row = (fn($acc, $acc) -> $acc, $acc, fn($acc, usize) -> $type);
                let (combine, identity, finish): Row = match op {
                    Sum => (|a, b| a + b, 0.0, |acc, _| $narrow(acc)),
                    Mean => (|a, b| a + b, 0.0, |acc, count| $narrow(acc / count as $acc)),
                    Product => (|a, b| a * b, 1.0, |acc, _| $narrow(acc)),
                    Min => (|a, b| first(a, b, $acc::is_nan, $acc::total_cmp), $acc::INFINITY, |acc, _| $narrow(acc)),
                    Max => {
                        let greatest = |a, b| first(a, b, $acc::is_nan, |a, b| b.total_cmp(a));
                        (greatest, $acc::NEG_INFINITY, |acc, _| $narrow(acc))
                    }
                    And | Or | Xor => return None,
                };
                Some(Reduction { widen: $widen, combine, identity: Some(identity), finish })
            }

            fn mean() -> Option<Reduction<$type, $acc, $type>> {
                Self::reduction(Mean)
            }

            fn share(self, parts: usize, _: usize) -> $type {
                $narrow($widen(self) / parts as $acc)
            }

            fn difference(self, other: $type) -> $type {
                $narrow($widen(self) - $widen(other))
            }
        }
    };
}

float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, bf16::to_f32, bf16::from_f32);
float!(f32, f32, identity, identity);
float!(f64, f64, identity, identity);

/// Returns the first of two floats in an order in which -0 and +0 differ, or the NaN, if there is
/// one.
fn first<A: Copy>(a: A, b: A, is_nan: fn(A) -> bool, order: fn(&A, &A) -> Ordering) -> A {
    match (is_nan(a), is_nan(b)) {
        (true, _) => a,
        (_, true) => b,
        _ => std::cmp::min_by(a, b, order),
    }
}

macro_rules! integer {
    ($mean:ident is the mean of $($type:ident)*) => {
        $(impl Number for $type {
            type Acc = $type;
            // No sum of fewer than 2^64 elements overflows `i128`.
            type Total = i128;
            type Mean = $mean;

            fn reduction(op: ReduceOp) -> Option<Reduction<$type, $type, $type>> {
                let (combine, identity): (fn($type, $type) -> $type, $type) = match op {
                    Sum => ($type::wrapping_add, 0),
                    Product => ($type::wrapping_mul, 1),
                    Min => ($type::min, $type::MAX),
                    Max => ($type::max, $type::MIN),
                    And => (|a, b| a & b, !0),
                    Or => (|a, b| a | b, 0),
                    Xor => (|a, b| a ^ b, 0),
                    Mean => return None,
                };
                Some(Reduction { widen: |element| element, combine, identity: Some(identity), finish: |acc, _| acc })
            }

            fn mean() -> Option<Reduction<$type, i128, $mean>> {
                let finish = |total, count| total as $mean / count as $mean;
                Some(Reduction { widen: i128::from, combine: |a, b| a + b, identity: Some(0), finish })
            }

            fn share(self, parts: usize, index: usize) -> $type {
                let (value, parts) = (self as i128, parts as i128);
                let larger = i128::from((index as i128) < value.rem_euclid(parts));
                (value.div_euclid(parts) + larger) as $type
            }

            fn difference(self, other: $type) -> $type {
                self.wrapping_sub(other)
            }
        })*
    };
}

integer!(f32 is the mean of i8 i16 u8 u16);
integer!(f64 is the mean of i32 i64 u32 u64);

impl Number for bool {
    type Acc = bool;
    type Total = bool;
    type Mean = bool;

    fn reduction(op: ReduceOp) -> Option<Reduction<bool, bool, bool>> {
        let (combine, identity): (fn(bool, bool) -> bool, bool) = match op {
            Min | And => (|a, b| a & b, true),
            Max | Or => (|a, b| a | b, false),
            Xor => (|a, b| a ^ b, false),
            Sum | Mean | Product => return None,
        };
        Some(Reduction { widen: |element| element, combine, identity: Some(identity), finish: |acc, _| acc })
    }

    fn mean() -> Option<Reduction<bool, bool, bool>> {
        None
    }

    fn share(self, _: usize, _: usize) -> bool {
        panic!("a bool has no parts")
    }

    fn difference(self, _: bool) -> bool {
        panic!("a bool has no difference")
    }
}
