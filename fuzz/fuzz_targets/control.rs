//! Bytes as messages of processes that meet: refused, or written as the same bytes again.

#![no_main]

use consonance_harness::external_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| external_input::control(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
