//! Any words in the memory of a group: the trace reports its calls, or that the memory is no
//! segment.

#![no_main]

use consonance_harness::corruption;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| corruption::trace(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
