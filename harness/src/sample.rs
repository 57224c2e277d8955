//! Elements of every type from a seed, with the edge values of each type, and their bits for
//! comparisons.

use consonance_kernels::digest::mix;
use consonance_spec::{ReduceOp, for_each_dtype, number::Number};

/// An element type with samples.
pub trait Sample: Number {
    /// Returns a value at an edge of the type.
    fn edge(word: u64) -> Self;

    /// Returns any value.
    fn any(word: u64) -> Self;

    /// Returns a value of common magnitude, so that sums round but stay finite.
    fn plain(word: u64) -> Self;

    /// Returns a key that is equal for equal bits, and for any two NaNs.
    fn key(self) -> u64;
}

/// Returns `count` elements, the same for the same seed. A third of the seeds give plain values, a
/// third give any values, and a third mix these with edge values.
pub fn sample<T: Sample>(seed: u64, count: usize) -> Vec<T> {
    let element = |i: usize| {
        let word = mix(seed, i as u64);
        match (seed % 3, word >> 62) {
            (0, _) => T::plain(word),
            (1, _) => T::any(word),
            (_, 0) => T::edge(word),
            (_, 1) => T::any(word),
            _ => T::plain(word),
        }
    };
    (0..count).map(element).collect()
}

/// Returns the bits of elements. All NaNs have the same key.
pub fn keys<T: Sample>(elements: &[T]) -> Vec<u64> {
    elements.iter().map(|element| element.key()).collect()
}

macro_rules! implement {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        $(impl Sample for $type { implement!($class $type); })*
    };
    (Bool $type:ty) => {
        fn edge(word: u64) -> bool {
            word & 1 == 1
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
    (Signed $type:ty) => { implement!(Unsigned $type); };
    (Unsigned $type:ty) => {
        fn edge(word: u64) -> $type {
            let (least, greatest) = (<$type>::MIN, <$type>::MAX);
            let edges = [least, least + 1, greatest / 2, greatest / 2 + 1, greatest - 1, greatest, 0, 1, 2];
            edges[word as usize % edges.len()]
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
        fn edge(word: u64) -> $type {
            let one = <$type>::MIN_POSITIVE / <$type>::MIN_POSITIVE;
            let edges = [
                <$type>::default(), one, one + <$type>::EPSILON, <$type>::from_bits(1), <$type>::MIN_POSITIVE,
                // Infinity, or NaN if the type has no infinity.
                <$type>::MAX, <$type>::MAX + <$type>::MAX, <$type>::NAN,
            ];
            let edge = edges[word as usize % edges.len()];
            if word & 0x100 == 0 { edge } else { -edge }
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

for_each_dtype!(implement);
