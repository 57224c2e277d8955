//! Messages of peers in any order, as a process that forms a group receives them: the process does
//! nothing invalid.

#![no_main]

use consonance_harness::external_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| external_input::formation(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
