//! A peer that writes any words into the memory of a group during its calls: each call ends in
//! time.

#![no_main]

use consonance_harness::corruption;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| corruption::corrupted_memory(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
