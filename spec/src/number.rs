//! The arithmetic of each element type.

use crate::{
    dtype::{DType, Element},
    op::ReduceOp::{self, And, Max, Mean, Min, Or, Product, Sum, Xor},
};
use half::{bf16, f16};
use std::{convert::identity, fmt::Debug};

/// An element type with its arithmetic.
///
/// Contributions are [widened](Number::widen), [combined](Number::combine) in the accumulation
/// type, and [finished](Number::finish), which rounds once. A mean may have another type, and
/// therefore has three steps of its own: [`total`](Number::total), [`add`](Number::add),
/// [`quotient`](Number::quotient).
///
/// Each method panics for an operation that [`ReduceOp::result`] does not define on the type.
pub trait Number: Element {
    /// The accumulation type, in which contributions are combined: `f32` for `f16` and `bf16`, the
    /// type itself for the others.
    type Acc: Copy + Debug + PartialEq;
    /// The type in which a mean is summed: the accumulation type for floats, an integer that does
    /// not overflow for integers.
    type Total: Copy + Debug + PartialEq + Default;
    /// The type of a mean, as in [`DType::mean`]. `bool` has no mean; here it is `bool`.
    type Mean: Number;

    /// Converts the element to the accumulation type.
    fn widen(self) -> Self::Acc;

    /// Combines two partial results.
    fn combine(op: ReduceOp, a: Self::Acc, b: Self::Acc) -> Self::Acc;

    /// Returns the result of no contributions.
    fn identity(op: ReduceOp) -> Self::Acc;

    /// Converts the result of `count` contributions to the element type. A mean, here only of
    /// floats, is divided first. The result is rounded once.
    fn finish(op: ReduceOp, acc: Self::Acc, count: usize) -> Self;

    /// Returns the `index`-th of `parts` equal parts. The parts of an integer are nearly equal and
    /// add up to the integer, the larger ones first.
    fn share(self, parts: usize, index: usize) -> Self;

    /// Converts the element to a summand of a mean.
    fn total(self) -> Self::Total;

    /// Adds two sums.
    fn add(a: Self::Total, b: Self::Total) -> Self::Total;

    /// Returns the mean of `count` elements whose sum is `total`. Both are converted to the
    /// accumulation type of the mean, then divided.
    fn quotient(total: Self::Total, count: usize) -> Self::Mean;
}

macro_rules! float {
    ($type:ty, $acc:ident, $widen:expr, $narrow:expr) => {
        impl Number for $type {
            type Acc = $acc;
            type Total = $acc;
            type Mean = $type;

            fn widen(self) -> $acc {
                $widen(self)
            }

            fn combine(op: ReduceOp, a: $acc, b: $acc) -> $acc {
                match op {
                    Sum | Mean => a + b,
                    Product => a * b,
                    Min | Max if a.is_nan() => a,
                    Min | Max if b.is_nan() => b,
                    // `total_cmp` orders -0 below +0.
                    Min => std::cmp::min_by(a, b, $acc::total_cmp),
                    Max => std::cmp::max_by(a, b, $acc::total_cmp),
                    And | Or | Xor => undefined(op, Self::DTYPE),
                }
            }

            fn identity(op: ReduceOp) -> $acc {
                match op {
                    Sum | Mean => 0.0,
                    Product => 1.0,
                    Min => $acc::INFINITY,
                    Max => $acc::NEG_INFINITY,
                    And | Or | Xor => undefined(op, Self::DTYPE),
                }
            }

            fn finish(op: ReduceOp, acc: $acc, count: usize) -> $type {
                $narrow(if op == Mean { acc / count as $acc } else { acc })
            }

            fn share(self, parts: usize, _: usize) -> $type {
                Self::finish(Mean, self.widen(), parts)
            }

            fn total(self) -> $acc {
                self.widen()
            }

            fn add(a: $acc, b: $acc) -> $acc {
                Self::combine(Sum, a, b)
            }

            fn quotient(total: $acc, count: usize) -> $type {
                Self::finish(Mean, total, count)
            }
        }
    };
}

float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, bf16::to_f32, bf16::from_f32);
float!(f32, f32, identity, identity);
float!(f64, f64, identity, identity);

macro_rules! integer {
    ($mean:ident is the mean of $($type:ident)*) => {
        $(impl Number for $type {
            type Acc = $type;
            // No sum of fewer than 2^64 elements overflows `i128`.
            type Total = i128;
            type Mean = $mean;

            fn widen(self) -> $type {
                self
            }

            fn combine(op: ReduceOp, a: $type, b: $type) -> $type {
                match op {
                    Sum => a.wrapping_add(b),
                    Product => a.wrapping_mul(b),
                    Min => a.min(b),
                    Max => a.max(b),
                    And => a & b,
                    Or => a | b,
                    Xor => a ^ b,
                    Mean => undefined(op, Self::DTYPE),
                }
            }

            fn identity(op: ReduceOp) -> $type {
                match op {
                    Sum | Or | Xor => 0,
                    Product => 1,
                    Min => $type::MAX,
                    Max => $type::MIN,
                    And => !0,
                    Mean => undefined(op, Self::DTYPE),
                }
            }

            fn finish(_: ReduceOp, acc: $type, _: usize) -> $type {
                acc
            }

            fn share(self, parts: usize, index: usize) -> $type {
                let (value, parts) = (self as i128, parts as i128);
                let larger = i128::from((index as i128) < value.rem_euclid(parts));
                (value.div_euclid(parts) + larger) as $type
            }

            fn total(self) -> i128 {
                self.into()
            }

            fn add(a: i128, b: i128) -> i128 {
                a + b
            }

            fn quotient(total: i128, count: usize) -> $mean {
                total as $mean / count as $mean
            }
        })*
    };
}

integer!(f32 is the mean of i8 i16 u8 u16);
integer!(f64 is the mean of i32 i64 u32 u64);

impl Number for bool {
    type Acc = bool;
    type Total = ();
    type Mean = bool;

    fn widen(self) -> bool {
        self
    }

    fn combine(op: ReduceOp, a: bool, b: bool) -> bool {
        match op {
            Min | And => a & b,
            Max | Or => a | b,
            Xor => a ^ b,
            Sum | Mean | Product => undefined(op, DType::Bool),
        }
    }

    fn identity(op: ReduceOp) -> bool {
        match op {
            Min | And => true,
            Max | Or | Xor => false,
            Sum | Mean | Product => undefined(op, DType::Bool),
        }
    }

    fn finish(_: ReduceOp, acc: bool, _: usize) -> bool {
        acc
    }

    fn share(self, _: usize, _: usize) -> bool {
        undefined(Sum, DType::Bool)
    }

    fn total(self) {
        undefined(Mean, DType::Bool)
    }

    fn add(_: (), _: ()) {
        undefined(Mean, DType::Bool)
    }

    fn quotient(_: (), _: usize) -> bool {
        undefined(Mean, DType::Bool)
    }
}

fn undefined(op: ReduceOp, dtype: DType) -> ! {
    panic!("{op} is not defined on {dtype}")
}
