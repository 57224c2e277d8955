//! Conversion of the elements of a type to accumulators on load, and back on store.

use super::simd::Simd;
use crate::cpu::half;
use std::marker::PhantomData;

/// The step from an accumulator to a result: unchanged, or divided.
#[derive(Clone, Copy)]
pub(crate) struct Quotient {
    how: How,
    by: f64,
}

#[derive(Clone, Copy)]
enum How {
    Same,
    Times,
    Over,
}

impl Quotient {
    /// Replaces a division by a power of two with a product by its inverse. The inverse is exact,
    /// so the product has the bits of the quotient, and takes less time. No divisor that counts
    /// elements in memory is rounded to `f64` here. For f32 the divisor is rounded where it is
    /// used.
    pub(crate) fn new(divisor: u64) -> Quotient {
        let by = divisor as f64;
        match divisor {
            1 => Quotient { how: How::Same, by },
            _ if divisor.is_power_of_two() => Quotient { how: How::Times, by: 1.0 / by },
            _ => Quotient { how: How::Over, by },
        }
    }
}

/// An element type as kernels see it.
pub(crate) trait ElementCodec {
    /// An element in the sources.
    type Source: Copy;
    /// An accumulator.
    type Acc: Copy;
    /// An element in the targets.
    type Target: Copy;
    /// The codec whose sources are accumulators, in the order of elements.
    type Widened: ElementCodec<Source = Self::Acc, Acc = Self::Acc, Target = Self::Target>;
    /// The codec whose results stay accumulators, in the order of elements.
    type Kept: ElementCodec<Source = Self::Source, Acc = Self::Acc, Target = Self::Acc>;
    /// The codec whose sources and results are accumulators.
    type Partial: ElementCodec<Source = Self::Acc, Acc = Self::Acc, Target = Self::Acc>;
    /// Whether elements, accumulators and results have the same bits, but for a division.
    const IS_PLAIN: bool = false;

    /// Loads `L` elements and widens them, in the order of lanes that is fastest for the type.
    ///
    /// # Safety
    /// The machine has the instruction set; `source` is valid for reads of `L` elements, of any
    /// alignment.
    unsafe fn load<I: Simd, const L: usize>(source: *const Self::Source) -> [Self::Acc; L];

    /// Inverts [`load`](ElementCodec::load). Divides each lane (if the type has a mean) and rounds
    /// it once.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn store<I: Simd, const L: usize>(tile: [Self::Acc; L], quotient: Quotient) -> [Self::Target; L];

    /// [Loads](ElementCodec::load) with element `e` in lane `e`.
    ///
    /// # Safety
    /// As for [`load`](ElementCodec::load).
    #[inline(always)]
    unsafe fn load_ordered<I: Simd, const L: usize>(source: *const Self::Source) -> [Self::Acc; L] {
        // SAFETY: the caller's promises are the same.
        unsafe { Self::load::<I, L>(source) }
    }

    /// [Stores](ElementCodec::store) a tile that has element `e` in lane `e`.
    ///
    /// # Safety
    /// As for [`store`](ElementCodec::store).
    #[inline(always)]
    unsafe fn store_ordered<I: Simd, const L: usize>(tile: [Self::Acc; L], quotient: Quotient) -> [Self::Target; L] {
        // SAFETY: the caller's promises are the same.
        unsafe { Self::store::<I, L>(tile, quotient) }
    }
}

/// Elements whose type is also their accumulator type, and which have no mean of their own.
pub(crate) struct Plain<T>(PhantomData<T>);

impl<T: Copy> ElementCodec for Plain<T> {
    type Source = T;
    type Acc = T;
    type Target = T;
    type Widened = Self;
    type Kept = Self;
    type Partial = Self;
    const IS_PLAIN: bool = true;

