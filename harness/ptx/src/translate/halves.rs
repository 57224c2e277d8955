//! Instructions on the two halves of 32 bits.

use crate::program::{Binary, LANES, Ternary, Unary};

/// Returns a function of both halves of 32 bits.
pub(crate) fn in_halves1(f: Unary) -> Unary {
    Box::new(move |a, to| {
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        f(&a.map(|a| a & 0xffff), &mut low);
        f(&a.map(|a| a >> 16), &mut high);
        *to = std::array::from_fn(|at| high[at] << 16 | low[at]);
    })
}

/// As [`in_halves1`], with more operands.
pub(crate) fn in_halves2(f: Binary) -> Binary {
    Box::new(move |a, b, to| {
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        f(&a.map(|a| a & 0xffff), &b.map(|b| b & 0xffff), &mut low);
        f(&a.map(|a| a >> 16), &b.map(|b| b >> 16), &mut high);
        *to = std::array::from_fn(|at| high[at] << 16 | low[at]);
    })
}

/// As [`in_halves1`], with more operands.
pub(crate) fn in_halves3(f: Ternary) -> Ternary {
    Box::new(move |a, b, c, to| {
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        f(&a.map(|a| a & 0xffff), &b.map(|b| b & 0xffff), &c.map(|c| c & 0xffff), &mut low);
        f(&a.map(|a| a >> 16), &b.map(|b| b >> 16), &c.map(|c| c >> 16), &mut high);
        *to = std::array::from_fn(|at| high[at] << 16 | low[at]);
    })
}
