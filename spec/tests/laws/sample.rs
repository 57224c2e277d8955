//! Random inputs of every element type, and the comparison of their bits.

pub(crate) use consonance_spec::sample::{Sample, keys, mix};
use consonance_spec::{Class, bf16, f16};
use quickcheck::{Arbitrary, Gen};

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

/// Returns an edge or an element of [`any`], each with probability one half.
fn element<T: Sample>(g: &mut Gen) -> T {
    if bool::arbitrary(g) { T::edge(u64::arbitrary(g)) } else { any(g) }
}

/// Returns an element with any bits. Of floats half are plain instead.
pub(crate) fn any<T: Sample>(g: &mut Gen) -> T {
    let is_plain = T::DTYPE.class() == Class::Float && bool::arbitrary(g);
    let of_word = if is_plain { T::plain } else { T::any };
    of_word(u64::arbitrary(g))
}

/// Checks a property of [`Ranks`] for every element type.
macro_rules! for_ranks {
    ($law:ident $({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
        $(quickcheck::quickcheck($law::<$type> as fn(crate::sample::Ranks<$type>) -> bool);)*
    };
}
pub(crate) use for_ranks;
