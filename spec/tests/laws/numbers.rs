use crate::sample::{Half, Ranks, Sample, for_ranks, keys};
use consonance_spec::{
    DType,
    ReduceOp::{self, And, Max, Mean, Min, Or, Product, Sum, Xor},
    bf16,
    collective::{self, Error},
    f16, for_each_dtype,
    number::{Number, Reduction},
    order::fold,
};
use quickcheck::quickcheck;

/// Computes `a op b` by other means than the spec does.
trait Reference: Sample {
    fn reference(op: ReduceOp, a: Self, b: Self) -> Self;
}

macro_rules! reference {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(impl Reference for $type {
            fn reference(op: ReduceOp, a: $type, b: $type) -> $type {
                reference!($class $variant $type, op, a, b)
            }
        })*
    };
    (Bool $variant:ident $type:ty, $op:ident, $a:ident, $b:ident) => {
        [false, true][match $op {
            Min | And => $a as usize * $b as usize,
            Max | Or => ($a as usize + $b as usize).div_ceil(2),
            Xor => ($a as usize + $b as usize) % 2,
            Sum | Mean | Product => unreachable!("{}", $op),
        }]
    };
    (Signed $variant:ident $type:ty, $op:ident, $a:ident, $b:ident) => {
        reference!(Unsigned $variant $type, $op, $a, $b)
    };
    (Unsigned $variant:ident $type:ty, $op:ident, $a:ident, $b:ident) => {{
        let (a, b) = ($a as i128, $b as i128);
        (match $op {
            Sum => a + b,
            Product => a.wrapping_mul(b),
            Min => if a < b { a } else { b },
            Max => if a > b { a } else { b },
            And => a & b,
            Or => a | b,
            Xor => a ^ b,
            Mean => unreachable!("{}", $op),
        }) as $type
    }};
    (Float $variant:ident $type:ty, $op:ident, $a:ident, $b:ident) => {{
        let before = $a < $b || $a == $b && $a.is_sign_negative();
        match $op {
            Sum => reference!($variant $a.into(), $b.into(), +),
            Mean => reference!($variant $a.into(), $b.into(), mean),
            Product => reference!($variant $a.into(), $b.into(), *),
            Min | Max if $a.is_nan() || $b.is_nan() => <$type>::NAN,
            Min => if before { $a } else { $b },
            Max => if before { $b } else { $a },
            And | Or | Xor => unreachable!("{}", $op),
        }
    }};
    (F16 $a:expr, $b:expr, mean) => { nearest(<f32 as Reference>::reference(Mean, $a, $b).into()) };
    (Bf16 $a:expr, $b:expr, mean) => { nearest(<f32 as Reference>::reference(Mean, $a, $b).into()) };
    (F32 $a:expr, $b:expr, mean) => {{ let sum: f32 = reference!(F32 $a, $b, +); sum * 0.5 }};
    (F64 $a:expr, $b:expr, mean) => {{ let (a, b): (f64, f64) = ($a, $b); (a + b) * 0.5 }};
    (F16 $a:expr, $b:expr, $sign:tt) => {{ let (a, b): (f64, f64) = ($a, $b); nearest((a $sign b) as f32 as f64) }};
    (Bf16 $a:expr, $b:expr, $sign:tt) => {{ let (a, b): (f64, f64) = ($a, $b); nearest((a $sign b) as f32 as f64) }};
    // An operation on two f32 in f64, rounded to f32, gives the correctly rounded f32 result.
    (F32 $a:expr, $b:expr, $sign:tt) => {{ let (a, b): (f64, f64) = ($a, $b); (a $sign b) as f32 }};
    (F64 $a:expr, $b:expr, $sign:tt) => {{ let (a, b): (f64, f64) = ($a, $b); a $sign b }};
}

for_each_dtype!(reference);

/// Returns the nearest number of half the width, and of two nearest the even one, by a search among
/// all of them.
fn nearest<T: Half>(value: f64) -> T {
    if value.is_nan() {
        return T::of_bits(0x7fff);
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let infinity = T::INFINITY;
    // Infinity stands for the number that would follow the greatest one if there were more
    // exponents.
    let magnitude = |bits: u16| match bits == infinity {
        true => 2.0 * T::of_bits(bits - 1).exact() - T::of_bits(bits - 2).exact(),
        false => T::of_bits(bits).exact(),
    };
    let value = value.abs().min(magnitude(infinity));
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if magnitude(middle) <= value { low = middle } else { high = middle }
    }
    let (below, above) = (value - magnitude(low), magnitude(high) - value);
    let up = above < below || above == below && high % 2 == 0;
    T::of_bits(sign | if up { high } else { low })
}

