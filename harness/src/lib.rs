//! Differential tests of the runtime: who is tested ([`subjects`]), with what ([`cases`]), how judged ([`compare`]; what a
//! variable holds is in [`variable`]).
//!
//! Every case is a value made from bytes, so that quickcheck and a fuzzer bring the same cases, and is carried out twice: by a
//! subject and by the spec. Results are compared bit for bit, NaN as a class.
//!
//! Apart from them, [`launcher`] is what the command `consonance run` does, [`mod@bench`] what `consonance bench` does, [`explain`]
//! what `consonance explain` does, and `soak` what `consonance soak` does: the same cases, by processes that are stopped and killed.
//! [`counted`] is what `perf/compare` counts the instructions of.

#![forbid(unsafe_code)]

pub mod subjects;
pub mod cases;
pub mod compare;
pub mod sample;
pub mod launcher;
pub mod bench;
pub mod explain;
pub mod counted;
#[cfg(target_os = "linux")]
pub mod soak;
pub mod variable;
pub mod parsers;

/// The programs of the README, which compile and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
