//! Bytes written over the header of a segment: it is opened only if nothing but its knobs has
//! changed.

#![no_main]

use consonance_harness::external_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| external_input::segment(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
