//! Elements for tests: the edges of each type, any bits, and numbers of ordinary size.

use consonance_spec::{bf16, f16, number::Number};
use std::convert::identity;

/// An element type that tests can make and compare.
pub(crate) trait Sample: Number {
    /// Returns the element that `random` bits choose.
    fn sample(random: u64) -> Self;

    /// Returns a key that is equal for equal bits, and for any two NaN.
    fn key(self) -> u64;

    /// Returns an element that has this key.
    fn from_key(key: u64) -> Self;
}

/// Returns `count` elements that `seed` chooses.
pub(crate) fn samples<T: Sample>(seed: u64, count: usize) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    (0..count).map(|_| T::sample(random())).collect()
}

impl Sample for bool {
    fn sample(random: u64) -> bool {
        random >> 63 == 1
    }

    fn key(self) -> u64 {
        self as u64
    }

    fn from_key(key: u64) -> bool {
        key == 1
    }
}

macro_rules! integer {
    ($($type:ident)*) => {
        $(impl Sample for $type {
            fn sample(random: u64) -> $type {
                match random >> 62 {
                    0 => [$type::MIN, $type::MAX, 0, 1, $type::MAX - 1][random as usize % 5],
                    1 => random as $type % 16,
                    _ => (random >> 7) as $type,
                }
            }

            fn key(self) -> u64 {
                self as u64
            }

            fn from_key(key: u64) -> $type {
                key as $type
            }
        })*
    };
}

integer!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! float {
    ($($type:ident: $bits:ident, $from:expr;)*) => {
        $(impl Sample for $type {
            fn sample(random: u64) -> $type {
                let (zero, least) = ($from(0.0), $type::from_bits(1));
                let edges = [
                    zero,
                    -zero,
                    least,
                    -least,
                    $type::MIN_POSITIVE,
                    $type::from_bits($type::MIN_POSITIVE.to_bits() - 1),
                    $type::MAX,
                    $type::MIN,
                    $type::INFINITY,
                    $type::NEG_INFINITY,
                    $type::NAN,
                    // A signalling NaN. Only a bit in the lower half makes it differ from infinity.
                    -$type::from_bits($type::INFINITY.to_bits() | 1),
                ];
                match random >> 60 {
                    0..4 => edges[random as usize % edges.len()],
                    4 => $type::from_bits((random >> 7) as $bits),
                    _ => $from((random >> 8) as i16 as f32 / 512.0),
                }
            }

            fn key(self) -> u64 {
                if self.is_nan() { u64::MAX } else { self.to_bits() as u64 }
            }

            fn from_key(key: u64) -> $type {
                // All bits of the key of NaN are set, and with so many bits it is a NaN.
                $type::from_bits(key as $bits)
            }
        })*
    };
}

float! {
    f16: u16, f16::from_f32;
    bf16: u16, bf16::from_f32;
    f32: u32, identity::<f32>;
    f64: u64, f64::from;
}
