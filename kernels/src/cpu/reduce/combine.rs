//! Combination of two partial results: the operations on accumulator types.

/// An operation on `A`, element by element.
pub(crate) trait Op<A> {
    /// The result of no elements; `None` if the operation has none.
    const IDENTITY: Option<A>;

    fn combine(a: A, b: A) -> A;
}

pub(crate) struct Sum;
pub(crate) struct Product;
pub(crate) struct Min;
pub(crate) struct Max;
pub(crate) struct And;
pub(crate) struct All;
pub(crate) struct Or;
pub(crate) struct Xor;

// In the expressions, `T` is the type of the implementation.
macro_rules! op {
    ($op:ident, [$($type:ty)*], $identity:expr, |$a:ident, $b:ident| $combine:expr) => {
        $(const _: () = {
            #[allow(dead_code, reason = "not every expression needs the name")]
            type T = $type;

            impl Op<$type> for $op {
                const IDENTITY: Option<$type> = $identity;

                #[inline(always)]
                fn combine($a: $type, $b: $type) -> $type {
                    $combine
                }
            }
        };)*
    };
}

// Unsigned types also serve for signed sums and products, which have the same bits. The signed
// types of `Sum` are the totals of means.
op!(Sum, [u8 u16 u32 u64 i64 i128], Some(0), |a, b| a.wrapping_add(b));
op!(Product, [u8 u16 u32 u64], Some(1), |a, b| a.wrapping_mul(b));
op!(Min, [i8 i16 i32 i64 u8 u16 u32 u64], Some(T::MAX), |a, b| if a < b { a } else { b });
op!(Max, [i8 i16 i32 i64 u8 u16 u32 u64], Some(T::MIN), |a, b| if a > b { a } else { b });
// Bitwise operations work on bytes, whatever the width of the elements.
op!(And, [u8], Some(!0), |a, b| a & b);
// The identity of a logical and is `true`, whose other bits are zero.
op!(All, [u8], Some(1), |a, b| a & b);
op!(Or, [u8], Some(0), |a, b| a | b);
op!(Xor, [u8], Some(0), |a, b| a ^ b);

op!(Sum, [f32 f64], Some(0.0), |a, b| a + b);
op!(Product, [f32 f64], Some(1.0), |a, b| a * b);
// A comparison with its choice is one instruction. It gives the second operand if the operands are
// equal or unordered. In both operand orders it gives both zeros, or the NaN and the other operand.
// The bitwise or of the two is the lesser zero, or a NaN.
op!(Min, [f32 f64], Some(T::INFINITY), |a, b| {
    let (x, y) = (if a < b { a } else { b }, if b < a { b } else { a });
    T::from_bits(x.to_bits() | y.to_bits())
});
// The bitwise and of both zeros is the greater zero. A NaN needs a test of its own.
op!(Max, [f32 f64], Some(T::NEG_INFINITY), |a, b| {
    let (x, y) = (if a > b { a } else { b }, if b > a { b } else { a });
    if a.is_nan() | b.is_nan() { T::NAN } else { T::from_bits(x.to_bits() & y.to_bits()) }
});
