//! Test inputs of every element type, with its edge values, and the comparison of their bits.

use consonance_spec::{ReduceOp, bf16, f16, for_each_dtype, number::Number};
use quickcheck::{Arbitrary, Gen};

/// Mixes two words into one, for words that look random and are the same in each run.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(0x2545_f491_4f6c_dd1d)
}

/// An element type with random samples.
pub(crate) trait Sample: Number {
    /// Returns the edge values of the arithmetic.
    fn edges() -> Vec<Self>;

    /// Returns a random value.
    fn any(g: &mut Gen) -> Self;

    /// Returns a key that is equal if the bits are equal, or if both values are NaN.
    fn key(self) -> u64;
}

macro_rules! sample {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(impl Sample for $type { sample!($class $type); })*
    };
    (Bool $type:ty) => {
        fn edges() -> Vec<bool> {
            vec![false, true]
        }

        fn any(g: &mut Gen) -> bool {
            bool::arbitrary(g)
        }

        fn key(self) -> u64 {
            self.into()
        }
    };
    (Signed $type:ty) => { sample!(Unsigned $type); };
    (Unsigned $type:ty) => {
        fn edges() -> Vec<$type> {
            let (least, greatest) = (<$type>::MIN, <$type>::MAX);
            vec![least, least + 1, greatest / 2, greatest / 2 + 1, greatest - 1, greatest, 0, 1, 2]
        }

        fn any(g: &mut Gen) -> $type {
            u64::arbitrary(g) as $type
        }

        fn key(self) -> u64 {
            self as u64
        }
    };
    (Float $type:ty) => {
        fn edges() -> Vec<$type> {
            let least = <$type>::from_bits(1);
            let one = <$type>::MIN_POSITIVE / <$type>::MIN_POSITIVE;
            let positive = [
                <$type>::default(), one, one + <$type>::EPSILON, least, <$type>::MIN_POSITIVE, <$type>::MAX,
                // Infinity, or NaN for a type without infinity.
                <$type>::MAX + <$type>::MAX, <$type>::NAN,
            ];
            positive.into_iter().chain(positive.map(|value| -value)).collect()
        }

        fn any(g: &mut Gen) -> $type {
            // Half of the values have any exponent. The others have a common magnitude, so that
            // sums round.
            match bool::arbitrary(g) {
                true => <$type>::from_bits(u64::arbitrary(g) as _),
                false => {
                    let seventh = <<$type as Number>::Acc>::from(i8::arbitrary(g)) / 7.0;
                    (<$type>::reduction(ReduceOp::Sum).expect("floats have a sum").finish)(seventh, 1)
                }
            }
        }

        fn key(self) -> u64 {
            if self.is_nan() { <$type>::NAN.to_bits().into() } else { self.to_bits().into() }
        }
    };
}

for_each_dtype!(sample);

/// An element type of 16 bits, with conversion to the exact `f64`.
pub(crate) trait Half: Sample {
    /// The bits of infinity, which follow the bits of the greatest number.
    const INFINITY: u16;

    /// Returns the value with these bits.
    fn of_bits(bits: u16) -> Self;

    /// Returns the exact value.
    fn exact(self) -> f64;
}

macro_rules! half {
    ($($type:ident)*) => {
        $(impl Half for $type {
            const INFINITY: u16 = $type::INFINITY.to_bits();

            fn of_bits(bits: u16) -> $type {
                $type::from_bits(bits)
            }

            fn exact(self) -> f64 {
                self.to_f64()
            }
        })*
    };
}

half!(f16 bf16);

/// Returns the bits of elements. All NaNs have the same key.
pub(crate) fn keys<T: Sample>(elements: &[T]) -> Vec<u64> {
    elements.iter().map(|element| element.key()).collect()
}

/// Returns the keys of the elements of all ranks.
pub(crate) fn all_keys<T: Sample>(ranks: &[Vec<T>]) -> Vec<Vec<u64>> {
    ranks.iter().map(|elements| keys(elements)).collect()
}

/// The same number of elements from each of 1 to 9 ranks.
#[derive(Clone, Debug)]
pub(crate) struct Ranks<T>(pub(crate) Vec<Vec<T>>);

impl<T: Sample> Arbitrary for Ranks<T> {
    fn arbitrary(g: &mut Gen) -> Ranks<T> {
        let (ranks, count) = (1 + usize::arbitrary(g) % 9, usize::arbitrary(g) % 12);
        Ranks((0..ranks).map(|_| (0..count).map(|_| element(g)).collect()).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Ranks<T>>> {
        let fewer_ranks = (self.0.len() > 1).then(|| Ranks(self.0[1..].to_vec()));
        let fewer_elements = (!self.0[0].is_empty()).then(|| Ranks(self.0.iter().map(|x| x[1..].to_vec()).collect()));
        Box::new(fewer_ranks.into_iter().chain(fewer_elements))
    }
}

/// Returns an edge value or any value, each with probability one half.
fn element<T: Sample>(g: &mut Gen) -> T {
    if bool::arbitrary(g) { *g.choose(&T::edges()).expect("an edge") } else { T::any(g) }
}

/// Checks a property of [`Ranks`] for every element type.
macro_rules! for_ranks {
    ($law:ident $({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
        $(quickcheck::quickcheck($law::<$type> as fn(crate::sample::Ranks<$type>) -> bool);)*
    };
}
pub(crate) use for_ranks;
