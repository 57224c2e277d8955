//! Bytes over the header of a segment: opened as the group's only if nothing has changed.

#![no_main]

use consonance_harness::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| parsers::segment(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
