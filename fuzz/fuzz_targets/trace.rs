//! Any words in the memory of a group: reports of its calls are made, or it is said to be no
//! segment.

#![no_main]

use consonance_harness::damage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| damage::trace(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
