//! The small superaccumulator of Radford Neal, "Fast exact summation using small and large
//! superaccumulators" (arXiv 1505.05571): a fixed-point number with digits that overlap.

use super::{
    block,
    float::{Float, WORDS},
};

/// Digits of 32 bits, in 64 bits each.
const DIGITS: usize = 2 * WORDS;

/// The exponent of the lowest bit.
const UNIT: i32 = -1074;

/// Elements that can be added before carries move on: each adds less than 2^52 to a digit.
const ROOM: u32 = 1 << 10;

const NAN: u64 = 1;
const INFINITE: u64 = 2;
const NEGATIVE_INFINITE: u64 = 4;
/// There is an element that is not −0.
const OTHER: u64 = 8;
/// There is a −0, and no other element.
const NEGATIVE_ZERO: u64 = 16;

/// An exact sum of floats.
pub(super) struct ExactSum {
    /// Digit `i` means 2^(32 i − 1074). All are signed.
    digits: [i64; DIGITS],
    room: u32,
    flags: u64,
}

impl ExactSum {
    pub(super) const fn new() -> ExactSum {
        ExactSum { digits: [0; DIGITS], room: ROOM, flags: 0 }
    }

    /// Adds all elements.
    pub(super) fn add<T: Float>(&mut self, elements: &[T]) {
        if self.flags & OTHER == 0 && !elements.is_empty() {
            let is_negative_zero = |element: &T| element.widen().to_bits() == 1 << 63;
            self.flags |= if elements.iter().all(is_negative_zero) { NEGATIVE_ZERO } else { OTHER };
        }
        for part in elements.chunks(block::COUNT) {
            match block::sum(part) {
                Some(sums) => sums.into_iter().for_each(|sum| self.add_one(sum)),
                None => part.iter().for_each(|element| self.add_one(element.widen())),
            }
        }
    }

    #[inline]
    fn add_one(&mut self, element: f64) {
        let bits = element.to_bits();
        let (exponent, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
        if exponent == 0x7ff {
            self.flags |= match (fraction, bits >> 63) {
                (0, 0) => INFINITE,
                (0, _) => NEGATIVE_INFINITE,
                _ => NAN,
            };
            return;
        }
        if self.room == 0 {
            self.carry();
        }
        self.room -= 1;
        let (significand, shift) = match exponent {
            0 => (fraction, 0),
            _ => (fraction | 1 << 52, exponent as usize - 1),
        };
        let (place, shift) = (shift / 32, shift % 32);
        let low = (significand << shift & 0xffff_ffff) as i64;
        let high = (significand >> (32 - shift)) as i64;
        // Negates by the sign without a branch.
        let sign = (bits as i64) >> 63;
        self.digits[place] += (low ^ sign) - sign;
        self.digits[place + 1] += (high ^ sign) - sign;
    }

    /// Moves all carries on: each digit but the highest is from 0 to 2^32 (exclusive).
    fn carry(&mut self) {
        let (last, digits) = self.digits.split_last_mut().expect("there are digits");
        let mut carry = 0;
        for digit in digits {
            let sum = *digit + carry;
            *digit = sum & 0xffff_ffff;
            carry = sum >> 32;
        }
        *last += carry;
        self.room = ROOM;
    }

    /// Writes the sum of elements `T`: a number of two's complement, the lowest word first, and a
    /// word of flags. Equal sums have equal words, whatever the order.
    pub(super) fn write<T: Float>(&mut self, words: &mut [u64]) {
        self.carry();
        let (flags, number) = words.split_last_mut().expect("words of a sum");
        let digits = self.digits.as_chunks::<2>().0[T::WORDS].iter();
        number.iter_mut().zip(digits).for_each(|(word, [low, high])| *word = (low | high << 32) as u64);
        *flags = self.flags();
    }

    /// Adds a sum of elements `T` from its [words](ExactSum::write). Any words are a sum.
    pub(super) fn merge<T: Float>(&mut self, words: &[u64]) {
        let (flags, number) = words.split_last().expect("words of a sum");
        self.flags |= flags;
        self.carry();
        let (last, number) = number.split_last().expect("words of a sum");
        let digits = &mut self.digits.as_chunks_mut::<2>().0[T::WORDS];
        for ([low, high], word) in digits.iter_mut().zip(number) {
            *low += (word & 0xffff_ffff) as i64;
            *high += (word >> 32) as i64;
        }
        if let Some([low, high]) = digits.last_mut() {
            *low += (last & 0xffff_ffff) as i64;
            *high += (*last as i64) >> 32;
        }
    }

    fn flags(&self) -> u64 {
        if self.flags & OTHER == 0 { self.flags } else { self.flags & !NEGATIVE_ZERO }
    }

    /// Returns the sum divided by `divisor`, rounded once.
    pub(super) fn divided<T: Float>(&mut self, divisor: u64) -> T {
        let flags = self.flags();
        if divisor == 0 || flags & NAN != 0 || flags & INFINITE != 0 && flags & NEGATIVE_INFINITE != 0 {
            return T::NAN;
        }
        if flags & (INFINITE | NEGATIVE_INFINITE) != 0 {
            return T::infinity(flags & NEGATIVE_INFINITE != 0);
        }
        self.carry();
        let mut words: [u64; WORDS] = [0; WORDS];
        let digits = self.digits.as_chunks::<2>().0.iter();
        words.iter_mut().zip(digits).for_each(|(word, [low, high])| *word = (low | high << 32) as u64);
        let is_negative = (words[WORDS - 1] as i64) < 0;
        if is_negative {
            let mut carry = true;
            words.iter_mut().for_each(|word| (*word, carry) = (!*word).overflowing_add(carry.into()));
        }
        T::nearest(&words, UNIT, divisor, is_negative || flags & NEGATIVE_ZERO != 0)
    }
}
