//! Differential tests of the runtime: who is tested ([`subjects`]), with what ([`cases`]), how
//! judged ([`compare`]; what a variable holds is in [`variable`]).
//!
//! Every case is a value made from bytes, so that quickcheck and a fuzzer bring the same cases, and
//! is carried out twice: by a subject and by the spec. Results are compared bit for bit, NaN as a
//! class.
//!
//! Apart from them, [`counted`] is what `perf/compare` counts the instructions of.

#![forbid(unsafe_code)]

pub mod subjects;
mod addresses;
pub mod cases;
pub mod compare;
pub mod sample;
pub mod counted;
pub mod variable;
pub mod parsers;
#[cfg(target_os = "linux")]
mod lie;
#[cfg(target_os = "linux")]
pub mod damage;
pub mod seeds;

/// The programs of the README, which compile and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