    #[inline(always)]
    unsafe fn load<I: Simd, const L: usize>(source: *const T) -> [T; L] {
        // SAFETY: the caller vouches for `L` elements.
        unsafe { source.cast::<[T; L]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store<I: Simd, const L: usize>(tile: [T; L], _: Quotient) -> [T; L] {
        tile
    }
}

macro_rules! float {
    ($($type:ident)*) => {
        $(impl ElementCodec for $type {
            type Source = $type;
            type Acc = $type;
            type Target = $type;
            type Widened = Self;
            type Kept = Self;
            type Partial = Self;
            const IS_PLAIN: bool = true;

            #[inline(always)]
            unsafe fn load<I: Simd, const L: usize>(source: *const $type) -> [$type; L] {
                // SAFETY: the caller vouches for `L` elements.
                unsafe { source.cast::<[$type; L]>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn store<I: Simd, const L: usize>(tile: [$type; L], quotient: Quotient) -> [$type; L] {
                let by = quotient.by as $type;
                match quotient.how {
                    How::Same => tile,
                    How::Times => map(tile, |lane| lane * by),
                    How::Over => map(tile, |lane| lane / by),
                }
            }
        })*
    };
}

float!(f32 f64);

pub(crate) struct F16;

impl ElementCodec for F16 {
    type Source = u16;
    type Acc = f32;
    type Target = u16;
    type Widened = Widened<Self>;
    type Kept = Kept<Self>;
    type Partial = f32;

    #[inline(always)]
    unsafe fn load<I: Simd, const L: usize>(source: *const u16) -> [f32; L] {
        // SAFETY: the caller vouches for `L` elements and the machine.
        unsafe { I::widen_f16(source) }
    }

    #[inline(always)]
    unsafe fn store<I: Simd, const L: usize>(tile: [f32; L], quotient: Quotient) -> [u16; L] {
        // SAFETY: the caller vouches for the machine.
        unsafe { I::narrow_f16(f32::store::<I, L>(tile, quotient)) }
    }
}

/// Two elements share a word of 32 bits. A shift widens one and a mask widens the other; widening
/// in order would need a shuffle, too. The low halves of the words become the first half of the
/// tile, the high halves the second half.
pub(crate) struct Bf16;

impl ElementCodec for Bf16 {
    type Source = u16;
    type Acc = f32;
    type Target = u16;
    type Widened = Widened<Self>;
    type Kept = Kept<Self>;
    type Partial = f32;

    #[inline(always)]
    unsafe fn load<I: Simd, const L: usize>(source: *const u16) -> [f32; L] {
        let mut tile = [0.0; L];
        for word in 0..L / 2 {
            // SAFETY: `L / 2` words are at most `L` elements.
            let pair = unsafe { source.cast::<u32>().add(word).read_unaligned() };
            tile[word] = f32::from_bits(pair << 16);
            tile[L / 2 + word] = f32::from_bits(pair & 0xffff_0000);
        }
        tile
    }

    #[inline(always)]
    unsafe fn store<I: Simd, const L: usize>(tile: [f32; L], quotient: Quotient) -> [u16; L] {
        // SAFETY: the caller vouches for the machine.
        let tile = unsafe { f32::store::<I, L>(tile, quotient) };
        let mut narrow = [0; L];
        for word in 0..L / 2 {
            let (low, high) = (half::round_bf16(tile[word]), half::round_bf16(tile[L / 2 + word]));
            // SAFETY: `L / 2` words are at most `L` elements.
            unsafe { narrow.as_mut_ptr().cast::<u32>().add(word).write_unaligned(low >> 16 | high & 0xffff_0000) }
        }
        narrow
    }

    #[inline(always)]
    unsafe fn load_ordered<I: Simd, const L: usize>(source: *const u16) -> [f32; L] {
        // SAFETY: the caller vouches for `L` elements.
        map(unsafe { source.cast::<[u16; L]>().read_unaligned() }, |element| f32::from_bits((element as u32) << 16))
    }

    #[inline(always)]
    unsafe fn store_ordered<I: Simd, const L: usize>(tile: [f32; L], quotient: Quotient) -> [u16; L] {
        // SAFETY: the caller vouches for the machine.
        let tile = unsafe { f32::store::<I, L>(tile, quotient) };
        map(tile, |lane| (half::round_bf16(lane) >> 16) as u16)
    }
}

/// Elements of 16 bits that are compared as [integers](half::order), because widening them would
/// cost more than the rest of the work. The integers are counted from `FIRST` on, and wrap from the
/// greatest to the least, so that NaN of either sign win.
pub(crate) struct Ordered<const FIRST: i16>;

impl<const FIRST: i16> ElementCodec for Ordered<FIRST> {
    type Source = i16;
    type Acc = i16;
    type Target = i16;
    type Widened = Widened<Self>;
    type Kept = Kept<Self>;
    type Partial = Plain<i16>;

    #[inline(always)]
    unsafe fn load<I: Simd, const L: usize>(source: *const i16) -> [i16; L] {
        // SAFETY: the caller vouches for `L` elements.
        let bits = unsafe { source.cast::<[i16; L]>().read_unaligned() };
        map(bits, |bits| half::order(bits).wrapping_sub(FIRST).wrapping_add(i16::MIN))
    }

    #[inline(always)]
    unsafe fn store<I: Simd, const L: usize>(tile: [i16; L], _: Quotient) -> [i16; L] {
        map(tile, |place| half::order(place.wrapping_sub(i16::MIN).wrapping_add(FIRST)))
    }
}

/// Returns the `FIRST` of [`Ordered`] for maxima, in the format whose infinity has these bits.
/// Negative infinity is the first, and the identity. Negative NaN come after all others.
pub(crate) const fn first_of_greatest(infinite: i16) -> i16 {
    half::order(infinite | i16::MIN)
}

/// Returns the `FIRST` of [`Ordered`] for minima. Infinity is the last, and the identity. Positive
/// NaN are the first, and negative NaN follow.
pub(crate) const fn first_of_least(infinite: i16) -> i16 {
    infinite + 1
}

/// Integers of a mean: `T` is summed in `A`, and the mean is an `F`. No memory holds enough
/// elements to overflow `A`, except for elements of 32 bits: `i64` is sure to hold the sum of 2^31
/// elements of u32 (8 GiB) or 2^32 elements of i32.
pub(crate) struct Total<T, A, F>(PhantomData<(T, A, F)>);

macro_rules! total {
    ($(($type:ident, $acc:ident, $mean:ident))*) => {
        $(impl ElementCodec for Total<$type, $acc, $mean> {
            type Source = $type;
            type Acc = $acc;
            type Target = $mean;
            type Widened = Widened<Self>;
            type Kept = Kept<Self>;
            type Partial = Plain<$acc>;

            #[inline(always)]
            unsafe fn load<I: Simd, const L: usize>(source: *const $type) -> [$acc; L] {
                // SAFETY: the caller vouches for `L` elements.
                map(unsafe { source.cast::<[$type; L]>().read_unaligned() }, |element| element as $acc)
            }

            #[inline(always)]
            unsafe fn store<I: Simd, const L: usize>(tile: [$acc; L], quotient: Quotient) -> [$mean; L] {
                // SAFETY: the caller vouches for the machine.
                unsafe { <$mean>::store::<I, L>(map(tile, |lane| lane as $mean), quotient) }
            }
        })*
    };
}

total! {
    (i8, i64, f32) (i16, i64, f32) (i32, i64, f64) (i64, i128, f64)
    (u8, i64, f32) (u16, i64, f32) (u32, i64, f64) (u64, i128, f64)
}

/// The [`Widened`](ElementCodec::Widened) codec of `R`, if it is not `R` itself.
pub(crate) struct Widened<R>(PhantomData<R>);

impl<R: ElementCodec> ElementCodec for Widened<R> {
    type Source = R::Acc;
    type Acc = R::Acc;
    type Target = R::Target;
    type Widened = Self;
    type Kept = R::Partial;
    type Partial = R::Partial;

    #[inline(always)]
    unsafe fn load<I: Simd, const L: usize>(source: *const R::Acc) -> [R::Acc; L] {
        // SAFETY: the caller vouches for `L` elements.
        unsafe { source.cast::<[R::Acc; L]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store<I: Simd, const L: usize>(tile: [R::Acc; L], quotient: Quotient) -> [R::Target; L] {
        // SAFETY: the caller vouches for the machine.
        unsafe { R::store_ordered::<I, L>(tile, quotient) }
    }
}

/// The [`Kept`](ElementCodec::Kept) codec of `R`, if it is not `R` itself.
pub(crate) struct Kept<R>(PhantomData<R>);

impl<R: ElementCodec> ElementCodec for Kept<R> {
    type Source = R::Source;
    type Acc = R::Acc;
    type Target = R::Acc;
    type Widened = R::Partial;
    type Kept = Self;
    type Partial = R::Partial;

    #[inline(always)]
    unsafe fn load<I: Simd, const L: usize>(source: *const R::Source) -> [R::Acc; L] {
        // SAFETY: the caller's promises are the same.
        unsafe { R::load_ordered::<I, L>(source) }
    }

    #[inline(always)]
    unsafe fn store<I: Simd, const L: usize>(tile: [R::Acc; L], _: Quotient) -> [R::Acc; L] {
        tile
    }
}

/// Applies `f` to each lane, in a loop that the compiler vectorizes. It does not vectorize
/// `array::map` on long arrays.
#[inline(always)]
fn map<A: Copy, B: Copy + Default, const L: usize>(tile: [A; L], f: impl Fn(A) -> B) -> [B; L] {
    let mut result = [B::default(); L];
    for lane in 0..L {
        result[lane] = f(tile[lane]);
    }
    result
}
