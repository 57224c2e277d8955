//! Elements for tests: of every type, from words that look random, with the edges of the arithmetic
//! and keys to compare bits.

use crate::{Class, ReduceOp, for_each_dtype, number::Number};

/// An element type with samples.
pub trait Sample: Number {
    /// Returns the edges of the arithmetic.
    fn edges() -> Vec<Self>;

    /// Returns the element with these bits.
    fn any(word: u64) -> Self;

    /// Returns an element of common magnitude: sums of such elements round and stay finite.
    fn plain(word: u64) -> Self;

    /// Returns a key that is equal for equal bits, and for any two NaN.
    fn key(self) -> u64;

    /// Returns one of the edges.
    fn edge(word: u64) -> Self {
        let edges = Self::edges();
        edges[word as usize % edges.len()]
    }
}

/// Mixes two words into one that looks random.
pub const fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(0x2545_f491_4f6c_dd1d)
}

/// Returns `count` elements, the same for the same seed. A quarter are edges. Of the others, most
/// floats are plain, and most elements of another type have any bits.
///
/// ```
/// use consonance_spec::sample::{keys, samples};
/// assert_eq!(keys(&samples::<f32>(1, 10)), keys(&samples::<f32>(1, 10)));
/// assert_ne!(keys(&samples::<f32>(1, 10)), keys(&samples::<f32>(2, 10)));
/// ```
pub fn samples<T: Sample>(seed: u64, count: usize) -> Vec<T> {
    let is_float = T::DTYPE.class() == Class::Float;
    let element = |i: usize| {
        let word = mix(seed, mix(!seed, i as u64));
        match word >> 60 {
            0..4 => T::edge(word),
            4 => T::any(word),
            5..12 if !is_float => T::any(word),
            _ => T::plain(word),
        }
    };
    (0..count).map(element).collect()
}

/// Returns the keys of elements.
pub fn keys<T: Sample>(elements: &[T]) -> Vec<u64> {
    elements.iter().map(|element| element.key()).collect()
}

macro_rules! sample {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(impl Sample for $type { sample!($class $type); })*
    };
    (Bool $type:ty) => {
        fn edges() -> Vec<bool> {
            vec![false, true]
        }

        fn any(word: u64) -> bool {
            word & 1 == 1
        }

        fn plain(word: u64) -> bool {
            word & 1 == 1
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

        fn any(word: u64) -> $type {
            word as $type
        }

        fn plain(word: u64) -> $type {
            (word % 100) as $type
        }

        fn key(self) -> u64 {
            self as u64
        }
    };
    (Float $type:ty) => {
        fn edges() -> Vec<$type> {
            let one = <$type>::MIN_POSITIVE / <$type>::MIN_POSITIVE;
            // NaN for a type without infinity.
            let infinity = <$type>::MAX + <$type>::MAX;
            let positive = [
                <$type>::default(), one, one + <$type>::EPSILON, <$type>::from_bits(1), <$type>::MIN_POSITIVE,
                <$type>::from_bits(<$type>::MIN_POSITIVE.to_bits() - 1), <$type>::MAX, infinity, <$type>::NAN,
                // A signalling NaN. Only a bit in the lower half makes it differ from infinity.
                <$type>::from_bits(infinity.to_bits() | 1),
            ];
            positive.into_iter().chain(positive.map(|value| -value)).collect()
        }

        fn any(word: u64) -> $type {
            <$type>::from_bits(word as _)
        }

        fn plain(word: u64) -> $type {
            let seventh = <<$type as Number>::Acc>::from(word as i8) / 7.0;
            (<$type>::reduction(ReduceOp::Sum).expect("floats have a sum").finish)(seventh, 1)
        }

        fn key(self) -> u64 {
            if self.is_nan() { <$type>::NAN.to_bits().into() } else { self.to_bits().into() }
        }
    };
}

for_each_dtype!(sample);
