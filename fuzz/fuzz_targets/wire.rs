//! Numbers of calls and ends, as another build may write them: known, or a value that says that
//! they are not.

#![no_main]

use consonance_harness::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| parsers::wire(bytes).unwrap_or_else(|wrong| panic!("{wrong}")));
