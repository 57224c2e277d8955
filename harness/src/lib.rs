//! Differential tests of the runtime: the implementations under test ([`subjects`]), the cases
//! ([`cases`]), and the judgement of results ([`compare`]).
//!
//! Every case is a value made from bytes, so that quickcheck and a fuzzer produce the same cases.
//! Each case is executed twice: by a subject and by the spec. Results are compared bit for bit; all
//! NaNs are equal.
//!
//! [`cuda`] has the cases of CUDA devices, and judges their results.
//!
//! [`counted_calls`] lists the calls whose instructions `perf/compare` counts.

#![forbid(unsafe_code)]

pub mod subjects;
mod addresses;
pub mod cases;
pub mod compare;
pub mod sample;
pub mod calls;
pub mod counted_calls;
pub mod cuda;
pub mod external_input;
#[cfg(target_os = "linux")]
pub mod fake_wire;
#[cfg(target_os = "linux")]
pub mod network_input;
#[cfg(target_os = "linux")]
mod false_values;
#[cfg(target_os = "linux")]
pub mod corruption;
pub mod seeds;
