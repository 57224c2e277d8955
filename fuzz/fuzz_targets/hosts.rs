//! Bytes of other hosts: greetings in pieces, letters in any order, and claims to a rank. Each is
//! refused, or written as bytes that mean the same.

#![no_main]

use consonance_harness::network_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| network_input::hosts(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