macro_rules! for_dtypes {
    ($law:ident $({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => { $($law::<$type>();)* };
}

#[test]
fn each_op_on_each_dtype_at_the_edges() {
    fn law<T: Reference>() {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.result(T::DTYPE) == Some(T::DTYPE)) {
            for a in T::edges() {
                for b in T::edges() {
                    let result = collective::reduce(op, &[vec![a], vec![b]]).unwrap()[0];
                    assert_eq!(result.key(), T::reference(op, a, b).key(), "{a} {op} {b} in {}: {result}", T::DTYPE);
                }
            }
        }
    }
    for_each_dtype!(for_dtypes law);
}

#[test]
fn ops_are_defined_as_the_table_says() {
    fn law<T: Sample>() {
        for op in ReduceOp::ALL {
            let result = collective::reduce(op, &[vec![T::default()]]);
            match op.result(T::DTYPE) {
                Some(dtype) if dtype == T::DTYPE => assert_eq!(result, Ok(vec![T::default()]), "{op} {dtype}"),
                _ => assert_eq!(result, Err(Error::Undefined { op, dtype: T::DTYPE })),
            }
        }
        let mean = collective::mean(&[vec![T::default()]]);
        match DType::mean(T::DTYPE) {
            Some(dtype) => {
                assert_eq!(<T::Mean as consonance_spec::Element>::DTYPE, dtype);
                assert_eq!(mean, Ok(vec![T::Mean::default()]));
            }
            None => assert_eq!(mean, Err(Error::Undefined { op: Mean, dtype: T::DTYPE })),
        }
    }
    for_each_dtype!(for_dtypes law);
}

#[test]
fn identities_change_nothing() {
    fn law<T: Sample>() {
        for op in ReduceOp::ALL {
            let Some(Reduction { widen, combine, identity, finish }) = T::reduction(op) else { continue };
            assert_eq!(identity.is_some(), op.has_identity(), "{op}");
            let Some(identity) = identity else { continue };
            for value in T::edges() {
                let same = finish(combine(identity, widen(value)), 1);
                // 0 + -0 is 0.
                assert!(
                    same.key() == value.key() || op == Sum && same == value || op == Mean && same == value,
                    "{op} {value}"
                );
            }
        }
    }
    for_each_dtype!(for_dtypes law);
}

#[test]
fn halves_are_widened_exactly_and_rounded_to_the_nearest() {
    fn law<T: Half<Acc = f32>>() {
        let Reduction { widen, finish, .. } = T::reduction(Sum).unwrap();
        for bits in 0..=u16::MAX {
            let value = T::of_bits(bits);
            assert_eq!(widen(value).is_nan(), value.exact().is_nan());
            assert!(value.exact().is_nan() || f64::from(widen(value)) == value.exact());
            assert_eq!(finish(widen(value), 1).key(), value.key());
            // Halfway to the next number, and the neighbours of that value on both sides.
            let half = (widen(value) + widen(T::of_bits(bits.wrapping_add(1)))) / 2.0;
            for between in [half.next_down(), half, half.next_up()] {
                let rounded = finish(between, 1);
                assert_eq!(rounded.key(), nearest::<T>(between.into()).key(), "{between}");
            }
        }
    }
    law::<f16>();
    law::<bf16>();
}

quickcheck! {
    fn any_float_is_rounded_to_the_nearest_half(bits: u32) -> bool {
        fn is_rounded<T: Half<Acc = f32>>(value: f32) -> bool {
            (T::reduction(Sum).unwrap().finish)(value, 1).key() == nearest::<T>(value.into()).key()
        }
        let value = f32::from_bits(bits);
        is_rounded::<f16>(value) && is_rounded::<bf16>(value)
    }

    fn shares_of_an_integer_add_up_to_it(value: i8, parts: u8) -> bool {
        let parts = 1 + parts as usize;
        let shares: Vec<i8> = (0..parts).map(|i| value.share(parts, i)).collect();
        shares.iter().map(|&share| i32::from(share)).sum::<i32>() == value.into()
            && shares.is_sorted_by(|a, b| a >= b)
            && shares[0] - shares[parts - 1] <= 1
    }
}

#[test]
fn sums_of_halves_are_rounded_once() {
    // 2048 + 1 is 2048 in f16, which has 11 bits.
    let [big, one] = [2048.0, 1.0].map(f16::from_f32);
    assert_eq!(collective::reduce(Sum, &[vec![big], vec![one], vec![one]]), Ok(vec![f16::from_f32(2050.0)]));
    // The sum overflows f16, the mean does not.
    assert_eq!(collective::reduce(Mean, &[vec![f16::MAX], vec![f16::MAX]]), Ok(vec![f16::MAX]));
}

#[test]
fn means_of_integers_do_not_wrap() {
    assert_eq!(collective::mean(&[vec![100u8], vec![200]]), Ok(vec![150f32]));
    assert_eq!(collective::mean(&[vec![i8::MIN], vec![i8::MIN]]), Ok(vec![-128f32]));
    assert_eq!(collective::mean(&[vec![u64::MAX], vec![u64::MAX]]), Ok(vec![2f64.powi(64)]));
    assert_eq!(collective::mean(&[vec![1i32], vec![2], vec![2]]), Ok(vec![5.0 / 3.0]));
    // The exact sum, 2^53 + 2, is an `f64`. Added one by one in `f64`, it would be 2^53.
    assert_eq!(collective::mean(&[vec![1i64 << 53], vec![1], vec![1]]), Ok(vec![((1i64 << 53) + 2) as f64 / 3.0]));
}

#[test]
fn results_come_from_the_canonical_order() {
    fn law<T: Sample>(inputs: Ranks<T>) -> bool {
        ReduceOp::ALL.into_iter().filter_map(|op| Some((op, T::reduction(op)?))).all(|(op, steps)| {
            let element = |i: usize| {
                let parts: Vec<T::Acc> = inputs.0.iter().map(|rank| (steps.widen)(rank[i])).collect();
                (steps.finish)(fold(&parts, steps.combine).unwrap(), parts.len())
            };
            let expected: Vec<T> = (0..inputs.0[0].len()).map(element).collect();
            keys(&collective::reduce(op, &inputs.0).unwrap()) == keys(&expected)
        })
    }
    for_each_dtype!(for_ranks law);
}
